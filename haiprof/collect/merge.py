"""Sorts the folders of the sources into runs, and names them in the merged run.

A run is identified by its name: all ranks of a job agree on one. A process is identified by the
machine, pid and times in its ``process.json``, whatever its folder is called: found twice it is
taken once, and two of one name (containers that share a host's) are both taken.

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

#: What identifies a process; none of it changes while it lives.
_WHO: Final = (
    "node", "host", "rank", "pid", "boot_id", "start_time", "created_ns", "started_ns",
)  # fmt: skip
#: How many folders may have one name before something else is wrong.
_MOST_NAMES: Final = 10_000
#: Suffix of what a recorder has not finished.
_PARTIAL: Final = ".partial"

Identity = tuple[str, ...]


@dataclass(slots=True)
class Part:
    """The folder of a process or a node, as a source has it.

    Attributes:
        source: where it is.
        run: its run's name.
        name: its own name there.
        who: the process.
        node: it is a node's.
        live: it is being recorded, or was never closed.
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
    """Content of a listing: processes, the ``run.json`` of each run, and problems."""

    parts: list[Part] = field(default_factory=list)
    runs: dict[str, bytes] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def contents(source: Source, listing: Listing, wanted: str) -> Contents:
    """Sort a listing into processes.

    Args:
        source: where it is from.
        listing: of a log directory, or of one run.
        wanted: the only run to use; empty: all.
    """
    found = Contents(remarks=[f"{source.label}: {listing.remark}"] if listing.remark else [])
    alone = schema.RUN_FILE in listing.documents
    tops = {"": ""} if alone else {p.split("/")[0]: p.split("/")[0] + "/" for p in _runs(listing)}
    if alone:
        run_document = _read(listing.documents[schema.RUN_FILE], schema.RUN_FORMAT) or {}
        tops = {str(run_document.get("run") or ""): ""}
    for run, top in sorted(tops.items()):
        if wanted and run != wanted:
            continue
        document = listing.documents[top + schema.RUN_FILE]
        if _created(document) is None or is_import(run) or not run.strip(".") or "/" in run:
            if not is_import(run):
                where = f"{source.label}/{top}{schema.RUN_FILE}"
                found.remarks.append(f"{where}: not from a haiprof run, or cut off; left out")
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
        parsed = None if document is None else _read(document, schema.PROCESS_FORMAT)
        if document is None or parsed is None or folder.startswith("."):
            # The document is written first; a folder without one is not ours, or is still empty.
            if any(name.endswith((schema.LIVE_SUFFIX, schema.CLOSED_SUFFIX)) for name in files):
                remarks.append(
                    f"{source.label}/{path}: missing, cut off or not JSON; its folder is left out"
                )
            continue
        files = {name: file for name, file in sorted(files.items()) if _is_kept(name)}
        who = tuple(str(parsed.get(key)) for key in _WHO)
        node, live = parsed.get("role") == ROLE_NODE, parsed.get("state") == "live"
        yield Part(source, run, folder, who, node, live, document, files)


def _is_kept(name: str) -> bool:
    return (
        name != schema.PROCESS_FILE and not name.startswith(".") and not name.endswith(".partial")
    )


def chosen(parts: Iterable[Part]) -> list[Part]:
    """Return the most complete part of each process, in case sources overlap."""
    best: dict[tuple[str, Identity], Part] = {}
    for part in parts:
        key = part.run, part.who
        if key not in best or _completeness(part) > _completeness(best[key]):
            best[key] = part
    return list(best.values())


def _completeness(part: Part) -> tuple[bool, int]:
    return not part.live, part.size


def who_is(document: bytes) -> Identity | None:
    """Return whose ``process.json`` this is; None if it is not one."""
    parsed = _read(document, schema.PROCESS_FORMAT)
    return None if parsed is None else tuple(str(parsed.get(key)) for key in _WHO)


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
    created = (_read(document, schema.RUN_FORMAT) or {}).get("created_ns")
    return created if isinstance(created, int) else None


def _read(document: bytes, expected: str) -> Mapping[str, Any] | None:
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and parsed.get("format") == expected else None
