"""How a thread of ours gives way to the job's."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from recording import run_python

from haiprof.capture.yielding import rest, yielding


class Clock:
    """Continues when allowed to, and knows who rested."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rested: list[int] = []

    def monotonic(self) -> float:
        return self.now

    thread_time = monotonic

    def sleep(self, seconds: float) -> None:
        self.rested.append(threading.get_ident())
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("haiprof.capture.yielding.time", clock)
    monkeypatch.setattr("haiprof.capture.yielding.sleep", clock.sleep)
    return clock


def work(clock: Clock) -> None:
    clock.now += 0.005
    rest()


def test_only_who_is_gentle_rests(clock: Clock) -> None:
    work(clock)
    assert not clock.rested
    before = sys.getswitchinterval()
    with yielding(), ThreadPoolExecutor(1) as other:
        assert sys.getswitchinterval() < before
        for _ in range(2):
            work(clock)
            other.submit(work, clock).result()
    assert clock.rested == [threading.get_ident()] * 2
    assert sys.getswitchinterval() == before
    work(clock)
    assert len(clock.rested) == 2


def test_it_rests_once_in_a_while(clock: Clock) -> None:
    with yielding():
        for _ in range(1000):
            clock.now += 0.00001
            rest()
    assert 3 <= len(clock.rested) <= 6


def test_an_interval_that_the_job_sets_meanwhile_stays() -> None:
    before = sys.getswitchinterval()
    try:
        with yielding():
            sys.setswitchinterval(0.25)
        assert sys.getswitchinterval() == 0.25
    finally:
        sys.setswitchinterval(before)


def test_where_another_keeps_the_lock_nobody_rests_any_more() -> None:
    # Python lets nobody in while this loop in C goes on.
    out = run_python(
        """
        import sys, threading, time
        from haiprof.capture.yielding import yielding, rest
        before = sys.getswitchinterval()
        large, ended = bytes(50_000_000), []
        def keeps():
            while not ended:
                sum(large)
        with yielding():
            ours = sys.getswitchinterval()
            thread = threading.Thread(target=keeps)
            thread.start()
            until = time.monotonic() + 30
            while sys.getswitchinterval() == ours and time.monotonic() < until:
                rest()
            print(ours < before, sys.getswitchinterval() == before)
            ended.append(True)
            thread.join()
            time.sleep(0.01)
            rested = []
            time.sleep = rested.append
            rest()
            print(not rested)
        """
    )
    assert out.split() == ["True", "True", "True"]
