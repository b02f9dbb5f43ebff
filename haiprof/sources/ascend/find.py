"""What torch_npu and msprof wrote at a path: folders of processes, and databases.

torch_npu writes one folder per process, ``<host>_<pid>_<time>_ascend_pt``, with the analysis in its
``ASCEND_PROFILER_OUTPUT``; msprof writes ``PROF_<number>_<time>_<word>`` with
``mindstudio_profiler_output``. A folder of either is one run. A timeline alone, under any name (as
``export_chrome_trace`` of torch_npu writes it, or ``….pt.trace.json``), is recognised by how it
begins. What other tools derived from a
cluster (``cluster_analysis_output``) is not a source.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from haiprof.errors import HaiprofError
from haiprof.sources import peek
from haiprof.sources.ascend import words
from haiprof.sources.found import ASCEND, Found, Source, is_url
from haiprof.sources.kineto.names import take_apart

_OUTPUTS: Final = (words.OF_TORCH, words.OF_MSPROF)
_OF_TORCH: Final = re.compile(
    r"(?P<worker>(?P<host>.+)_(?P<pid>\d+))_(?P<stamp>\d{14,20})_ascend_(pt|ms)"
)
_OF_MSPROF: Final = re.compile(r"PROF_(?P<number>\d+)_(?P<stamp>\d{14,20})_\w+")
_SUFFIX: Final = re.compile(r"_ascend_(pt|ms)$")
_RANK: Final = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d{1,9})", re.IGNORECASE)
#: torch.profiler writes times as numbers.
_TEXT_TIME: Final = re.compile(rb'"ts"\s*:\s*"\d+\.?\d*"')
_LAYER: Final = re.compile(rb'"name"\s*:\s*"(Ascend Hardware|CANN)"')
_INFO: Final = re.compile(r"profiler_info(?:_(\d{1,9}))?\.json")
DATABASE: Final = re.compile(r"(ascend_pytorch_profiler(?:_(?P<rank>\d{1,9}))?|msprof_\d+)\.db")
#: Files that are read of a process: any of these makes an analysis.
FILES: Final = re.compile(
    r"(trace_view|communication)\.json|msprof_(slice_)?\d[\w-]*\.json"
    r"|(kernel_details|operator_memory|memory_record|op_summary|task_time|aicpu|step_trace)"
    r"(_(slice_)?\d[\w-]*)?\.csv"
)


def find(path: str) -> Found | None:
    """Find what torch_npu or msprof wrote at ``path``; None if they wrote nothing there.

    Args:
        path: a folder of processes, one of them, its analysis, a file in that, or a database.

    Raises:
        HaiprofError: processes were recorded there, but none is analysed yet; or it is a URL of
            their files.
    """
    if is_url(path):
        _refuse_url(path)
        return None
    place = Path(path)
    try:
        if place.is_file():
            return _of_file(place)
        if not place.is_dir():
            return None
        own = _process(place, path)
        if own is not None:
            return Found(path, True, (own,))
        return _of_folder(place, path)
    except OSError:
        return None  # the next reader says why


def _refuse_url(url: str) -> None:
    parts = url.rstrip("/").split("/")
    if any(_may_be(part) or part in _OUTPUTS for part in parts) or DATABASE.fullmatch(parts[-1]):
        raise HaiprofError(
            f"{url}: is of torch_npu or msprof, which are read from a local disk: copy it there "
            "(URLs are read of torch.profiler only)"
        )


def _of_file(file: Path) -> Found | None:
    if DATABASE.fullmatch(file.name):
        return Found(str(file), False, (_source(file, [file]),))
    folder = file.absolute().parent
    if folder.name in _OUTPUTS and FILES.fullmatch(file.name):
        own = _process(folder, str(folder))
        return Found(str(folder), True, (own,)) if own is not None else None
    if is_timeline(peek.head(file)):
        return Found(str(file), False, (_of_timeline(file),))
    return None


def is_timeline(head: bytes) -> bool:
    """Say whether a file that begins like this is a timeline: a list, whose times are texts."""
    if not head.lstrip().startswith(b"["):
        return False
    return _TEXT_TIME.search(head) is not None or _LAYER.search(head) is not None


def _of_timeline(file: Path) -> Source:
    status = file.stat()
    name = take_apart(file.name)
    return Source(
        tool=ASCEND,
        path=str(file),
        file=file.name,
        worker=name.worker,
        rank=name.rank,
        host=name.host,
        span=1,
        bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
    )


def _of_folder(place: Path, path: str) -> Found | None:
    with os.scandir(place) as listed:
        folders = sorted(each.path for each in listed if _may_be(each.name) and each.is_dir())
        lone = sorted(each.path for each in os.scandir(place) if DATABASE.fullmatch(each.name))
    sources, waiting = [], []
    for folder in folders:
        found = _process(Path(folder), folder)
        if found is not None:
            sources.append(found)
        else:
            waiting.append(Path(folder).name)
    sources += [_source(Path(file), [Path(file)]) for file in lone]
    if not sources:
        if waiting:
            raise HaiprofError(_not_analysed(path, waiting))
        return None
    problems = () if not waiting else (f"{_not_analysed(path, waiting)}: left out",)
    return Found(path, True, tuple(_numbered(sources)), problems)


def _not_analysed(path: str, names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"{path}: {names[0]}{more} is recorded but not analysed: run "
        "torch_npu.profiler.profiler.analyse (of msprof: msprof --export=on) on it first"
    )


def _may_be(name: str) -> bool:
    return _SUFFIX.search(name) is not None or _OF_MSPROF.fullmatch(name) is not None


def _process(folder: Path, path: str) -> Source | None:
    """Return the process that this folder, or this analysis, belongs to."""
    analysis = folder if folder.absolute().name in _OUTPUTS else None
    if analysis is None:
        candidates = [folder / name for name in _OUTPUTS]
        if _SUFFIX.search(folder.absolute().name):
            candidates += sorted(folder.glob(f"PROF_*/{words.OF_MSPROF}"))
        analysis = next((each for each in candidates if each.is_dir()), None)
        if analysis is None:
            return _database_of(folder) if _may_be(folder.absolute().name) else None
    files = [each for each in sorted(analysis.iterdir()) if FILES.fullmatch(each.name)]
    return _source(analysis, files) if files else _database_of(analysis)


def _database_of(folder: Path) -> Source | None:
    found = sorted(each for each in folder.iterdir() if DATABASE.fullmatch(each.name))
    return _source(found[0], found[:1]) if found else None


def recorded(place: Path) -> Path:
    """Return the folder of the process that an analysis, or a database, belongs to."""
    place = place.absolute()
    parents = [each for each in (place, *place.parents[:3]) if each.name not in _OUTPUTS]
    named = [each for each in parents if _may_be(each.name)]
    of_torch = [each for each in named if _SUFFIX.search(each.name)]
    return (of_torch or named or ([place] if place.is_file() else parents))[0]


def _source(place: Path, files: list[Path]) -> Source:
    folder = recorded(place)
    name = folder.name
    torch = _OF_TORCH.fullmatch(name)
    stats = [each.stat() for each in files]
    return Source(
        tool=ASCEND,
        path=str(place),
        file=name,
        worker=torch["worker"] if torch else _SUFFIX.sub("", name),
        rank=_rank(folder, place),
        host=torch["host"] if torch else None,
        span=1,
        bytes=sum(each.st_size for each in stats),
        mtime_ns=max(each.st_mtime_ns for each in stats),
    )


def _rank(folder: Path, place: Path) -> int | None:
    """Return the rank in the names of files."""
    database = DATABASE.fullmatch(place.name)
    if database and database["rank"]:
        return int(database["rank"])
    if folder.is_dir():
        for each in sorted(folder.iterdir()):
            found = _INFO.fullmatch(each.name)
            if found and found[1]:
                return int(found[1])
    found = _RANK.search(folder.name)
    return int(found[1]) if found else None


def _numbered(sources: list[Source]) -> Iterator[Source]:
    """Number the profiling sessions of each process."""
    workers: dict[tuple[str, int | None], list[Source]] = defaultdict(list)
    for source in sources:
        workers[source.worker, source.rank].append(source)
    for spans in workers.values():
        spans.sort(key=lambda source: source.file)
        for number, source in enumerate(spans, 1):
            yield replace(source, span=number)
