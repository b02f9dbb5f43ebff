"""The trace files at a path: which belong to one run, to which worker, and in which order.

Grouped as the TensorBoard plugin does: the files of one folder are one run, the part of a file name
before the time is its worker, and several files of a worker are its spans (profiling sessions),
numbered from 1 in the order of time.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof.common.choices import near_path
from haiprof.common.owned_files import Folder
from haiprof.errors import HaiprofError
from haiprof.sources.found import KINETO, Found, Source, is_url
from haiprof.sources.kineto.names import Name, is_handlers, may_be_trace, take_apart
from haiprof.sources.kineto.stream import filesystem
from haiprof.sources.own import is_import

_OURS: Final = (schema.RUN_FILE, schema.PROCESS_FILE)
#: At most this many folders are named when one must be chosen.
_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    file: str
    bytes: int
    mtime_ns: int


def find(path: str) -> Found | None:
    """Find the traces at ``path``; None if it is a folder without any, itself and one level down.

    Args:
        path: a trace file, a folder of them, a run of haiprof with deep traces, or a URL of fsspec
            of a file or a folder.

    Raises:
        HaiprofError: there is nothing, it cannot be read, or several runs lie in the folder.
    """
    if is_url(path):
        return _find_at_url(path)
    place = Path(path)
    try:
        if (place / schema.RUN_FILE).is_file() and (in_run := find_in_run(place)) is not None:
            return in_run
        if not place.is_dir():
            found = place.stat()
            entry = _Entry(path, place.name, found.st_size, found.st_mtime_ns)
            return Found(path, False, _spans([entry]))
        entries = _entries(place)
    except FileNotFoundError:
        hint = near_path(path) or "give a run, a trace, or a folder of traces"
        raise HaiprofError(f"{path}: no such file or folder: {hint}") from None
    except OSError as error:
        raise HaiprofError(
            f"{path}: cannot be read ({error.strerror}): ask its owner for access"
        ) from None
    if entries:
        return _run(path, entries)
    _refuse_several(place)
    return None


def find_in_run(run: Path) -> Found | None:
    """Find the deep traces of a run that haiprof recorded, in the folder of each process.

    Args:
        run: the run's folder. It contains the trace of a process that had no folder yet.

    Returns:
        None if there are none. A folder that cannot be read counts as empty.
    """
    entries = []
    for folder in (run, *sorted(run.glob("*#*"))):
        with contextlib.suppress(OSError):
            here = Folder.at(folder)
            entries += [
                entry
                for entry in _entries(folder)
                # A target of someone else's symbolic link is not part of this run.
                if is_handlers(entry.file)
                and (not here.is_link(entry.file) or here.is_trusted(entry.file))
            ]
    return _run(str(run), entries) if entries else None


def _entries(folder: Path) -> list[_Entry]:
    entries = []
    with os.scandir(folder) as listed:
        for each in listed:
            # An unreadable one is reported when it is to be read.
            if may_be_trace(each.name) and each.name not in _OURS and not _is_other(each):
                entries.append(_Entry(each.path, each.name, *_size_and_time(each)))
    return _chosen(entries)


def _is_other(entry: os.DirEntry[str]) -> bool:
    """Say whether it is a folder, a pipe or the like: opening a pipe would block."""
    with contextlib.suppress(OSError):
        return not stat.S_ISREG(entry.stat().st_mode)
    return False


def _size_and_time(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        found = entry.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _chosen(entries: list[_Entry]) -> list[_Entry]:
    """Of traces beside other JSON, keep those that torch's handler named."""
    named = [entry for entry in entries if is_handlers(entry.file)]
    return sorted(named or entries, key=lambda entry: entry.file)


def _run(path: str, entries: list[_Entry]) -> Found:
    kept: dict[Name, _Entry] = {}
    problems = []
    for entry in entries:
        name = take_apart(entry.file)
        known = kept.setdefault(name, entry)
        if known is not entry:
            problems.append(
                f"{entry.path}: left out, since it is the same trace as {known.file} by its name: "
                "rename one of them"
            )
    return Found(path, True, _spans(list(kept.values())), tuple(problems))


def _spans(entries: list[_Entry]) -> tuple[Source, ...]:
    workers: dict[str, list[tuple[Name, _Entry]]] = defaultdict(list)
    for entry in entries:
        name = take_apart(entry.file)
        workers[name.worker].append((name, entry))
    sources = []
    for spans in workers.values():
        spans.sort(key=lambda span: span[0].stamp or 0)
        for number, (name, entry) in enumerate(spans, 1):
            sources.append(
                Source(
                    tool=KINETO,
                    path=entry.path,
                    file=entry.file,
                    worker=name.worker,
                    rank=name.rank,
                    host=name.host,
                    span=number,
                    bytes=entry.bytes,
                    mtime_ns=entry.mtime_ns,
                )
            )
    return tuple(sources)


def _refuse_several(folder: Path) -> None:
    """Name the runs below a folder without traces of its own."""
    runs = []
    with os.scandir(folder) as listed:
        for each in sorted(listed, key=lambda each: each.name):
            if is_import(each.name) or each.name.startswith(".") or not each.is_dir():
                continue
            try:
                count = len(_entries(Path(each.path)))
            except OSError:
                continue
            if count:
                runs.append(f"{each.name} ({count} trace{'s' if count > 1 else ''})")
    if runs:
        more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
        raise HaiprofError(
            f"{folder}: has no traces of its own, but folders with some: "
            f"{', '.join(runs[:_NAMED])}{more}: give one of them"
        )


def _find_at_url(url: str) -> Found:
    files = filesystem(url)
    try:
        if not files.isdir(url):
            entry = _entry_at_url(url, files.info(url))
            return Found(url, False, _spans([entry]))
        listed = files.ls(url, detail=True)
    except FileNotFoundError:
        raise HaiprofError(f"{url}: there is no such file: give a trace or its folder") from None
    except Exception as error:  # each file system of fsspec has its own
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HaiprofError(f"{url}: cannot be read: {said}") from None
    entries = []
    for info in listed:
        name = str(info["name"]).rstrip("/").rsplit("/", 1)[-1]
        if info.get("type") == "file" and may_be_trace(name):
            entries.append(_entry_at_url(f"{url.rstrip('/')}/{name}", info))
    if not entries:
        raise HaiprofError(f"{url}: no traces (*.json) in it: give a trace or the folder of some")
    return _run(url, _chosen(entries))


def _entry_at_url(url: str, info: dict[str, Any]) -> _Entry:
    size = info.get("size")
    return _Entry(url, url.rsplit("/", 1)[-1], size if isinstance(size, int) else 0, 0)
