"""Timelines of Megatron's tracer at a path: one per rank, or one aggregated from all ranks.

Each rank writes ``benchmark-data-D-pipeline-P-tensor-T.json``, where the numbers are its positions
in its groups. The aggregation writes ``data-D-pipeline-P-tensor-T-….json`` with ``aggregated`` in
the name, where the numbers are the sizes of the groups, so the name says how many ranks it has. A
file of another name is recognised by its first event (:mod:`haiprof.sources.megatron.merged`).

Tests: tests/sources/megatron/test_megatron.py.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from haiprof.errors import HaiprofError
from haiprof.sources.found import MEGATRON, Found, Source, is_url
from haiprof.sources.megatron import merged
from haiprof.sources.megatron.place import Place

_NUMBERS: Final = r"data-(\d{1,6})-pipeline-(\d{1,6})-tensor-(\d{1,6})"
_OF_RANK: Final = re.compile(rf"benchmark-{_NUMBERS}\.json")
_OF_ALL: Final = re.compile(rf"(?:.*-)?{_NUMBERS}.*aggregated.*\.json")
_MOST_RANKS: Final = 1 << 17


def find(path: str) -> Found | None:
    """Find the timelines at ``path``; None if there are none.

    Args:
        path: a timeline, or a folder of them.

    Raises:
        HaiprofError: a timeline is behind a URL, a folder contains several runs or cannot be read.
    """
    if is_url(path):
        if _is_timeline(path.rsplit("/", 1)[-1]):
            raise HaiprofError(
                f"{path}: timelines of Megatron are read from disk only: copy it, and give the copy"
            )
        return None
    place = Path(path)
    if _is_timeline(place.name) and place.is_file():
        if _OF_RANK.fullmatch(place.name):
            # Of the rank's groups only its membership is known here.
            return Found(path, False, (_of_rank(place, None),))
        return Found(path, False, _of_all(place))
    if place.is_file():
        return _of_merged(path, place) if merged.is_merged(place) else None
    if not place.is_dir():
        return None
    try:
        with os.scandir(place) as listed:
            names = [each.name for each in listed if _is_timeline(each.name) and each.is_file()]
    except OSError as error:
        raise HaiprofError(
            f"{path}: cannot be read ({error.strerror}): ask its owner for access"
        ) from None
    # The aggregate adds nothing to the ranks' own files, and has microseconds only.
    ranks = sorted(name for name in names if _OF_RANK.fullmatch(name))
    if ranks:
        sizes = Place(*(1 + max(numbers) for numbers in zip(*map(place_of, ranks), strict=True)))
        return Found(path, True, tuple(_of_rank(place / name, sizes) for name in ranks))
    if len(names) > 1:
        raise HaiprofError(
            f"{path}: contains {len(names)} timelines of Megatron: {', '.join(sorted(names)[:10])}"
            f"{' and more' if len(names) > 10 else ''}: give one of them"
        )
    return Found(path, True, _of_all(place / names[0])) if names else None


def _of_merged(path: str, file: Path) -> Found:
    parts = merged.parts(str(file), file.stat().st_mtime_ns)
    if not parts:
        raise HaiprofError(
            f"{path}: no event has a time, a pid and a tid: give a timeline of Megatron's tracer"
        )
    sources = tuple(
        replace(_source(file, str(part.place), part.rank, name), span=part.run)
        for name, part in parts.items()
    )
    runs = max(part.run for part in parts.values())
    several = (
        f"{path}: contains {runs} runs: they are sessions, one after the other, and pipeline() "
        "shows the first; give each run's own timeline"
    )
    return Found(path, False, sources, (several,) if runs > 1 else ())


def place_of(name: str) -> Place:
    """Return the numbers in the name of a timeline."""
    found = _OF_RANK.fullmatch(name) or _OF_ALL.fullmatch(name)
    assert found is not None
    return Place(*map(int, found.groups()))


def is_of_rank(name: str) -> bool:
    """Say whether a timeline of this name was written by one rank."""
    return _OF_RANK.fullmatch(name) is not None


def is_sized(name: str) -> bool:
    """Say whether a timeline of this name has the sizes of the groups in it."""
    return _OF_ALL.fullmatch(name) is not None


def _is_timeline(name: str) -> bool:
    return is_of_rank(name) or is_sized(name)


def _of_rank(file: Path, sizes: Place | None) -> Source:
    place = place_of(file.name)
    return _source(file, str(place), place.rank(sizes) if sizes is not None else None, None)


def _of_all(file: Path) -> tuple[Source, ...]:
    sizes = place_of(file.name)
    if not 0 < sizes.data * sizes.pipeline * sizes.tensor <= _MOST_RANKS:
        raise HaiprofError(
            f"{file}: has the sizes of no job in its name ({sizes}): give it the name it had"
        )
    places = (
        Place(data, pipeline, tensor)
        for pipeline in range(sizes.pipeline)
        for data in range(sizes.data)
        for tensor in range(sizes.tensor)
    )
    return tuple(_source(file, str(place), place.rank(sizes), str(place)) for place in places)


def _source(file: Path, worker: str, rank: int | None, part: str | None) -> Source:
    status = file.stat()
    return Source(
        tool=MEGATRON,
        path=str(file),
        file=file.name,
        worker=worker,
        rank=rank,
        host=None,
        span=1,
        bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        part=part,
    )
