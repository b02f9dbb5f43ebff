"""What ``nsys stats --format csv`` wrote at a path: a process is the files of one report.

``--output P`` names the files ``P_cuda_gpu_trace.csv``, …; what was printed may be in a file of any
name, which is recognised by the names of columns.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from haiprof.sources import peek
from haiprof.sources.found import NSYS_CSV, Found, Source, is_url
from haiprof.sources.kineto.names import rank_in
from haiprof.sources.nsys_csv import reports

#: Files of ``--output``: the report's name, then the table's, in old versions without underscores.
_FILE: Final = re.compile(
    r"(?:(?P<report>.+?)_)?(?P<table>cuda_(?:gpu|api)\w*_(?:trace|sum)|nvtx_\w+_(?:trace|sum)"
    r"|gputrace|cudaapitrace|nvtxpptrace|gpukernsum|cudaapisum|nvtxsum)\.csv"
)


def find(path: str) -> Found | None:
    """Find what ``nsys stats`` wrote at ``path``; None if it wrote nothing there.

    Args:
        path: a file, which stands for all of its report, or a folder of them.
    """
    if is_url(path):
        return None
    place = Path(path)
    try:
        if place.is_dir():
            found = _in_folder(place)
            return Found(path, True, tuple(found)) if found else None
        if not reports.kinds(peek.head(place)):
            return None
        named = _FILE.fullmatch(place.name)
        if named is None:
            return Found(path, False, (_source(place, [place], None),))
        report = named["report"] or ""
        mine = [each for each in _in_folder(place.parent) if each.part == report]
        return Found(path, False, tuple(mine)) if mine else None
    except OSError:
        return None  # the last tool asked says why


def files_of(source: Source) -> list[Path]:
    """Return the files of a report."""
    place = Path(source.path)
    return [place] if source.part is None else _files(place).get(source.part, [])


def _in_folder(folder: Path) -> list[Source]:
    return [_source(folder, files, report) for report, files in sorted(_files(folder).items())]


def _files(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = defaultdict(list)
    with os.scandir(folder) as listed:
        paths = sorted(Path(each.path) for each in listed if each.is_file())
    for file in paths:
        named = _FILE.fullmatch(file.name)
        if named is not None and reports.kinds(peek.head(file)):
            found[named["report"] or ""].append(file)
    return found


def _source(place: Path, files: list[Path], report: str | None) -> Source:
    stats = [each.stat() for each in files]
    worker = (report if report is not None else place.stem) or "report"
    return Source(
        tool=NSYS_CSV,
        path=str(place),
        file=files[0].name,
        worker=worker,
        rank=rank_in(worker),
        host=None,
        span=1,
        bytes=sum(each.st_size for each in stats),
        mtime_ns=max(each.st_mtime_ns for each in stats),
        part=report,
    )
