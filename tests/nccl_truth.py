"""What the stand-in for NCCL says it has done, and whether what was recorded is the same.

The stand-in (``tests/native/doubles/libnccl.cpp``) finds haiprof's plugin as NCCL does, and works
in turns, between which it unloads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

#: Its words for functions and element types, and ours.
OPS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "NewFunction": "other",
    "Send": "send",
    "Recv": "recv",
}
TYPES = {"ncclFloat32": ("fp32", 4), "ncclBfloat16": ("bf16", 2), "ncclInt8": ("int8", 1)}
#: How far a time may be off where clocks are compared, ns.
SLACK = 1_000_000


class Truth(NamedTuple):
    """What was done: the operations, by their elements, and what became of the plugin."""

    operations: dict[int, dict[str, Any]]
    plugin: dict[str, int]


def read(path: Path) -> Truth:
    """Read what the stand-in has written."""
    *operations, plugin = map(json.loads, path.read_text("utf-8").splitlines())
    return Truth({each["count"]: each for each in operations}, plugin)


def check(truth: Truth, found: pl.DataFrame) -> None:
    """Check that each operation that was recorded is there once, and is what was done.

    Args:
        truth: what was done.
        found: as :func:`haiprof.views.run.nccl.operations` returns it.
    """
    recorded = {count for count, each in truth.operations.items() if each["recorded"]}
    assert len(found) == len(recorded)
    assert set(found["elements"]) == recorded
    for row in found.iter_rows(named=True):
        done = truth.operations[row["elements"]]
        assert {name: row[name] for name in _expected(done)} == _expected(done)
        _check_times(done, row)


def _expected(done: Mapping[str, Any]) -> dict[str, Any]:
    op = OPS[done["func"]]
    kind, each = TYPES.get(done["datatype"], (None, None))
    has_peer = op in ("send", "recv", "broadcast")
    return {
        **{name: done[name] for name in ("communicator", "name", "nodes", "ranks", "place")},
        **{name: done[name] for name in ("algorithm", "protocol")},
        "op": op,
        "sequence": None if done["sequence"] < 0 else done["sequence"],
        "type": kind,
        "bytes": None if each is None else done["count"] * each,
        "channels": done["channels"] or None,
        "peer": done["end"] if has_peer else None,
        "transfers": done["transfers"] or None,
        "cut_off": done["cut"],
    }


def _check_times(done: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    for name, (before, after) in (("start", done["start"]), ("enqueued", done["stop"])):
        assert before - SLACK <= row[name] <= after + SLACK, (name, row, done)
    first, last = done["network"]
    if done["transfers"]:
        assert first - SLACK <= row["network_start"] <= row["network_end"] <= last + SLACK
    else:
        assert row["network_start"] is None
        assert row["network_end"] is None
