"""NCCL's NVTX ranges: which collective, how many bytes, which ranks.

The file has these details as JSON if it was exported with ``--include-json=true``.

Tests: tests/sources/nsys/test_ranges.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from haiprof.sources.imports.imported import whole
from haiprof.sources.nsys.database import Database
from haiprof.sources.nsys.processes import TID_BITS, Target

#: Ranges that communicate -> ``collectives.op``.
OPS: Final = {
    "ncclAllReduce": "all_reduce",
    "ncclAllGather": "all_gather",
    "ncclReduceScatter": "reduce_scatter",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "all_to_all",
    "ncclAllToAll": "all_to_all",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
#: NCCL's names for the parts of a payload.
BYTES: Final = "Message size [bytes]"
GROUP: Final = "NCCL communicator ID"
PEER: Final = "Peer rank"
_RANKS: Final = "No. of ranks"
_RANK: Final = "Rank"
_JOINING: Final = "ncclCommInitRank%"


def payload(text: object) -> dict[str, Any]:
    """Return the members of a payload, at any nesting depth; none if it is not JSON."""
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    members: dict[str, Any] = {}
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            members |= each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return members


def ranks(db: Database, targets: Sequence[Target]) -> dict[int, int]:
    """Return the rank of each process by its key, if one communicator has them all.

    That communicator must have exactly the processes of the file; in a job on several nodes the
    largest one need not include all processes, so then nothing is returned.
    """
    communicators: dict[Any, dict[int, int]] = {}
    for process, text in _joined(db):
        said = payload(text)
        rank, count = whole(said.get(_RANK)), whole(said.get(_RANKS))
        if rank is not None and count == len(targets) and GROUP in said:
            communicators.setdefault(str(said[GROUP]), {})[process << TID_BITS] = rank
    keys = {target.key for target in targets}
    for by_key in communicators.values():
        if by_key.keys() == keys and sorted(by_key.values()) == list(range(len(keys))):
            return by_key
    return {}


def _joined(db: Database) -> Iterator[tuple[int, object]]:
    """Return the process and the payload of each range in which a process joins a communicator."""
    process = f"n.globalTid >> {TID_BITS}"
    if not db.has("NVTX_EVENTS", "globalTid", "jsonText"):
        return
    for column, text, joined in (
        ("text", "n.text", ""),
        ("textId", "s.value", "join StringIds s on s.id = n.textId"),
    ):
        if db.has("NVTX_EVENTS", column):
            yield from db.rows(
                f"select {process}, n.jsonText from NVTX_EVENTS n {joined} "
                f"where n.jsonText is not null and {text} like ?",
                (_JOINING,),
            )
