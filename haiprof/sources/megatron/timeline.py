"""Reads the JSON of Megatron's tracer: what each rank did in each iteration, in ns.

The tracer measures only within an iteration. It waits for all ranks at both ends of one, so
iterations are placed one after the other, each as long as on the slowest rank.

Tests: tests/sources/megatron/test_megatron.py.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from haiprof.errors import HaiprofError
from haiprof.sources.imports.imported import whole
from haiprof.sources.megatron import merged
from haiprof.sources.megatron.find import place_of
from haiprof.sources.megatron.merged import rows_of
from haiprof.sources.megatron.place import Place

_ITERATION: Final = "iteration"
_NS_PER_US: Final = 1_000
_MOST_NS: Final = 1 << 62
_U32: Final = (1 << 32) - 1

SPANS: Final = {
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "name": pl.String(),
    "step": pl.UInt32(),
    "microbatch": pl.UInt32(),
    "stage": pl.UInt32(),
    "chunk": pl.UInt32(),
}
MARKS: Final = {"time": pl.Int64(), "text": pl.String(), "step": pl.UInt32()}
STEPS: Final = {"step": pl.UInt32(), "start": pl.Int64(), "duration": pl.Int64()}


class Event(NamedTuple):
    """One row of a timeline: ``phase`` is ``B``, ``E`` or ``i``."""

    name: str
    phase: str
    time: int
    iteration: int
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class Timeline:
    """What one rank did: frames of :data:`SPANS`, :data:`MARKS` and :data:`STEPS`."""

    spans: pl.DataFrame
    marks: pl.DataFrame
    steps: pl.DataFrame
    #: The rank's own account of its identity and position; None if missing.
    rank: int | None = None
    device: int | None = None
    #: Number of omitted rows, by reason.
    left_out: Counter[str] = field(default_factory=Counter)


class Iteration(NamedTuple):
    """One iteration in one rank's own file: ``pad`` ns after the last, ``duration`` ns long."""

    pad: int
    duration: int
    number: int
    #: Times count from its beginning.
    events: list[Event]


_reading = threading.Lock()


def of_all(path: str, mtime_ns: int) -> Mapping[str, Timeline]:
    """Read a timeline of all ranks: what each did, by its position in the groups.

    The last file read is cached, since each of its ranks is imported separately.

    Raises:
        HaiprofError: the file cannot be read, or is not a timeline.
    """
    with _reading:
        return _of_all(path, mtime_ns)


