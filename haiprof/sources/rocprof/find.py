"""What rocprofv3 wrote at a path: a process is a ``*_results.json``, or CSV files of one prefix.

rocprofv3 names its files ``<prefix>_results.json`` and ``<prefix>_kernel_trace.csv``, …; by default
the prefix is the process's number, in a folder named after the host.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from haiprof.sources import peek
from haiprof.sources.found import ROCPROF, Found, Source, is_url
from haiprof.sources.kineto.names import take_apart

#: CSV files that are read: any of them makes a process; the agents alone do not.
FILES: Final = re.compile(
    r"(?:(?P<prefix>.+)_)?(?P<what>(kernel|memory_copy|hip_api|hsa_api|rccl_api|marker_api)_trace"
    r"|agent_info)\.csv"
)
_AGENTS: Final = "agent_info"
_JSON: Final = re.compile(r"(?P<prefix>.+?)_results\.json(\.gz)?")
_MEMBER: Final = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')


def find(path: str) -> Found | None:
    """Find what rocprofv3 wrote at ``path``; None if it wrote nothing there.

    Args:
        path: a result as JSON, one of a process's CSV files, or a folder of either.
    """
    if is_url(path):
        return None
    place = Path(path)
    try:
        if place.is_dir():
            sources = _in_folder(place)
            return Found(path, True, tuple(sources)) if sources else None
        if FILES.fullmatch(place.name) and place.is_file():
            process = _prefix(place.name)
            mine = [each for each in _in_folder(place.parent, json=False) if each.part == process]
            return Found(path, False, tuple(mine)) if mine else None
        if is_result(place):
            return Found(path, False, (_source(place, [place], None),))
    except OSError:
        pass  # the last tool asked says why
    return None


def is_result(file: Path) -> bool:
    """Say whether a file begins as a result in JSON."""
    return _MEMBER.match(peek.head(file)) is not None


def files_of(source: Source) -> dict[str, Path]:
    """Return the CSV files of a process, by what they have: ``kernel_trace``, …."""
    folder = Path(source.path)
    found = ((each, FILES.fullmatch(each.name)) for each in sorted(folder.iterdir()))
    return {
        match["what"]: each
        for each, match in found
        if match is not None and (match["prefix"] or "") == source.part and each.is_file()
    }


def _in_folder(folder: Path, *, json: bool = True) -> list[Source]:
    with os.scandir(folder) as listed:
        files = sorted(Path(each.path) for each in listed if each.is_file())
    processes: dict[str, list[Path]] = defaultdict(list)
    sources = []
    for file in files:
        result = _JSON.fullmatch(file.name)
        if json and result is not None and is_result(file):
            sources.append(_source(file, [file], None))
        elif FILES.fullmatch(file.name):
            processes[_prefix(file.name)].append(file)
    # The same process in both forms is read once: JSON has more.
    known = {_JSON.fullmatch(Path(each.path).name) for each in sources}
    there = {match["prefix"] for match in known if match is not None}
    for prefix, mine in processes.items():
        traced = any(not each.name.endswith(f"{_AGENTS}.csv") for each in mine)
        if traced and prefix not in there:
            sources.append(_source(folder, mine, prefix))
    return sources


def _prefix(name: str) -> str:
    found = FILES.fullmatch(name)
    assert found is not None
    return found["prefix"] or ""


def _source(place: Path, files: list[Path], prefix: str | None) -> Source:
    stats = [each.stat() for each in files]
    named = _JSON.fullmatch(place.name)
    worker = prefix if prefix is not None else named["prefix"] if named else place.stem
    name = take_apart(worker or "trace")
    # A process's number is no rank.
    rank = None if worker and worker.isdecimal() else name.rank
    return Source(
        tool=ROCPROF,
        path=str(place),
        file=files[0].name,
        worker=worker or "trace",
        rank=rank,
        host=None,
        span=1,
        bytes=sum(each.st_size for each in stats),
        mtime_ns=max(each.st_mtime_ns for each in stats),
        part=prefix,
    )
