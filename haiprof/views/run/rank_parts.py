"""The durations of the parts of steps of many ranks, stored compactly: a few bytes each.

Times and durations are int64 ns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times
from haiprof.views.run.step_parts import NEVER, PartTable

PARTS: Final = {
    "rank": pl.String(),
    "step": pl.Int64(),
    "part": pl.String(),
    "duration": pl.Int64(),
    "start": pl.Int64(),
    "end": pl.Int64(),
}
#: Beyond this product of steps and ranks, only some steps of each rank are stored.
_MOST_STEPS: Final = 600_000
_LEAST_STEPS: Final = 128
#: Ranks leave a part together if their ends differ by less than this share of their starts' spread.
_TOGETHER: Final = 0.5

Cube = npt.NDArray[np.float32]
Narrow = npt.NDArray[np.int32 | np.int64]


def most_steps(ranks: int) -> int:
    """Return how many steps are stored per rank, for this many ranks."""
    return max(_LEAST_STEPS, _MOST_STEPS // max(ranks, 1))


class PackedParts(NamedTuple):
    """A :class:`PartTable` in half of its memory or less, to the nanosecond.

    ``begin`` is when the first span of each step began, :data:`NEVER` if there is none; ``start``
    and ``end`` are ns since then, -1 and 0 if a part is no span. These and ``duration`` have 32
    bits where that is enough.
    """

    steps: Times
    names: list[str]
    duration: Narrow
    begin: Times
    start: Narrow
    end: Narrow


def packed(table: PartTable) -> PackedParts:
    """Return a table in little memory."""
    known = table.start != NEVER
    highest = np.iinfo(np.int64).max
    begin = np.where(known, table.start, highest).min(1, initial=highest)
    since = begin[:, None]
    return PackedParts(
        table.steps,
        [sys.intern(name) for name in table.names],  # of thousands of ranks
        _narrow(table.duration),
        np.where(begin == highest, NEVER, begin),
        _narrow(np.where(known, table.start - since, -1)),
        _narrow(np.where(known, table.end - since, 0)),
    )


def _narrow(values: Times) -> Narrow:
    limits = np.iinfo(np.int32)
    fits = not values.size or (limits.min <= values.min() and values.max() <= limits.max)
    return values.astype(np.int32) if fits else values


@dataclass(slots=True)
class _Rank:
    """The parts of the steps of one rank; ``columns`` are those of its parts, by name.

    Its arrays may be others', too: they are replaced, never changed.
    """

    parts: PackedParts
    columns: dict[str, int]

    def duration(self) -> Times:
        return self.parts.duration[:, list(self.columns.values())].astype(np.int64)

    def spans(self, columns: Sequence[int]) -> tuple[Times, Times]:
        """Return when these parts started and ended; :data:`NEVER` if they are no span."""
        start, begin = self.parts.start[:, columns], self.parts.begin[:, None]
        known = start >= 0
        return (
            np.where(known, begin + start, NEVER),
            np.where(known, begin + self.parts.end[:, columns], NEVER),
        )


class RankParts:
    """The parts of the steps of all ranks."""

    def __init__(self) -> None:
        """Start without any rank."""
        self._ranks: dict[str, _Rank] = {}

    def add(
        self, rank: str, parts: pl.DataFrame, clock: Callable[[Times], Times] | None = None
    ) -> None:
        """Add a rank.

        Args:
            rank: its label.
            parts: :data:`PARTS` except ``rank``, a row per step and part; ``start`` and ``end`` are
                those of its last span, null if it is no span.
            clock: converts its times to the common clock.
        """
        rows = parts.drop_nulls(["step", "part", "duration"])
        if not rows.height:
            return
        steps, row = np.unique(rows["step"].to_numpy(), return_inverse=True)
        names = rows["part"].unique().sort().to_list()
        number = rows["part"].replace_strict(names, range(len(names)), return_dtype=pl.Int64())
        column = number.to_numpy()
        table = PartTable(
            steps.astype(np.int64),
            names,
            np.zeros((len(steps), len(names)), np.int64),
            *(np.full((len(steps), len(names)), NEVER) for _ in range(2)),
        )
        table.duration[row, column] = rows["duration"].to_numpy()
        is_span = (rows["start"].is_not_null() & rows["end"].is_not_null()).to_numpy()
        for name, values in (("start", table.start), ("end", table.end)):
            values[row[is_span], column[is_span]] = rows[name].filter(is_span).to_numpy()
        self.add_packed(rank, packed(table), clock)

    def add_packed(
        self, rank: str, parts: PackedParts, clock: Callable[[Times], Times] | None = None
    ) -> None:
        """Add a rank, of which each step and part is known; as :meth:`add`."""
        if not len(parts.steps):
            return
        begin = parts.begin
        if clock is not None:  # which is the same within a step
            known = begin != NEVER
            begin = begin.copy()
            begin[known] = clock(begin[known])
        columns = {name: column for column, name in enumerate(parts.names)}
        self._ranks[rank] = _Rank(parts._replace(begin=begin), columns)

    @property
    def ranks(self) -> list[str]:
        """The ranks, in their order."""
        return sorted(self._ranks)

    @property
    def names(self) -> list[str]:
        """The parts that any rank has, in their order."""
        return sorted({name for each in self._ranks.values() for name in each.columns})

    def fold(self, name: str, into: str) -> None:
        """Merge ``name`` into ``into`` if a rank has not separated them; else drop ``name``."""
        everybody = all(name in each.columns for each in self._ranks.values())
        for each in self._ranks.values():
            if name not in each.columns:
                continue
            one = each.columns.pop(name)
            if everybody:
                continue
            if into not in each.columns:
                each.columns[into] = one
                continue
            _merge(each, one, each.columns[into])

    def shared_steps(self) -> Times:
        """Return the steps that all ranks have, in their order."""
        shared: Times | None = None
        for each in self._ranks.values():
            steps = each.parts.steps
            shared = steps if shared is None else np.intersect1d(shared, steps, True)
        return np.zeros(0, np.int64) if shared is None else shared

    def leave_waiting_out(self) -> None:
        """Subtract the time that ranks waited for each other in a part that they leave together.

        There, each waits until the last of them has begun it. If there is no such part, no waiting
        can be seen.
        """
        steps, found = self.shared_steps(), None
        gained = 0.0
        for name in self.names if len(self._ranks) > 1 else []:
            first, last, earliest, latest = self._met(name, steps)
            known = first != NEVER
            if not known.any():
                continue
            came = float(np.median((last - first)[known]))
            left = float(np.median((latest - earliest)[known]))
            if left < _TOGETHER * came and came - left > gained:
                found, gained = (name, np.where(known, last, NEVER)), came - left
        if found is None:
            return
        name, last = found
        for each in self._ranks.values():
            column = each.columns[name]
            rows = np.searchsorted(each.parts.steps, steps)
            every = each.parts.duration.astype(np.int64)
            duration = every[rows, column]
            begun = each.spans([column])[0][rows, 0]
            wait = np.clip(last - begun, 0, np.maximum(duration, 0))
            every[rows, column] = duration - np.where(last != NEVER, wait, 0)
            each.parts = each.parts._replace(duration=_narrow(every))

    def _met(self, name: str, steps: Times) -> tuple[Times, Times, Times, Times]:
        """Return when the first and the last rank began a part, and when they ended it.

        For steps in which not all ranks have it, never.
        """
        known = np.ones(len(steps), np.bool_)
        highest = np.iinfo(np.int64).max
        first, earliest = (np.full(len(steps), highest) for _ in range(2))
        last, latest = (np.full(len(steps), NEVER) for _ in range(2))
        for each in self._ranks.values():
            if name not in each.columns:
                known[:] = False
                break
            rows = np.searchsorted(each.parts.steps, steps)
            start, end = (times[rows, 0] for times in each.spans([each.columns[name]]))
            known &= start != NEVER
            first, last = np.minimum(first, start), np.maximum(last, start)
            earliest, latest = np.minimum(earliest, end), np.maximum(latest, end)
        for values in (first, last, earliest, latest):
            values[~known] = NEVER
        return first, last, earliest, latest

    def durations(self, width: int) -> Cube:
        """Return the mean duration of each rank, group of shared steps, and part.

        To a ten-millionth of it: there may be millions.
        """
        steps, names = self.shared_steps(), self.names
        edges = np.arange(0, len(steps), width)
        sizes = np.diff(np.append(edges, len(steps)))
        cube = np.zeros((len(self._ranks), len(edges), len(names)), np.float32)
        for number, rank in enumerate(self.ranks if len(edges) else ()):
            each = self._ranks[rank]
            rows = np.searchsorted(each.parts.steps, steps)
            sums = np.add.reduceat(each.duration()[rows], edges, 0) / sizes[:, None]
            cube[number][:, [names.index(name) for name in each.columns]] = sums
        return cube

    def spanned(self, rank: str, since: int | None, until: int | None) -> tuple[int, int, int]:
        """Return the start and end of a rank's spans in some of its steps, and their number."""
        each = self._ranks[rank]
        start, end = each.spans(list(each.columns.values()))
        known = start != NEVER
        if since is not None:
            known &= (each.parts.steps >= since)[:, None]
        if until is not None:
            known &= (each.parts.steps <= until)[:, None]
        if not known.any():
            return 0, 0, 0
        count = int(np.count_nonzero(known.any(1)))
        return int(start[known].min()), int(end[known].max()), count


def _merge(rank: _Rank, one: int, into: int) -> None:
    """Put a part of a rank's steps into another one."""
    parts = rank.parts
    duration = parts.duration.astype(np.int64)
    duration[:, into] += duration[:, one]
    # What is no span starts before all others, and would hide them.
    start, end = parts.start.copy(), parts.end.copy()
    a, b = start[:, one], start[:, into]
    start[:, into] = np.where((a < 0) | (b < 0), np.maximum(a, b), np.minimum(a, b))
    end[:, into] = np.maximum(end[:, one], end[:, into])
    rank.parts = parts._replace(duration=_narrow(duration), start=start, end=end)
