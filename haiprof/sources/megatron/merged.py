"""A timeline without sizes in its name: of one run, or of several that were put into one file.

Megatron's tools put aggregated timelines of several runs one after the other into one list, to be
looked at side by side. Each run is sorted by time, so another begins where the time falls back. A
``pid`` counts the stages of each replica in turn; the stages are those that events name, and the
``tid`` is the rank in the tensor group.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from haiprof.errors import HaiprofError
from haiprof.sources import peek
from haiprof.sources.imports.imported import whole
from haiprof.sources.megatron.place import Place

Row = dict[str, Any]
#: More processes than that are no job.
_MOST: Final = 1 << 17
_FAR_US: Final = 1 << 50
_reading = threading.Lock()


@dataclass(slots=True)
class Part:
    """One rank in one of the runs, which are numbered from 1; ``after`` is in the time of rows."""

    run: int
    place: Place
    rank: int
    #: How much later than the first run this one begins, so that runs follow each other.
    after: float
    rows: list[Row] = field(default_factory=list)


def is_merged(path: str | Path) -> bool:
    """Say whether a file's first event is one of Megatron's tracer."""
    event = peek.first_event(peek.head(path))
    if event is None or "cat" in event or event.get("ph") not in ("B", "E", "i"):
        return False
    arguments = event.get("args")
    return isinstance(arguments, dict) and whole(arguments.get("iteration")) is not None


def parts(path: str, mtime_ns: int) -> Mapping[str, Part]:
    """Read such a file: its parts, by name. The last file read is cached.

    Raises:
        HaiprofError: the file cannot be read, or is not a timeline.
    """
    with _reading:
        return _parts(path, mtime_ns)


@functools.lru_cache(maxsize=1)
def _parts(path: str, mtime_ns: int) -> Mapping[str, Part]:
    found: dict[str, Part] = {}
    after = 0.0
    for number, rows in enumerate(_runs(rows_of(path)), 1):
        stages = 1 + max((_stage(row) or 0 for row in rows), default=0)
        threads = sorted({row["tid"] for row in rows})
        mine: dict[tuple[int, int], list[Row]] = {}
        for row in rows:
            mine.setdefault((row["pid"], row["tid"]), []).append(row)
        if len(found) + len(mine) > _MOST:
            raise HaiprofError(f"{path}: has more than {_MOST} processes: give a smaller timeline")
        replicas = 1 + max(row["pid"] for row in rows) // stages
        sizes = Place(replicas, stages, len(threads))
        for (process, thread), of_rank in sorted(mine.items()):
            data, pipeline = divmod(process, stages)
            place = Place(data, pipeline, threads.index(thread))
            part = Part(number, place, place.rank(sizes), after, of_rank)
            found[f"run {number}, {place}"] = part
        after += max(row["ts"] for row in rows)
    return found


def rows_of(path: str) -> list[Row]:
    """Return the events of a timeline.

    Raises:
        HaiprofError: the file cannot be read, or is not a timeline.
    """
    try:
        document = peek.document(path)
    except OSError as error:
        raise HaiprofError(
            f"{path}: cannot be read ({error.strerror}): ask its owner for access"
        ) from None
    if isinstance(document, dict):
        document = document.get("traceEvents")
    if not isinstance(document, list):
        raise HaiprofError(f"{path}: is not a list of events: give a timeline of Megatron's tracer")
    return [row for row in document if isinstance(row, dict)]


def _runs(rows: Iterable[Row]) -> Iterable[list[Row]]:
    """Divide the events where their time falls back; those without a time or a place are none."""
    run: list[Row] = []
    for row in rows:
        if not _is_placed(row):
            continue
        if run and row["ts"] < run[-1]["ts"]:
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def _is_placed(row: Row) -> bool:
    time, process, thread = row.get("ts"), whole(row.get("pid")), whole(row.get("tid"))
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not abs(time) < _FAR_US:
        return False
    return None not in (process, thread) and max(process or 0, thread or 0) < _MOST


def _stage(row: Row) -> int | None:
    arguments = row.get("args")
    stage = whole(arguments.get("pp_rank")) if isinstance(arguments, dict) else None
    return stage if stage is not None and stage < _MOST else None
