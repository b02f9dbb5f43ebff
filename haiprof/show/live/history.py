"""The stored history of one watched process: steps and phases by the second, newest samples.

It takes the same memory however long the process runs.

Tests: tests/show/test_live.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from haiprof import schema
from haiprof.sources.follow import NO_TEXT, Part
from haiprof.views.intervals import Times, covered_per_group, self_times

#: How far back step times are kept, s.
TREND_SECONDS: Final = 300
#: The period of means and shares, s.
MEAN_SECONDS: Final = 60
#: Name of the part of steps that no phase covers, and of user ranges beyond :data:`_MOST_NAMES`.
OTHER: Final = "other"
SMALLER: Final = "more ranges"
_SMALLER, _OTHER = 0, 1
_MOST_NAMES: Final = 64
#: Number of phases waiting for the end of their step; if steps never end, the newest.
_MOST_WAITING: Final = 1 << 16
#: A value that is older than the newest of its process by this much, s, has expired.
_STALE: Final = 90.0
#: A start and an end this close, ns, are the same instant.
_ROUNDED: Final = 1_000
_NS: Final = 1_000_000_000


class _Spans(NamedTuple):
    """Phases and user ranges as parallel arrays; ``name`` indexes the names of the history."""

    start: Times
    end: Times
    thread: Times
    name: Times
    #: 1 for a phase, 0 for a user range.
    is_phase: Times

    def where(self, chosen: npt.NDArray[np.bool_]) -> _Spans:
        return _Spans(*(values[chosen] for values in self))


def _joined(parts: list[_Spans]) -> _Spans:
    return _Spans(*(np.concatenate(values) for values in zip(*parts, strict=True)))


class StepHistory:
    """Step times of the last minutes and how the steps of the last minute were spent, in ns."""

    def __init__(self) -> None:
        """Start without a step."""
        #: End of the newest step (ns UTC), how long it took (ns), its number; None without one.
        self.ended: int | None = None
        self.last: int | None = None
        self.number: int | None = None
        self._trains = False
        self._second = 0
        self._steps = np.zeros(TREND_SECONDS, np.int64)
        self._ns = np.zeros(TREND_SECONDS, np.int64)
        self._names = [SMALLER, OTHER]
        self._by_name = np.zeros((2, MEAN_SECONDS), np.int64)
        self._waiting: list[_Spans] = []

    def add(self, part: Part) -> None:
        """Add rows of ``spans``."""
        columns, texts = part.columns, part.texts
        kinds = texts["category"]
        of_steps = self._of_steps(columns["category"], kinds)
        of_phases = _is(columns["category"], kinds, "phase")
        named = of_phases | _is(columns["category"], kinds, "user")
        start = columns["start"]
        duration = np.maximum(columns["duration"], 0)
        if named.any():
            self._waiting.append(
                _Spans(
                    start[named],
                    (start + duration)[named],
                    columns["thread"][named],
                    self._codes(columns["name"][named], texts["name"]),
                    of_phases[named].astype(np.int64),
                )
            )
        if of_steps.any():
            order = np.argsort(start[of_steps], kind="stable")
            low = start[of_steps][order]
            took = duration[of_steps][order]
            newest = int(np.argmax(low + took))
            self._add_steps(low, low + took)
            if self.ended is None or int(low[newest] + took[newest]) >= self.ended:
                self.ended = int(low[newest] + took[newest])
                self.last = int(took[newest])
                number = int(columns["step"][of_steps][order][newest])
                self.number = number % schema.INFERENCE if number >= 0 else None
        elif sum(len(spans.start) for spans in self._waiting) > _MOST_WAITING:
            self._waiting = [_Spans(*(v[-_MOST_WAITING:] for v in _joined(self._waiting)))]

    def _of_steps(self, column: Times, kinds: list[str]) -> npt.NDArray[np.bool_]:
        """Say which spans are steps: those of inference only as long as the process trains none."""
        of_steps = _is(column, kinds, "step")
        if not of_steps.any():
            return of_steps if self._trains else _is(column, kinds, "inference_step")
        if not self._trains:
            self._trains = True
            self._steps[:] = 0
            self._ns[:] = 0
            self._by_name[:] = 0
            self.ended = None
        return of_steps

    def _codes(self, indices: Times, texts: list[str]) -> Times:
        used, where = np.unique(indices, return_inverse=True)
        codes = []
        for index in used.tolist():
            name = texts[index] if index != NO_TEXT else ""
            if name not in self._names and len(self._names) < _MOST_NAMES:
                self._names.append(name)
            codes.append(self._names.index(name) if name in self._names else _SMALLER)
        new = len(self._names) - len(self._by_name)
        if new:
            self._by_name = np.pad(self._by_name, ((0, new), (0, 0)))
        return np.array(codes, np.int64)[where]

    def _add_steps(self, low: Times, high: Times) -> None:
        second = high // _NS
        self._advance(int(second.max()))
        kept = second > self._second - TREND_SECONDS
        np.add.at(self._steps, second[kept] % TREND_SECONDS, 1)
        np.add.at(self._ns, second[kept] % TREND_SECONDS, (high - low)[kept])
        if not self._waiting:
            self._spend(second, np.full(len(low), _OTHER), high - low)
            return
        waiting = _joined(self._waiting)
        # Time after the last step belongs to the next one, whose start may be rounded.
        later = (waiting.start >= high[-1] - _ROUNDED) & (waiting.end > high[-1])
        self._waiting = [waiting.where(later)] if later.any() else []
        self._split(waiting.where(~later), low, high, second)

    def _split(self, spans: _Spans, low: Times, high: Times, second: Times) -> None:
        """Divide the steps as :func:`haiprof.views.run.steps.parts` does."""
        own = np.zeros(len(spans.start), np.int64)
        lane = spans.thread * 2 + spans.is_phase
        for key in np.unique(lane):
            rows = np.flatnonzero(lane == key)
            own[rows] = self_times(spans.start[rows], spans.end[rows])
        step = np.searchsorted(low, spans.start, side="right") - 1
        inside = (step >= 0) & (spans.start < high[step])
        phase = spans.is_phase == 1
        has_phase = np.zeros(len(low), bool)
        has_phase[step[inside & phase]] = True
        counts = inside & (phase | ~has_phase[step])
        step = step[counts]
        self._spend(second[step], spans.name[counts], own[counts])
        covered = covered_per_group(step, spans.start[counts], spans.end[counts], low, high)
        self._spend(second, np.full(len(low), _OTHER), high - low - covered)

    def _spend(self, second: Times, name: Times, ns: Times) -> None:
        kept = second > self._second - MEAN_SECONDS
        np.add.at(self._by_name, (name[kept], second[kept] % MEAN_SECONDS), ns[kept])

    def _advance(self, second: int) -> None:
        gone = min(second - self._second, TREND_SECONDS)
        if gone <= 0:
            return
        places = np.arange(second - gone + 1, second + 1)
        self._steps[places % TREND_SECONDS] = 0
        self._ns[places % TREND_SECONDS] = 0
        self._by_name[:, places % MEAN_SECONDS] = 0
        self._second = second

    def by_second(self, now: int) -> tuple[Times, Times]:
        """Return how many steps ended in each of the last seconds, and how long they took (ns).

        Args:
            now: ns UTC; its second is the last of :data:`TREND_SECONDS`.
        """
        self._advance(now // _NS)
        places = np.arange(self._second - TREND_SECONDS + 1, self._second + 1) % TREND_SECONDS
        return self._steps[places], self._ns[places]

    def mean(self, now: int) -> float | None:
        """Return the mean duration (ns) of the steps that ended in the last minute.

        If the job's steps take longer than that, the last one's; None without a step.
        """
        steps, ns = self.by_second(now)
        count = int(steps[-MEAN_SECONDS:].sum())
        if count:
            return int(ns[-MEAN_SECONDS:].sum()) / count
        return None if self.last is None else float(self.last)

    def spent(self, now: int) -> dict[str, int]:
        """Return how the steps that ended in the last minute were spent: name to ns."""
        self._advance(now // _NS)
        sums = self._by_name.sum(axis=1).tolist()
        return {name: ns for name, ns in zip(self._names, sums, strict=True) if ns > 0}


def _is(indices: Times, texts: list[str], text: str) -> npt.NDArray[np.bool_]:
    return np.equal(indices, texts.index(text) if text in texts else NO_TEXT - 1)


class Values:
    """The newest value of each metric and instance."""

    def __init__(self) -> None:
        """Start without a value."""
        #: Time of the newest sample, ns UTC.
        self.newest = 0
        self._values: dict[str, dict[str, tuple[int, float]]] = {}

    def add(self, part: Part) -> None:
        """Add rows of ``samples``; per-CPU rows are dropped in favour of the node's."""
        columns, texts = part.columns, part.texts
        metric, instance = columns["metric"], columns["instance"]
        if not len(metric):
            return
        # The last of each: rows of one file are in the order of time.
        keys = (metric << 32) + instance + 1
        _, first = np.unique(keys[::-1], return_index=True)
        rows = len(keys) - 1 - first
        times, values = columns["time"], columns["value"]
        for row in rows.tolist():
            index = int(instance[row])
            name = texts["instance"][index] if index != NO_TEXT else ""
            if metric[row] == NO_TEXT:
                continue
            what = texts["metric"][int(metric[row])]
            if name.startswith("cpu") and what.startswith("cpu."):
                continue
            known = self._values.setdefault(what, {})
            known[name] = int(times[row]), float(values[row])
        self.newest = max(self.newest, int(times.max()))

    def of(self, metric: str) -> dict[str, float]:
        """Return the newest value of each instance; empty if there is no such metric."""
        oldest = self.newest - _STALE * _NS
        found = self._values.get(metric, {})
        return {name: value for name, (at, value) in found.items() if at >= oldest}

    def one(self, metric: str) -> float | None:
        """Return the newest value of a metric without instances."""
        return self.of(metric).get("")