@functools.lru_cache(maxsize=1)
def _of_all(path: str, mtime_ns: int) -> Mapping[str, Timeline]:
    sizes = place_of(Path(path).name)
    events: dict[str, list[Event]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for row in rows_of(path):
        arguments = row.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        pid, tid = whole(row.get("pid")), whole(row.get("tid"))
        time = _ns(row.get("ts"), _NS_PER_US)
        if pid is None or tid is None or time is None:
            left_out["without a time, a pid or a tid"] += 1
            continue
        data, pipeline = divmod(pid, max(sizes.pipeline, 1))
        number = _small(arguments.get(_ITERATION)) or 0
        event = _event(row, time, number, arguments)
        events[str(Place(data, pipeline, tid))].append(event)
    timelines = {place: timeline(each, _pipeline(place)) for place, each in events.items()}
    for each in timelines.values():
        each.left_out += left_out
        left_out = Counter()  # reported once
    return timelines


def of_part(part: merged.Part) -> Timeline:
    """Return what one rank did, of a timeline without sizes in its name."""
    events = []
    for row in part.rows:
        arguments = row.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        time = _ns(row["ts"] + part.after, _NS_PER_US)
        assert time is not None, "was checked"
        number = _small(arguments.get(_ITERATION)) or 0
        events.append(_event(row, time, number, arguments))
    return timeline(events, part.place.pipeline)


def of_rank(path: str, begins: list[int] | None = None) -> Timeline:
    """Read the timeline that one rank wrote.

    Args:
        path: of the file.
        begins: when each iteration began, over all ranks; by default as in this one.

    Raises:
        HaiprofError: the file cannot be read, or is not a timeline.
    """
    left_out: Counter[str] = Counter()
    rows = rows_of(path)
    iterations = list(_iterations(rows, left_out))
    if begins is None:
        begins = _begins([[(each.pad, each.duration) for each in iterations]])
    events = [
        event._replace(time=begin + event.time)
        for begin, each in zip(begins, iterations, strict=False)
        for event in each.events
    ]
    rank_timeline = timeline(events, place_of(Path(path).name).pipeline)
    rank_timeline.left_out += left_out
    rank_timeline.rank = next(
        (rank for row in rows if (rank := _small(row.get("g_rk"))) is not None), None
    )
    rank_timeline.device = next(
        (number for row in rows if (number := whole(row.get("dev"))) is not None), 0
    )
    return rank_timeline


def begins(files: tuple[tuple[str, int], ...]) -> list[int]:
    """Return when each iteration began, ns from the first's, paced by the slowest rank.

    Args:
        files: path and time of writing of each rank's timeline; one that cannot be read is
            ignored.
    """
    with _reading:
        return _of_files(files)


@functools.lru_cache(maxsize=1)
def _of_files(files: tuple[tuple[str, int], ...]) -> list[int]:
    timelines = []
    for path, _ in files:
        try:
            read = _iterations(rows_of(path), Counter())
            timelines.append([(each.pad, each.duration) for each in read])
        except HaiprofError:  # reported when it is imported itself
            continue
    return _begins(timelines)


def _begins(ranks: list[list[tuple[int, int]]]) -> list[int]:
    starts, at = [], 0
    for number in range(max(map(len, ranks), default=0)):
        of_all = [rank[number] for rank in ranks if len(rank) > number]
        at += max(pad for pad, _ in of_all)
        starts.append(at)
        at += max(duration for _, duration in of_all)
    return starts


def timeline(events: Iterable[Event], stage: int) -> Timeline:
    """Turn one rank's events into intervals; an end closes the innermost open one of its name."""
    left_out: Counter[str] = Counter()
    opened: dict[str, list[Event]] = defaultdict(list)
    spans: list[tuple[Any, ...]] = []
    marks: list[tuple[int, str, int]] = []
    extent: dict[int, tuple[int, int]] = {}
    for event in events:
        low, high = extent.get(event.iteration, (event.time, event.time))
        extent[event.iteration] = min(low, event.time), max(high, event.time)
        if event.name == _ITERATION:
            continue
        if event.phase == "B":
            opened[event.name].append(event)
        elif event.phase == "E":
            if not opened[event.name] or event.time < opened[event.name][-1].time:
                left_out["that end what has not begun"] += 1
                continue
            begun = opened[event.name].pop()
            arguments = {**begun.arguments, **event.arguments}
            spans.append(
                (
                    begun.time,
                    event.time - begun.time,
                    event.name,
                    begun.iteration,
                    _small(arguments.get("microbatch")),
                    _first(_small(arguments.get("pp_rank")), _small(arguments.get("pp_rk")), stage),
                    _small(arguments.get("model_chunk")),
                )
            )
        elif event.phase in ("i", "I"):
            marks.append((event.time, event.name, event.iteration))
        else:
            left_out["of an unknown 'ph'"] += 1
    if unended := sum(map(len, opened.values())):
        left_out["that begin what does not end"] += unended
    return Timeline(
        pl.DataFrame(spans, schema=SPANS, orient="row"),
        pl.DataFrame(marks, schema=MARKS, orient="row"),
        pl.DataFrame(
            [(number, low, high - low) for number, (low, high) in sorted(extent.items())],
            schema=STEPS,
            orient="row",
        ),
        left_out=left_out,
    )


def _iterations(rows: list[dict[str, Any]], left_out: Counter[str]) -> Iterator[Iteration]:
    """Parse a rank's rows; those outside any iteration belong to an evaluation."""
    events: list[Event] | None = None
    pad = at = count = 0
    for row in rows:
        # Older versions give each row's time relative to the last row.
        delta = _ns(row.get("delta"), 1)
        is_iteration, phase = row.get("name") == _ITERATION, row.get("ph")
        if is_iteration and phase == "B":
            number = _small(row.get(_ITERATION))
            count = count + 1 if number is None else number
            pad = _first(_ns(row.get("pad_before"), 1), delta, 0)
            at = 0
            events = [_event(row, 0, count, row)]
            continue
        if events is None:
            left_out["outside of an iteration"] += 1
            continue
        at = _first(_ns(row.get("rel_ts"), 1), None if delta is None else at + delta, at)
        events.append(_event(row, at, count, row))
        if is_iteration and phase == "E":
            yield Iteration(pad, _first(_ns(row.get("duration_wall"), 1), at), count, events)
            events = None
    if events:
        left_out["of an iteration that does not end"] += len(events)


def _event(
    row: Mapping[str, Any], time: int, iteration: int, arguments: Mapping[str, Any]
) -> Event:
    return Event(_text(row.get("name", "")), _text(row.get("ph", "")), time, iteration, arguments)


def _text(value: Any) -> str:
    """Return a value as text that a table can store: JSON may contain lone surrogates."""
    return str(value).encode("utf-8", "replace").decode()


def _pipeline(place: str) -> int:
    return int(place.split("-")[3])


def _ns(value: Any, scale: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    nanoseconds = value * scale if isinstance(value, int) else round(value * scale)
    return nanoseconds if abs(nanoseconds) < _MOST_NS else None


def _small(value: Any) -> int | None:
    number = whole(value)
    return number if number is not None and number < _U32 else None


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
