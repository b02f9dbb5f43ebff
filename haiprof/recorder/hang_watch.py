"""Sees that ranks of this node wait for another one for too long, and says so once for each hang.

Only how far their communication has come is looked at, in the rings, every few seconds. Once ranks
have waited for long, and for longer than this job's waits take, a process of its own says why
(:mod:`haiprof.recorder.hang_look`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from haiprof.common.hang_files import Hang, hang_of
from haiprof.recorder.hang_look import Look

log = logging.getLogger(__name__)

#: How often the rings are looked at at least, s; as long apart are two looks at who is to blame.
_EVERY_S: Final = 10.0
#: A wait is no hang before it is this many times as long as the longest that has ended.
_LONGER: Final = 2.0
#: Stacks are looked at again when a wait has become this many times as long.
_AGAIN: Final = 1.3


class Ranked(Protocol):
    """A recorded process, as far as it matters here."""

    @property
    def pid(self) -> int:
        """Its pid."""

    @property
    def rank(self) -> int | None:
        """Its number in the job."""

    def waits(self) -> Mapping[Hashable, float] | None:
        """Return for how long, s, it has waited in each communication; None: it has ended."""


class Looking(Protocol):
    """What finds out why ranks wait; see :class:`haiprof.recorder.hang_look.Look`."""

    def over(self) -> bool:
        """Say whether it has ended."""

    def answer(self) -> dict[str, Any] | None:
        """Return why the job hangs."""

    def end(self) -> None:
        """End it."""


@dataclass(slots=True)
class _Wait:
    #: For how long it lasts, s.
    age: float
    #: Before it has lasted this long it is not looked at (again), s.
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class _Ongoing:
    """A hang that was reported."""

    #: What it is made of: processes, each with the communication that it waits in.
    waits: Sequence[tuple[int, Hashable]]
    #: When these began, s.
    since: float


class HangWatch:
    """Watches the ranks of one run on this node."""

    def __init__(
        self,
        run: str,
        hang_after: float,
        *,
        on_hang: Callable[[Hang, dict[str, Any]], None],
        on_end: Callable[[str, float], None],
        look: Callable[[str, Sequence[int], float, float], Looking] = Look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to watch.

        Args:
            run: its name.
            hang_after: what lasts less is no hang, s; 0: nothing is.
            on_hang: called with each hang, and as it is written.
            on_end: called when its ranks wait no longer, with a sentence, and how long they had
                waited, s.
            look: begins to find out why ranks wait.
            clock: returns the time, s.
        """
        self._run, self._hang_after = run, hang_after
        self._on_hang, self._on_end, self._begin, self._clock = on_hang, on_end, look, clock
        self._every = min(_EVERY_S, hang_after / 2)
        self._due = 0.0
        self._waits: dict[int, dict[Hashable, _Wait]] = {}
        #: The longest wait that has ended, s.
        self._longest = 0.0
        self._look: Looking | None = None
        self._ongoing: _Ongoing | None = None

    def turn(self, ranks: Sequence[Ranked], command: int | None) -> None:
        """Look at the ranks if it is time to.

        Args:
            ranks: those that are recorded here.
            command: the pid of what has started them, if that is known.
        """
        if not self._hang_after:
            return
        if self._look is not None and self._look.over():
            look, self._look = self._look, None
            self._report(look, ranks)
        if self._clock() < self._due:
            return
        self._due = self._clock() + self._every
        self._read(ranks)
        if self._look is None and self._ongoing is None and self._is_due():
            # Whoever waits for an evaluation to end is not looked at all along.
            for wait in self._all():
                if wait.age >= self._hang_after:
                    wait.due = wait.age * _AGAIN
            pids = [*([] if command is None else [command]), *(each.pid for each in ranks)]
            try:
                self._look = self._begin(self._run, pids, self._hang_after, self._every)
            except OSError as error:
                log.error("why ranks wait is not known: %s", error)

    def end(self) -> None:
        """Watch no longer."""
        if self._look is not None:
            self._look.end()
            self._look = None

    def _all(self) -> Iterable[_Wait]:
        return (wait for waits in self._waits.values() for wait in waits.values())

    @property
    def _least(self) -> float:
        """What lasts less is no hang, s."""
        return max(self._hang_after, _LONGER * self._longest)

    def _is_due(self) -> bool:
        return any(wait.age >= max(self._least, wait.due) for wait in self._all())

    def _read(self, ranks: Sequence[Ranked]) -> None:
        before, self._waits = self._waits, {}
        for rank in ranks:
            ages = None
            with contextlib.suppress(OSError, ValueError):
                ages = rank.waits()
            if ages is None:
                continue
            earlier = before.get(rank.pid, {})
            ended = [wait.age for key, wait in earlier.items() if key not in ages]
            self._longest = max([self._longest, *ended])
            self._waits[rank.pid] = {
                key: _Wait(age, earlier[key].due if key in earlier else 0.0)
                for key, age in ages.items()
            }
        self._look_at_ongoing()

    def _look_at_ongoing(self) -> None:
        ongoing = self._ongoing
        if ongoing is None:
            return
        left = [(pid, key) for pid, key in ongoing.waits if pid in self._waits]
        lasted = self._clock() - ongoing.since
        if not left:
            self._ongoing = None
            self._on_end(f"the ranks that waited have ended, after {lasted:.0f} s", lasted)
        elif any(key not in self._waits[pid] for pid, key in left):
            self._ongoing = None
            self._on_end(f"the job goes on after {lasted:.0f} s", lasted)

    def _report(self, look: Looking, ranks: Sequence[Ranked]) -> None:
        try:
            found = look.answer()
        except ValueError as error:
            log.error("why ranks wait is not known: what looks at their stacks %s", error)
            return
        if found is None:
            return
        hang = hang_of(found, time.time_ns())
        self._read(ranks)  # meanwhile they may have gone on
        waiting = [rank.pid for rank in ranks if rank.rank in hang.waiting]
        waits = [(pid, *self._longest_of(pid)) for pid in waiting]
        ages = [age for *_, age in waits]
        if not ages or min(ages) < self._hang_after or max(ages) < self._least:
            return
        since = self._clock() - max(ages)
        self._ongoing = _Ongoing([(pid, key) for pid, key, _ in waits], since)
        self._on_hang(hang, found)

    def _longest_of(self, pid: int) -> tuple[Hashable, float]:
        """Return what a process waits in for longest, and for how long, s; 0: in nothing."""
        ages = {key: wait.age for key, wait in self._waits.get(pid, {}).items()}
        return max(ages.items(), key=lambda each: each[1], default=(None, 0.0))
