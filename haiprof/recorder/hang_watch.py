"""Sees that ranks of this node stand for too long, and says so once for each hang.

Only how far they and their communication have come is looked at, in the rings, every few seconds.
Once one has stood for long, and for longer than this job did before, a process of its own says why
(:mod:`haiprof.recorder.hang_look`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from haiprof.common.advance import LEAVES, Standing
from haiprof.common.hang_files import Hang, hang_of
from haiprof.recorder.hang_look import Look

log = logging.getLogger(__name__)

#: How often the rings are looked at at least, s; as long apart are two looks at who is to blame.
_EVERY_S: Final = 10.0
#: A wait is no hang before it is this many times as long as the longest that has ended.
_LONGER: Final = 2.0
#: Stacks are looked at again when a wait has become this many times as long.
_AGAIN: Final = 1.3
#: For how many times as long the same ranks have to be missing at the start of a job.
_LATE: Final = 5.0
#: What stands for a job of which no rank has begun, in place of a pid, and its only wait.
_NOBODY: Final = 0
_START: Final = "start"


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

    def standing(self) -> Standing | None:
        """Return for how long it has got no further; None: not known, or it has ended."""


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
    #: How long such ones have lasted that have ended, s, at most.
    longest: float
    #: Before it has lasted this long it is not looked at (again), s.
    due: float = 0.0


class _Stands(NamedTuple):
    """That a process gets no further; ``number`` as in :class:`Standing`."""

    number: int


_LEAVES: Final = _Stands(LEAVES)


def _is_standing(key: Hashable) -> bool:
    return isinstance(key, _Stands)


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
        #: Of waits, and of standing, how long the longest has lasted that has ended, s.
        self._longest = {False: 0.0, True: 0.0}
        #: Whether what has started the ranks runs.
        self._launched = False
        #: Ranks that have been seen to wait, or to get further.
        self._begun: set[int] = set()
        #: Since when no rank has begun, s; None: one has.
        self._unbegun: float | None = None
        #: Ranks that seem to be missing at the start: which hang that would be, and since when, s.
        self._missing: tuple[tuple[int, ...], float] | None = None
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
        self._launched = command is not None
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

    def _lasts(self, wait: _Wait) -> bool:
        """Say whether a wait is longer than any that is no hang."""
        return wait.age >= max(self._hang_after, _LONGER * wait.longest)

    def _is_due(self) -> bool:
        return any(self._lasts(wait) and wait.age >= wait.due for wait in self._all())

    def _read(self, ranks: Sequence[Ranked]) -> None:
        before, self._waits = self._waits, {}
        for rank in ranks:
            ages, standing = None, None
            with contextlib.suppress(OSError, ValueError):
                ages, standing = rank.waits(), rank.standing()
            if ages is None and standing is None:
                continue
            waits = {key: _Wait(age, 0.0) for key, age in (ages or {}).items()}
            earlier = before.get(rank.pid, {})
            if standing is not None:
                stands = _Wait(standing.age_s, standing.longest_s)
                waits[_Stands(standing.number)] = stands
            # One that records no more has ended its waits together with everything.
            ended = {k: w.age for k, w in earlier.items() if ages is not None and k not in waits}
            for key, age in ended.items():
                self._longest[_is_standing(key)] = max(self._longest[_is_standing(key)], age)
            self._waits[rank.pid] = waits
        for waits in self._waits.values():
            for key, wait in waits.items():
                wait.longest = max(wait.longest, self._longest[_is_standing(key)])
        self._look_at_start(launched=self._launched or bool(ranks))
        for pid, waits in self._waits.items():
            for key in waits.keys() & before.get(pid, {}).keys():
                waits[key].due = before[pid][key].due
        self._look_at_ongoing()

    def _look_at_start(self, *, launched: bool) -> None:
        """Count how long a job has run in which no rank has begun."""
        self._begun = {pid for pid, waits in self._waits.items() if waits or pid in self._begun}
        if self._begun or not launched:
            self._unbegun = self._missing = None
        elif self._unbegun is None:
            self._unbegun = self._clock()
        if launched:
            start = self._unbegun
            self._waits[_NOBODY] = {}
            if start is not None:
                self._waits[_NOBODY][_START] = _Wait(self._clock() - start, 0.0)

    def _look_at_ongoing(self) -> None:
        ongoing = self._ongoing
        if ongoing is None:
            return
        # One that leaves meanwhile has ended its waits together with everything.
        left = [
            (pid, key) for pid, key in ongoing.waits
            if pid in self._waits and (key in self._waits[pid] or _LEAVES not in self._waits[pid])
        ]  # fmt: skip
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
            self._missing = None
            return
        hang = hang_of(found, time.time_ns())
        self._read(ranks)  # meanwhile they may have gone on
        if hang.kind == "rendezvous" and not self._stays_missing(hang):
            return
        # A rank that keeps nobody waiting stands itself.
        standing = hang.waiting or hang.ranks
        pids = [rank.pid for rank in ranks if (rank.rank or 0) in standing]
        if self._unbegun is not None:
            pids = [_NOBODY]
        waits = [(pid, *longest) for pid in pids if (longest := self._longest_of(pid))]
        ages = [wait.age for *_, wait in waits]
        if not ages or len(ages) < len(pids) or min(ages) < self._hang_after:
            return
        if not any(self._lasts(wait) for *_, wait in waits):
            return
        since = self._clock() - max(ages)
        self._ongoing = _Ongoing([(pid, key) for pid, key, _ in waits], since)
        self._on_hang(hang, found)

    def _stays_missing(self, hang: Hang) -> bool:
        """Say whether the same ranks are missing at the start for longer than any is late."""
        if self._missing is None or self._missing[0] != hang.ranks:
            self._missing = hang.ranks, self._clock()
        return self._clock() - self._missing[1] >= _LATE * self._hang_after

    def _longest_of(self, pid: int) -> tuple[Hashable, _Wait] | None:
        """Return in which communication a process waits for longest, or else that it stands."""
        waits = self._waits.get(pid, {})
        return max(
            waits.items(),
            key=lambda each: (not _is_standing(each[0]), each[1].age),
            default=None,
        )
