"""When it is looked what costs time, and what is said of that: with steps and looks made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from haiprof.common.live_findings import Found
from haiprof.recorder.finding_watch import FindingWatch, Ongoing

LOADER = Found("slow_loader", "The loop waits", "use more workers", (0, 1), 0.3, "read (t.py:3)")
GIL = Found("gil", "Another thread has the GIL", "move it", (0,), 0.1, None)
NS = 1_000_000_000


class Rank:
    def __init__(self, number: int) -> None:
        self.pid, self.rank = 100 + number, number
        self.new: list[tuple[int, int]] = []

    def steps(self) -> list[tuple[int, int]]:
        taken, self.new = self.new, []
        return taken


class Look:
    """It says what a test has it say, as soon as that is set."""

    cost = 0.5

    def __init__(self) -> None:
        self.said: list[Found] | ValueError | None = None
        self.ended = False

    def over(self) -> bool:
        return self.said is not None

    def answer(self) -> list[Found]:
        if isinstance(self.said, ValueError):
            raise self.said
        return self.said or []

    def end(self) -> None:
        self.ended = True


class Job:
    """Ranks that train together; time passes as a test says."""

    def __init__(self, ranks: int = 8) -> None:
        self.now = 1000.0
        self.step_s = 0.1
        self.ranks = [Rank(number) for number in range(ranks)]
        self.looks: list[Look] = []
        self.windows: list[list[float]] = []
        self.begun: list[Ongoing] = []
        self.ends: list[str] = []
        self.slower = 0
        self.fails: OSError | None = None
        self.watch = FindingWatch(
            Path("r"), "n", on_finding=self.begun.append,
            on_end=lambda one, why: self.ends.append(f"{one.found.kind}: {why}"),
            on_slower=self.becomes_slower, look=self.look, clock=lambda: self.now,
        )  # fmt: skip

    def becomes_slower(self) -> None:
        self.slower += 1

    def look(self, run: Path, node: str, windows: Sequence[tuple[int, int]]) -> Look:
        if self.fails is not None:
            raise self.fails
        assert (run, node) == (Path("r"), "n")
        self.windows.append([edge / NS for window in windows for edge in window])
        self.looks.append(Look())
        return self.looks[-1]

    def trains(self, seconds: float, *, says: list[Found] | None = None) -> None:
        """Train for so long; each look that is begun says ``says``."""
        until = self.now + seconds
        while self.now < until:
            for rank in self.ranks:
                rank.new.append((int(self.now * NS), int(self.step_s * NS)))
            self.now += self.step_s
            self.watch.turn(self.ranks)
            if says is not None and self.looks and self.looks[-1].said is None:
                self.looks[-1].said = says


def test_the_first_minute_is_looked_at_when_it_is_over() -> None:
    job = Job()
    job.trains(58)
    assert not job.looks
    job.trains(5)
    ((begin, end),) = job.windows
    assert end - begin == pytest.approx(60)
    assert 1060 <= end < 1063


def test_what_two_looks_find_is_said_once_and_that_it_is_over_too() -> None:
    job = Job()
    job.trains(65, says=[LOADER])
    assert not job.begun
    job.trains(100, says=[GIL, LOADER])
    assert [one.found for one in job.begun] == [LOADER]
    assert job.begun[0].since_ns < 1010 * NS
    job.trains(65, says=[LOADER])
    job.trains(65, says=[])
    assert len(job.begun) == 1
    assert not job.ends
    job.trains(65, says=[])
    assert job.ends == ["slow_loader: it costs no longer as much"]


def test_looks_take_less_than_a_thousandth_of_a_core_for_each_rank() -> None:
    for ranks in (1, 4, 8):
        job = Job(ranks)
        job.trains(3000, says=[])
        took = sum(look.cost for look in job.looks)
        assert len(job.looks) >= 3
        assert took <= 3000 * 0.0007 * ranks + Look.cost


def test_why_steps_have_become_slower_is_said_if_they_stay_so() -> None:
    job = Job()
    job.trains(110, says=[])
    looks = len(job.looks)
    job.step_s = 0.13
    job.trains(30)
    assert (job.slower, len(job.looks)) == (1, looks + 1)
    first, until, since, end = job.windows[-1]
    assert first < until <= 1110 <= since + 2
    assert until - first <= 60
    assert end > job.now, "evidence is still being gathered"
    job.looks[-1].said = [LOADER, GIL]
    job.trains(2)
    assert [one.found for one in job.begun] == [LOADER]
    assert abs(job.begun[0].since_ns / NS - 1110) < 3
    job.step_s = 0.1
    job.trains(60, says=[])
    assert job.ends == ["slow_loader: steps take 100 ms, as before"]


@pytest.mark.parametrize("seconds", [24, 26, 28, 30, 34, 40, 60, 200])
def test_a_slow_down_ends_however_short_it_was(seconds: float) -> None:
    job = Job()
    job.trains(110, says=[])
    job.step_s = 0.2
    job.trains(seconds - 1)
    job.looks[-1].said = [LOADER]
    job.trains(1)
    assert len(job.begun) == 1
    job.step_s = 0.1
    job.trains(25, says=[])
    assert job.ends == ["slow_loader: steps take 100 ms, as before"]
    job.trains(200, says=[])
    assert (len(job.begun), len(job.ends)) == (1, 1)


def test_nothing_is_said_of_steps_that_were_slower_only_for_a_while() -> None:
    job = Job()
    job.trains(110, says=[])
    job.step_s = 0.13
    job.trains(16)
    job.step_s = 0.1
    job.trains(20)
    assert job.slower == 1
    job.looks[-1].said = [LOADER]
    job.trains(10)
    assert not job.begun


def test_a_change_is_looked_at_after_the_look_that_goes_on() -> None:
    job = Job()
    job.trains(62)
    job.step_s = 0.13
    job.trains(30)
    assert (job.slower, len(job.looks)) == (1, 1)
    job.looks[-1].said = []
    job.trains(2)
    assert len(job.windows[-1]) == 4
    assert job.slower == 1


def test_three_changes_are_looked_at_at_once_and_then_no_more_for_some_time() -> None:
    job = Job()
    job.trains(62, says=[])
    begin = job.now
    for number in range(1, 5):
        job.step_s *= 1.4
        job.trains(90, says=[])
        assert job.slower == min(number, 3)
    job.trains(begin + 930 - job.now, says=[])
    job.step_s *= 1.4
    job.trains(90, says=[])
    assert job.slower == 4


def test_a_job_that_was_started_again_is_another_one() -> None:
    job = Job()
    job.trains(300, says=[LOADER])
    assert len(job.begun) == 1
    for rank in job.ranks:
        rank.pid += 1000
    job.step_s = 0.2
    job.trains(50, says=[])
    assert job.ends == ["slow_loader: the process whose steps were followed has ended"]
    assert job.slower == 0


def test_looks_that_fail_are_tried_again_later() -> None:
    job = Job()
    job.fails = FileNotFoundError(2, "no python")
    job.trains(70)
    job.fails = None
    job.trains(100)
    assert not job.looks
    job.trains(250)
    assert len(job.looks) == 1
    job.looks[0].said = ValueError("was ended")
    job.trains(100)
    assert len(job.looks) == 2
    job.watch.end()
    assert job.looks[1].ended
    assert not job.begun
