"""When ranks that wait are looked at, and what is said: with rings and looks that are made up."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest

from haiprof.common.advance import LEAVES, Standing
from haiprof.common.hang_files import Hang
from haiprof.recorder.hang_watch import HangWatch

HANG: dict[str, Any] = {
    "kind": "rank_never_arrived", "problem": "Rank 1 never came to all_reduce number 4; it sleeps",
    "advice": "look", "ranks": [1], "waiting": [0], "lasts_s": 64.0, "culprits": [],
}  # fmt: skip


class Rank:
    """A rank, and what it waits in since when."""

    def __init__(self, clock: Clock, number: int) -> None:
        self.pid, self.rank, self._clock = 100 + number, number, clock
        self.since: dict[Hashable, float] = {}
        self.looks = 0
        self.fails: Exception | None = None
        self.over = False
        self.leaves = False
        #: What it ended last, and when; and how long it took before at most.
        self.further: tuple[int, float] | None = None
        self.longest = 0.0

    def waits(self) -> Mapping[Hashable, float] | None:
        self.looks += 1
        if self.fails is not None:
            raise self.fails
        if self.over:
            return None
        return {key: self._clock.now - since for key, since in self.since.items()}

    def standing(self) -> Standing | None:
        if self.further is None or (self.over and not self.leaves):
            return None
        number, since = self.further
        return Standing(number, self._clock.now - since, self.longest)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Look:
    """What looks at stacks: it says what a test has it say, as soon as that is set."""

    def __init__(self) -> None:
        self.said: dict[str, Any] | ValueError | str | None = "nothing yet"
        self.ended = False

    def over(self) -> bool:
        return not isinstance(self.said, str)

    def answer(self) -> dict[str, Any] | None:
        assert not isinstance(self.said, str)
        if isinstance(self.said, ValueError):
            raise self.said
        return self.said

    def end(self) -> None:
        self.ended = True


class Job:
    """Two ranks that are watched; time passes as a test says."""

    def __init__(self, hang_after: float = 60.0) -> None:
        self.clock = Clock()
        self.ranks = [Rank(self.clock, number) for number in range(2)]
        self.looks: list[Look] = []
        self.asked: list[tuple[str, list[int], float, float]] = []
        self.hangs: list[Hang] = []
        self.ends: list[str] = []
        self.fails: OSError | None = None
        self.watch = HangWatch(
            "r", hang_after,
            on_hang=lambda hang, found: self.hangs.append(hang),
            on_end=lambda text, seconds: self.ends.append(text),
            look=self._look, clock=self.clock,
        )  # fmt: skip

    def _look(self, run: str, pids: Sequence[int], hang_after: float, between: float) -> Look:
        if self.fails is not None:
            raise self.fails
        self.asked.append((run, list(pids), hang_after, between))
        self.looks.append(Look())
        return self.looks[-1]

    def waits(self, key: Hashable = "a", rank: int = 0) -> None:
        self.ranks[rank].since[key] = self.clock.now

    def goes_on(self, key: Hashable = "a", rank: int = 0) -> None:
        del self.ranks[rank].since[key]

    def passes(self, seconds: float) -> None:
        """Let the recorder turn four times a second for so long."""
        for _ in range(int(4 * seconds)):
            self.clock.now += 0.25
            self.watch.turn(self.ranks, 99)


def test_who_waits_for_long_is_looked_at_and_reported_once() -> None:
    job = Job()
    job.waits()
    job.passes(59)
    assert not job.looks
    job.passes(11)
    (look,) = job.looks
    assert job.asked == [("r", [99, 100, 101], 60.0, 10.0)]
    look.said = HANG
    job.passes(1000)
    assert [(hang.kind, hang.ranks) for hang in job.hangs] == [("rank_never_arrived", (1,))]
    assert len(job.looks) == 1
    assert job.ends == []


def test_the_rings_are_looked_at_every_ten_seconds_and_more_often_for_short_hangs() -> None:
    seldom, often, never = Job(), Job(hang_after=4), Job(hang_after=0)
    for job in (seldom, often, never):
        job.waits()
        job.passes(100)
    assert seldom.ranks[0].looks == 10
    assert often.ranks[0].looks == 50
    assert never.ranks[0].looks == 0
    assert not never.looks


def test_that_the_job_goes_on_is_said_and_a_longer_hang_is_another_one() -> None:
    job = Job()
    job.waits()
    job.passes(70)
    job.looks[0].said = HANG
    job.passes(30)
    job.goes_on()
    job.passes(10)
    assert job.ends == ["the job goes on after 100 s"]
    job.waits("b")
    job.passes(180)
    assert len(job.looks) == 1  # less than twice as long as the one that has ended
    job.passes(30)
    job.looks[1].said = HANG
    job.passes(1)
    assert len(job.hangs) == 2


@pytest.mark.parametrize("said_goodbye", [True, False])
def test_that_its_ranks_have_ended_is_said_and_is_no_wait_that_has_ended(
    said_goodbye: bool,
) -> None:
    job = Job()
    job.waits()
    job.passes(70)
    job.looks[0].said = HANG
    job.passes(1)
    if said_goodbye:
        job.ranks[0].over = True
    else:
        job.ranks.pop(0)
    job.passes(10)
    assert job.ends == ["the ranks that waited have ended, after 80 s"]
    job.waits("a", rank=-1)
    job.passes(70)
    assert len(job.looks) == 2


def test_a_wait_as_long_as_one_that_has_ended_is_not_looked_at() -> None:
    job = Job(hang_after=20)
    job.waits()
    job.passes(18)
    job.goes_on()  # before it was looked at
    job.passes(10)
    job.waits("b")
    job.passes(19)
    job.goes_on("b")
    job.passes(10)
    job.waits("c")
    job.passes(29)
    assert not job.looks
    job.passes(20)
    assert len(job.looks) == 1


def test_what_may_only_be_late_is_looked_at_ever_more_seldom() -> None:
    job = Job()
    job.waits()
    for _ in range(1000):
        job.passes(2)
        for look in job.looks:
            look.said = None
    assert 10 < len(job.looks) < 16
    assert not job.hangs
    # Another wait is not late for that.
    before = len(job.looks)
    job.waits("b", rank=1)
    job.passes(75)
    assert len(job.looks) == before + 1


STANDS = {**HANG, "kind": "stands_still", "ranks": [0], "waiting": []}
MISSING = {**HANG, "kind": "rendezvous", "ranks": [1], "waiting": [0]}


def test_a_process_of_its_own_that_gets_no_further_is_reported_until_it_does() -> None:
    job = Job()
    job.ranks.pop()
    (rank,) = job.ranks
    rank.rank = None
    rank.longest = 40
    rank.further = 7, job.clock.now
    job.passes(79)
    assert not job.looks, "less than twice as long as it took before"
    job.passes(11)
    job.looks[0].said = STANDS
    job.passes(50)
    assert [hang.kind for hang in job.hangs] == ["stands_still"]
    rank.further = 8, job.clock.now
    job.passes(10)
    assert job.ends == ["the job goes on after 140 s"]


def test_one_that_has_said_goodbye_and_stays_is_reported() -> None:
    job = Job()
    for rank in job.ranks:
        rank.over = rank.leaves = True
        rank.further = LEAVES, job.clock.now
    job.passes(70)
    job.looks[0].said = {**STANDS, "kind": "teardown_hang"}
    job.passes(10)
    assert [hang.kind for hang in job.hangs] == ["teardown_hang"]
    job.ranks.clear()
    job.passes(10)
    assert job.ends[0].startswith("the ranks that waited have ended")


def test_a_rank_that_leaves_while_it_waits_has_not_gone_on() -> None:
    job = Job()
    job.waits()
    job.passes(70)
    job.looks[0].said = HANG
    job.passes(10)
    for rank in job.ranks:
        rank.over = rank.leaves = True
        rank.further = LEAVES, job.clock.now
    job.passes(10)
    assert job.ends[0].startswith("the ranks that waited have ended")


def test_a_rank_is_missing_at_the_start_only_after_long() -> None:
    job = Job()
    job.ranks.pop()  # the other one records its pauses, and no more
    said: dict[str, Any] | None = None
    for _ in range(60):
        job.passes(5)
        said = MISSING if job.clock.now > 1100 else None
        for look in job.looks:
            look.said = said
    assert len(job.looks) > 3
    assert not job.hangs
    job.passes(50)
    for _ in range(60):
        job.passes(5)
        for look in job.looks:
            look.said = MISSING
    assert [(hang.kind, hang.ranks) for hang in job.hangs] == [("rendezvous", (1,))]
    job.ranks.append(Rank(job.clock, 1))
    job.ranks[0].further = 3, job.clock.now
    job.passes(10)
    assert job.ends[0].startswith("the job goes on after ")


def test_a_job_that_has_begun_is_not_looked_at_for_its_start() -> None:
    job = Job()
    job.waits()
    job.passes(10)
    job.goes_on()
    job.passes(1000)
    assert not job.looks


def test_who_has_gone_on_while_stacks_were_looked_at_does_not_hang() -> None:
    job = Job()
    job.waits()
    job.passes(70)
    job.goes_on()
    job.waits("b")
    job.looks[0].said = HANG
    job.passes(20)
    assert not job.hangs


def test_one_process_looks_at_a_time_and_is_ended_with_the_recorder() -> None:
    job = Job()
    job.waits()
    job.passes(70)
    job.waits("b", rank=1)
    job.passes(300)
    (look,) = job.looks
    job.watch.end()
    assert look.ended


@pytest.mark.parametrize("fails", [OSError(11, "no"), ValueError("no ring")])
def test_a_ring_that_cannot_be_read_is_left_out(fails: Exception) -> None:
    job = Job()
    job.ranks[1].fails = fails
    job.waits()
    job.passes(70)
    assert len(job.looks) == 1


def test_a_look_that_fails_or_cannot_begin_is_no_hang() -> None:
    job = Job()
    job.waits()
    job.passes(70)
    job.looks[0].said = ValueError("was ended")
    job.passes(5)
    job.fails = OSError(11, "no process")
    job.passes(100)
    job.fails = None
    job.passes(100)
    assert len(job.looks) == 2
    assert not job.hangs
