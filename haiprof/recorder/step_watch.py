"""Sees that the steps of a job have become slower, or are as fast as before again.

Single steps say little: they have checkpoints and evaluations in them, and inputs of different
lengths. So neighbouring steps are one block, and of :data:`_ROW` blocks in a row only the median
counts. Steps have become slower when a row takes longer than the blocks before it, by more than
rows vary, and longer than any row of the last minutes; and when the row after it does, too. What
grows slowly, what ends soon, and what comes again and again is no change.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

#: A block has at least so many steps, and lasts at least so long, ns.
_STEPS: Final = 4
_BLOCK_NS: Final = 1_500_000_000
#: A step counts as this many times the median of its block at most.
_CLIP: Final = 3.0
#: Blocks of the first steps, which compile and fill caches.
_FIRST: Final = 5
#: Blocks whose median is looked at.
_ROW: Final = 5
#: Blocks that they are compared with: at least and at most.
_FEWEST: Final = 20
_MOST: Final = 200
#: Steps have changed if they take this many times as long, or as short. Of those that take a tenth
#: longer half would seem to take less than that.
_TIMES: Final = 1.08
#: … if they take longer, or less long, by this many standard deviations of a row, as medians
#: estimate them. For the row after it so large a part of that is enough: the first of two rows
#: that take longer is the one that by chance takes longest.
_DEVIATIONS_SLOWER: Final = 3.0
_DEVIATIONS_FASTER: Final = 4.0
_NEXT_ROW: Final = 0.5
_NORMAL: Final = 1.4826
#: Of the deviation of a block, that of a row at least: if blocks did not depend on each other.
_LIKE_A_ROW: Final = 0.56
#: … and take this many times as long as the slowest row that was seen before.
_BEYOND: Final = 1.03


class Steps(NamedTuple):
    """A block: when its first step began and its last one ended (ns UTC), and their mean, ns."""

    begin: int
    end: int
    mean: float


class Change(NamedTuple):
    """Steps take longer, or shorter, than before.

    Attributes:
        before: ns, of a step.
        after: ns, of a step.
        reference: when what it is compared with began, ns UTC.
        until_before: when that ended for certain, ns UTC.
        since: from when on steps take as long as after, ns UTC.
    """

    before: float
    after: float
    reference: int
    until_before: int
    since: int

    @property
    def slower(self) -> bool:
        """Whether steps take longer."""
        return self.after > self.before


class StepWatch:
    """Watches the steps of one process."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._begin = 0
        self._durations: list[int] = []
        self._skipped = 0
        #: Blocks since the last change, and the median of each row of them.
        self._level: deque[Steps] = deque(maxlen=_MOST)
        self._rows: deque[float] = deque(maxlen=_MOST)
        #: The same of before the last changes, too.
        self._seen: deque[float] = deque(maxlen=_MOST)
        #: The newest blocks, and those before them if they have changed.
        self._recent: list[Steps] = []
        self._changed: list[Steps] = []

    def add(self, steps: Iterable[tuple[int, int]]) -> Iterator[Change]:
        """Take new steps, in their order, and yield what has changed.

        Args:
            steps: when each began, ns UTC, and how long it took, ns.
        """
        for start, duration in steps:
            self._begin = self._begin or start
            self._durations.append(duration)
            if len(self._durations) < _STEPS or start + duration - self._begin < _BLOCK_NS:
                continue
            most = int(_CLIP * statistics.median(self._durations))
            mean = sum(min(each, most) for each in self._durations) / len(self._durations)
            block = Steps(self._begin, start + duration, mean)
            self._begin = 0
            self._durations.clear()
            if self._skipped < _FIRST:
                self._skipped += 1
            elif (change := self._look(block)) is not None:
                yield change

    def lasts(self, change: Change) -> bool:
        """Say whether the newest steps still take as long as after a change."""
        middle = (change.before + change.after) / 2
        return (_median(self._newest(_ROW)) > middle) is change.slower

    def latest(self) -> float:
        """Return how long the newest steps take, ns: of two rows the slower; inf: not known yet."""
        newest = self._newest(2 * _ROW)
        if len(newest) < 2 * _ROW:
            return math.inf
        return max(_median(newest[:_ROW]), _median(newest[_ROW:]))

    def _newest(self, count: int) -> list[Steps]:
        return [*self._level, *self._changed, *self._recent][-count:]

    def _look(self, block: Steps) -> Change | None:
        self._recent.append(block)
        if len(self._recent) < _ROW:
            return None
        change = None
        if self._changed:
            first = self._direction(self._changed)
            if first and self._direction(self._recent, _NEXT_ROW) == first:
                change = self._confirmed(first)
            else:
                self._keep([*self._changed, *self._recent])
            self._changed, self._recent = [], []
        elif len(self._level) >= _FEWEST and self._direction(self._recent):
            self._changed, self._recent = self._recent, []
        else:
            self._keep([self._recent.pop(0)])
        return change

    def _keep(self, blocks: Iterable[Steps]) -> None:
        for block in blocks:
            self._level.append(block)
            if len(self._level) >= _ROW:
                row = _median(list(self._level)[-_ROW:])
                self._rows.append(row)
                self._seen.append(row)

    def _confirmed(self, direction: int) -> Change:
        old, seen = list(self._level), [*self._changed, *self._recent]
        before, after = _median(old), _median(seen)
        is_new = [direction * (2 * block.mean - before - after) > 0 for block in seen]
        # Where the fewest blocks are on the wrong side: one may be slow for another reason.
        place = min(range(len(seen)), key=lambda n: sum(is_new[:n]) - sum(is_new[n:]) - n)
        self._level.clear()
        self._rows.clear()
        self._keep(seen[place:])
        # It changed within the block before that, or at its end.
        last = [*old, *seen[:place]][-1].begin
        after = _median(seen[place:])
        return Change(before, after, old[0].begin, last, seen[place].begin)

    def _direction(self, row: Sequence[Steps], part: float = 1.0) -> int:
        """Return 1 if the steps of a row take longer than those before, -1 if shorter, else 0.

        They must take longer by that part of the deviations.
        """
        usual, found = _median(self._level), _median(row)
        of_rows = statistics.median(abs(each - usual) for each in self._rows)
        # Few rows, which overlap, may be alike by chance.
        of_blocks = statistics.median(abs(each.mean - usual) for each in self._level)
        deviation = _NORMAL * max(of_rows, _LIKE_A_ROW * of_blocks)
        if found >= _TIMES * usual and found >= _BEYOND * max(self._seen):
            return int(found - usual >= part * _DEVIATIONS_SLOWER * deviation)
        # Of what is as fast as it once was that is the point.
        faster = found * _TIMES <= usual and found * _BEYOND <= min(self._rows)
        return -int(faster and usual - found >= _DEVIATIONS_FASTER * deviation)


def _median(blocks: Iterable[Steps]) -> float:
    return statistics.median(block.mean for block in blocks)
