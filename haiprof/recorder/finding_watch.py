"""Decides when what costs a running job time is looked for, and what of it is certain.

Two reasons to look: steps have become slower (:mod:`haiprof.recorder.step_watch`), and some time
has passed. Why steps are slower is said if they still are after some time, for which evidence is
gathered; what else costs time, if two looks find it. A look takes a second or two of a core: the
more it takes, and the fewer ranks there are, the longer until the next one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from haiprof.common.live_findings import Found
from haiprof.common.numbers import milliseconds
from haiprof.recorder.finding_look import Look
from haiprof.recorder.step_watch import Change, StepWatch

log = logging.getLogger(__name__)

#: Of a core, for each rank: what looks may take in the long run. To watch the steps takes 0.0003.
_SHARE: Final = 0.0007
#: The last so many seconds are looked at, the first time when training has lasted that long.
_WINDOW_S: Final = 60.0
#: How often steps are looked at, s.
_EVERY_S: Final = 1.0
#: For how long evidence is gathered once steps have become slower, s.
EVIDENCE_S: Final = 20.0
#: Between two looks for one reason on average, s; and so many for slower steps may follow each
#: other at once: what a noisy minute seems to change hides no real change after it.
_BETWEEN_S: Final = 300.0
_AT_ONCE: Final = 3
#: Steps are as fast again as they were if they take this many times as long.
_BACK: Final = 1.05
_NS: Final = 1_000_000_000


class Ranked(Protocol):
    """A recorded process, as far as it matters here."""

    @property
    def pid(self) -> int:
        """Its pid."""

    @property
    def rank(self) -> int | None:
        """Its number in the job."""

    def steps(self) -> list[tuple[int, int]]:
        """Return its new steps: when each began, ns UTC, and how long it took, ns."""


class Looking(Protocol):
    """What finds out what costs time; see :class:`haiprof.recorder.finding_look.Look`."""

    #: CPU time that it took, s.
    cost: float

    def over(self) -> bool:
        """Say whether it has ended."""

    def answer(self) -> list[Found]:
        """Return what it found."""

    def end(self) -> None:
        """End it."""


class Ongoing(NamedTuple):
    """A finding that was reported and holds.

    Attributes:
        found: what it says.
        since_ns: since when it holds, ns UTC.
        before: ns of a step before steps became slower; None: it is not about that.
    """

    found: Found
    since_ns: int
    before: float | None


class FindingWatch:
    """Watches the ranks of one run on this node."""

    def __init__(
        self,
        run: Path,
        node: str,
        *,
        on_finding: Callable[[Ongoing], None],
        on_end: Callable[[Ongoing, str], None],
        on_slower: Callable[[], None],
        look: Callable[[Path, str, Sequence[tuple[int, int]]], Looking] = Look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to watch.

        Args:
            run: its folder.
            node: name of this node.
            on_finding: called with each finding.
            on_end: called when one holds no longer, with a sentence.
            on_slower: called when steps have become slower: evidence of :data:`EVIDENCE_S` is used.
            look: begins to find out what costs time in a window, or after a change.
            clock: returns the time, s.
        """
        self._run, self._node = run, node
        self._on_finding, self._on_end, self._on_slower = on_finding, on_end, on_slower
        self._begin, self._clock = look, clock
        self._due = 0.0
        #: Whose steps are followed: ranks that train together take equally long.
        self._followed: int | None = None
        self._watch = StepWatch()
        self._first_ns = self._newest_ns = 0
        #: When the last looks at what has changed were asked for, s.
        self._changes: deque[float] = deque(maxlen=_AT_ONCE)
        #: From when on, s, to look at the last minute.
        self._next = 0.0
        self._slower: Change | None = None
        self._look: Looking | None = None
        #: What is looked at: a change or a minute, and when that began, ns UTC.
        self._asked: Change | None = None
        self._asked_ns = 0
        self._ongoing: list[Ongoing] = []
        #: What the last look at a minute found, and since when.
        self._seen: dict[tuple[str, tuple[int, ...]], int] = {}
        self._problem = ""

    def turn(self, ranks: Sequence[Ranked]) -> None:
        """Look at the ranks if it is time to.

        Args:
            ranks: those that are recorded here.
        """
        if self._look is not None and self._look.over():
            look, self._look = self._look, None
            self._report(look, len(ranks))
        now = self._clock()
        if now < self._due:
            return
        self._due = now + _EVERY_S
        for change in self._watch.add(self._steps(ranks)):
            self._changed(change)
        self._end_of_slower()
        if self._look is not None:
            return
        newest, window = self._newest_ns, int(_WINDOW_S * _NS)
        if self._slower is not None:
            change, self._slower = self._slower, None
            before = max(change.reference, change.until_before - window), change.until_before
            self._ask(before, (change.since, newest + int(EVIDENCE_S * _NS)), change=change)
        elif now >= self._next and newest - self._first_ns >= window:
            self._ask((newest - window, newest))

    def end(self) -> None:
        """Watch no longer."""
        if self._look is not None:
            self._look.end()
            self._look = None

    def _steps(self, ranks: Sequence[Ranked]) -> list[tuple[int, int]]:
        """Return the new steps of the first rank that has any."""
        ranks = sorted(ranks, key=lambda one: one.rank or 0)
        if all(rank.pid != self._followed for rank in ranks):
            self._followed = None
        for rank in ranks:
            if self._followed not in (None, rank.pid) or not (steps := rank.steps()):
                continue
            if self._followed is None:
                self._follow(rank.pid, steps[0][0])
            self._newest_ns = sum(steps[-1])
            return steps
        return []

    def _follow(self, pid: int, first_ns: int) -> None:
        for one in self._ongoing:
            self._on_end(one, "the process whose steps were followed has ended")
        self._ongoing, self._seen = [], {}
        self._followed, self._watch, self._first_ns = pid, StepWatch(), first_ns
        self._slower = None

    def _changed(self, change: Change) -> None:
        if not change.slower:
            return
        now, few = self._clock(), len(self._changes) < _AT_ONCE
        if few or now - self._changes[0] >= _AT_ONCE * _BETWEEN_S:
            self._changes.append(now)
            self._slower = change
            self._on_slower()

    def _end_of_slower(self) -> None:
        """Report what made steps slower that are as fast as before again.

        That is no change as :class:`StepWatch` sees them: after a short slow-down too few steps
        were slow to compare with.
        """
        for one in list(self._ongoing):
            if one.before is not None and (latest := self._watch.latest()) <= _BACK * one.before:
                self._ongoing.remove(one)
                self._on_end(one, f"steps take {milliseconds(latest)}, as before")

    def _ask(self, *windows: tuple[int, int], change: Change | None = None) -> None:
        self._asked, self._asked_ns = change, windows[-1][0]
        # Should that fail, not at once again.
        self._next = self._clock() + _BETWEEN_S
        try:
            self._look = self._begin(self._run, self._node, windows)
        except OSError as error:
            self._say_problem(str(error))

    def _say_problem(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            log.error("what costs the job time is not known: %s", text)

    def _report(self, look: Looking, ranks: int) -> None:
        self._next = self._clock() + look.cost / (_SHARE * max(ranks, 1))
        try:
            found = look.answer()
        except ValueError as error:
            self._say_problem(f"what looks for it {error}")
            return
        if self._asked is not None:
            for one in found[:1] if self._watch.lasts(self._asked) else ():
                self._begins(Ongoing(one, self._asked.since, self._asked.before))
            return
        before, self._seen = self._seen, {}
        for one in found:
            self._seen[one.key] = before.get(one.key, self._asked_ns)
            if one.key in before:
                self._begins(Ongoing(one, before[one.key], None))
        for holds in list(self._ongoing):
            key = holds.found.key
            if holds.before is None and key not in self._seen and key not in before:
                self._ongoing.remove(holds)
                self._on_end(holds, "it costs no longer as much")

    def _begins(self, one: Ongoing) -> None:
        if all(holds.found.key != one.found.key for holds in self._ongoing):
            self._ongoing.append(one)
            self._on_finding(one)
