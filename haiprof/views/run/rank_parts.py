"""The durations of the parts of steps of many ranks, stored compactly: a few bytes each.

Times and durations are int64 ns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

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


def most_steps(ranks: int) -> int:
    """Return how many steps are stored per rank, for this many ranks."""
    return max(_LEAST_STEPS, _MOST_STEPS // max(ranks, 1))


@dataclass(slots=True)
class _Rank:
    """The steps of one rank in their order; a row of each array is a step, a column a part."""

    steps: Times
    names: list[str]
    duration: Times
    start: Times
    end: Times


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
        rank_steps = _Rank(
            steps.astype(np.int64),
            names,
            np.zeros((len(steps), len(names)), np.int64),
            *(np.full((len(steps), len(names)), NEVER) for _ in range(2)),
        )
        rank_steps.duration[row, column] = rows["duration"].to_numpy()
        is_span = (rows["start"].is_not_null() & rows["end"].is_not_null()).to_numpy()
        for name, values in (("start", rank_steps.start), ("end", rank_steps.end)):
            times = rows[name].filter(is_span).to_numpy()
            values[row[is_span], column[is_span]] = times if clock is None else clock(times)
        self._ranks[rank] = rank_steps

    def add_table(
        self, rank: str, table: PartTable, clock: Callable[[Times], Times] | None = None
    ) -> None:
        """Add a rank, of which each step and part is known; as :meth:`add`."""
        if not len(table.steps):
            return
        times = [table.start.copy(), table.end.copy()]
        if clock is not None:
            for each in times:
                is_span = each != NEVER
                each[is_span] = clock(each[is_span])
        self._ranks[rank] = _Rank(table.steps, list(table.names), table.duration.copy(), *times)

    @property
    def ranks(self) -> list[str]:
        """The ranks, in their order."""
        return sorted(self._ranks)

    @property
    def names(self) -> list[str]:
        """The parts that any rank has, in their order."""
        return sorted({name for each in self._ranks.values() for name in each.names})

    def fold(self, name: str, into: str) -> None:
        """Merge ``name`` into ``into`` if a rank has not separated them; else drop ``name``."""
        everybody = all(name in each.names for each in self._ranks.values())
        for each in self._ranks.values():
            if name not in each.names:
                continue
            one = each.names.index(name)
            if not everybody and into not in each.names:
                each.names[one] = into
                continue
            if not everybody:
                other = each.names.index(into)
                each.duration[:, other] += each.duration[:, one]
                for times, of_both in ((each.start, np.minimum), (each.end, np.maximum)):
                    a, b = times[:, one], times[:, other]
                    alone = (a == NEVER) | (b == NEVER)
                    times[:, other] = np.where(alone, np.maximum(a, b), of_both(a, b))
            del each.names[one]
            for column in ("duration", "start", "end"):
                setattr(each, column, np.delete(getattr(each, column), one, 1))

    def shared_steps(self) -> Times:
        """Return the steps that all ranks have, in their order."""
        shared: Times | None = None
        for each in self._ranks.values():
            shared = each.steps if shared is None else np.intersect1d(shared, each.steps, True)
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
            column = each.names.index(name)
            rows = np.searchsorted(each.steps, steps)
            duration = each.duration[rows, column]
            wait = np.clip(last - each.start[rows, column], 0, np.maximum(duration, 0))
            each.duration[rows, column] = duration - np.where(last != NEVER, wait, 0)

    def _met(self, name: str, steps: Times) -> tuple[Times, Times, Times, Times]:
        """Return when the first and the last rank began a part, and when they ended it.

        For steps in which not all ranks have it, never.
        """
        known = np.ones(len(steps), np.bool_)
        highest = np.iinfo(np.int64).max
        first, earliest = (np.full(len(steps), highest) for _ in range(2))
        last, latest = (np.full(len(steps), NEVER) for _ in range(2))
        for each in self._ranks.values():
            if name not in each.names:
                known[:] = False
                break
            column = each.names.index(name)
            rows = np.searchsorted(each.steps, steps)
            start, end = each.start[rows, column], each.end[rows, column]
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
            rows = np.searchsorted(each.steps, steps)
            sums = np.add.reduceat(each.duration[rows], edges, 0) / sizes[:, None]
            cube[number][:, [names.index(name) for name in each.names]] = sums
        return cube

    def spanned(self, rank: str, since: int | None, until: int | None) -> tuple[int, int, int]:
        """Return the start and end of a rank's spans in some of its steps, and their number."""
        each = self._ranks[rank]
        known = each.start != NEVER
        if since is not None:
            known &= (each.steps >= since)[:, None]
        if until is not None:
            known &= (each.steps <= until)[:, None]
        if not known.any():
            return 0, 0, 0
        count = int(np.count_nonzero(known.any(1)))
        return int(each.start[known].min()), int(each.end[known].max()), count
