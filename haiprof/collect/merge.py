"""Which folders of which sources belong to which run, and what each is called in the merged one.

A run is its name: all ranks of a job agree on one. A process is what its ``process.json`` says of
its machine, number and times, wherever it lies and whatever its folder is called: seen twice it is
taken once, and two of one name (containers that share a host's) both have a place.

Tests: tests/cli/test_collect.py.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from haiprof import schema
from haiprof.collect.source import File, Listing, Source
from haiprof.errors import HaiprofError
from haiprof.runs import ROLE_NODE
from haiprof.sources.own import is_import

#: What a process is known by; none of it changes while it lives.
_WHO: Final = (
    "node", "host", "rank", "pid", "boot_id", "start_time", "created_ns", "started_ns",
)  # fmt: skip
#: How many folders may have one name before something else is wrong.
_MOST_NAMES: Final = 10_000
#: What a recorder has not finished ends with it.
_PARTIAL: Final = ".partial"

Identity = tuple[str, ...]


@dataclass(slots=True)
class Part:
    """The folder of a process or a node, as a source has it.

    Attributes:
        source: where.
        run: its run's name.
        name: its own name there.
        who: the process.
        node: it is a node's.
        live: it is being recorded, or nobody has closed it.
        document: its ``process.json``.
        files: the others in it, by name.
    """

    source: Source
    run: str
    name: str
    who: Identity
    node: bool
    live: bool
    document: bytes
    files: dict[str, File] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files.values())


@dataclass(slots=True)
class Contents:
    """What a listing holds: processes, the ``run.json`` of each run, and what is not right."""

    parts: list[Part] = field(default_factory=list)
    runs: dict[str, bytes] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def contents(source: Source, listing: Listing, wanted: str) -> Contents:
    """Sort a listing into processes.

    Args:
        source: whose.
        listing: what lies there: a log directory, or one run.
        wanted: the only run that counts; empty: all do.
    """
    found = Contents(remarks=[f"{source.label}: {listing.remark}"] if listing.remark else [])
    alone = schema.RUN_FILE in listing.documents
    tops = {"": ""} if alone else {p.split("/")[0]: p.split("/")[0] + "/" for p in _runs(listing)}
    if alone:
        told = _read(listing.documents[schema.RUN_FILE], schema.RUN_FORMAT) or {}
        tops = {str(told.get("run") or ""): ""}
    for run, top in sorted(tops.items()):
        if wanted and run != wanted:
            continue
        document = listing.documents[top + schema.RUN_FILE]
        if _created(document) is None or is_import(run) or not run.strip(".") or "/" in run:
            if not is_import(run):
                where = f"{source.label}/{top}{schema.RUN_FILE}"
                found.remarks.append(f"{where}: is of no run of haiprof, or cut off; left out")
            continue
        found.runs[run] = document
        found.parts += _parts(source, listing, run, top, found.remarks)
    return found


def _runs(listing: Listing) -> Iterator[str]:
    for path in listing.documents:
        if path.count("/") == 1 and path.endswith(f"/{schema.RUN_FILE}"):
            yield path


def _parts(
    source: Source, listing: Listing, run: str, top: str, remarks: list[str]
) -> Iterator[Part]:
    folders: dict[str, dict[str, File]] = {}
    for file in listing.files:
        folder, slash, name = file.path.removeprefix(top).partition("/")
        if file.path.startswith(top) and slash and "/" not in name and not is_import(folder):
            folders.setdefault(folder, {})[name] = file
    for folder, files in sorted(folders.items()):
        path = f"{top}{folder}/{schema.PROCESS_FILE}"
        document = listing.documents.get(path)
        told = None if document is None else _read(document, schema.PROCESS_FORMAT)
        if document is None or told is None or folder.startswith("."):
            # The document comes first; what has none holds nothing of ours, or not yet.
            if any(name.endswith((schema.LIVE_SUFFIX, schema.CLOSED_SUFFIX)) for name in files):
                remarks.append(
                    f"{source.label}/{path}: missing, cut off or not JSON; its folder is left out"
                )
            continue
        files = {name: file for name, file in sorted(files.items()) if _is_kept(name)}
        who = tuple(str(told.get(key)) for key in _WHO)
        node, live = told.get("role") == ROLE_NODE, told.get("state") == "live"
        yield Part(source, run, folder, who, node, live, document, files)


def _is_kept(name: str) -> bool:
    return (
        name != schema.PROCESS_FILE and not name.startswith(".") and not name.endswith(".partial")
    )


def chosen(parts: Iterable[Part]) -> list[Part]:
    """Of each process return the one that says most, as where sources overlap."""
    best: dict[tuple[str, Identity], Part] = {}
    for part in parts:
        key = part.run, part.who
        if key not in best or _says(part) > _says(best[key]):
            best[key] = part
    return list(best.values())


def _says(part: Part) -> tuple[bool, int]:
    return not part.live, part.size


def who_is(document: bytes) -> Identity | None:
    """Return whose ``process.json`` it is; None if it is none."""
    told = _read(document, schema.PROCESS_FORMAT)
    return None if told is None else tuple(str(told.get(key)) for key in _WHO)


def free_name(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken, as a recorder does: ``name``, ``name.2``, and so on.

    Raises:
        HaiprofError: there is none.
    """
    for n in range(1, _MOST_NAMES):
        one = name if n == 1 else f"{name}.{n}"
        if one not in taken:
            return one
    raise HaiprofError(f"{name}: too many folders have that name")


def earliest(documents: Iterable[bytes]) -> bytes:
    """Return the ``run.json`` of whoever began the run, however many have one."""
    return min(documents, key=lambda document: (_created(document) or 0, document))


def _created(document: bytes) -> int | None:
    made = (_read(document, schema.RUN_FORMAT) or {}).get("created_ns")
    return made if isinstance(made, int) else None


def _read(document: bytes, expected: str) -> Mapping[str, Any] | None:
    try:
        told = json.loads(document)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and told.get("format") == expected else None
