"""What the name of a trace file says: its worker, when it was written, its host and its rank."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: How torch's own handler names a trace: ``<worker>[.<time>].pt.trace.json``.
_OF_HANDLER: Final = re.compile(r"(?P<worker>.*?)(?:\.(?P<stamp>\d+))?\.pt\.trace\.json")
_COMPRESSED: Final = re.compile(r"\.(gz|gzip|zst|bz2|xz|lz4)$", re.IGNORECASE)
#: torch's handler names a worker ``<host>_<pid>``.
_HOST_AND_PID: Final = re.compile(r"(?P<host>.+)_\d+")
#: A word that labels the number after it; a host's name does not stand there.
_COUNTED: Final = re.compile(
    r"(^|[^a-z])(rank|worker|step|iter|iteration|epoch|gpu|device|trace|span)\d*$", re.IGNORECASE
)
_RANK: Final = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d+)", re.IGNORECASE)
_LAST_NUMBER: Final = re.compile(r"_(\d+)$")


class Name(NamedTuple):
    """The name of a trace file, parsed."""

    worker: str
    #: When it was written, by the handler's clock; None if the name has no such part.
    stamp: int | None
    #: The host, where the worker is named after it.
    host: str | None
    #: Rank as the name suggests; the file is more reliable.
    rank: int | None


def is_handlers(name: str) -> bool:
    """Say whether torch's own handler gives such names (the TensorBoard plugin reads no others)."""
    return _OF_HANDLER.fullmatch(_bare(name)) is not None


def may_be_trace(name: str) -> bool:
    """Say whether a file of this name can be a trace: JSON, plain or compressed."""
    return not name.startswith(".") and _bare(name).lower().endswith(".json")


def take_apart(name: str) -> Name:
    """Parse the name of a trace file (without folders)."""
    bare = _bare(name)
    found = _OF_HANDLER.fullmatch(bare)
    if found is None:
        worker = re.sub(r"\.json$", "", bare, flags=re.IGNORECASE)
        return Name(worker or "trace", None, None, rank_in(worker))
    worker = found["worker"] or "trace"
    stamp = int(found["stamp"]) if found["stamp"] else None
    of_host = _HOST_AND_PID.fullmatch(worker)
    if of_host is None or _COUNTED.search(of_host["host"]):
        return Name(worker, stamp, None, _number(_RANK.search(worker)))
    return Name(worker, stamp, of_host["host"], None)


def rank_in(worker: str) -> int | None:
    """Return the rank in a worker's name: after a word for it, or at the end."""
    said = _RANK.search(worker)
    if said is None:
        said = _LAST_NUMBER.search(worker)
        # "trace_step_12" counts steps.
        if said is not None and _COUNTED.search(worker[: said.start()]):
            return None
    return _number(said)


def _number(said: re.Match[str] | None) -> int | None:
    return int(said[1]) if said is not None and len(said[1]) < 10 else None


def _bare(name: str) -> str:
    return _COMPRESSED.sub("", name)
