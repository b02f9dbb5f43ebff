"""How a thread of ours gives way to the job's."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from recording import run_python

from haiprof.gently import gently, rest


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that rested, rest by rest."""
    rested: list[int] = []
    monkeypatch.setattr("time.sleep", lambda seconds: rested.append(threading.get_ident()))
    return rested


def work() -> None:
    end = time.monotonic() + 0.005
    while time.monotonic() < end:
        pass
    rest()


def test_only_who_is_gentle_rests(rests: list[int]) -> None:
    work()
    assert not rests
    before = sys.getswitchinterval()
    with gently(), ThreadPoolExecutor(1) as other:
        assert sys.getswitchinterval() < before
        for _ in range(2):
            work()
            other.submit(work).result()
    assert rests == [threading.get_ident()] * 2
    assert sys.getswitchinterval() == before
    work()
    assert len(rests) == 2


def test_it_rests_once_in_a_while(rests: list[int]) -> None:
    with gently():
        for _ in range(1000):
            rest()
    assert 1 <= len(rests) < 500


def test_an_interval_that_the_job_sets_meanwhile_stays() -> None:
    before = sys.getswitchinterval()
    try:
        with gently():
            sys.setswitchinterval(0.25)
        assert sys.getswitchinterval() == 0.25
    finally:
        sys.setswitchinterval(before)


def test_where_another_keeps_the_lock_nobody_rests_any_more() -> None:
    # Python lets nobody in while this loop in C goes on.
    out = run_python(
        """
        import sys, threading, time
        from haiprof.gently import gently, rest
        before = sys.getswitchinterval()
        large, ended = list(range(20_000_000)), []
        def keeps():
            while not ended:
                sum(large)
        with gently():
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
