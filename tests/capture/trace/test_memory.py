"""What is taken for the memory of events, with a process whose memory is known."""

from __future__ import annotations

import subprocess
import sys

import pytest

from haiprof.capture.trace import memory
from haiprof.capture.trace.memory import EventMemory

MIB = 1 << 20


class Process:
    """What malloc() has handed out, and what the process has and had at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, used: int, private: int, most: int) -> None:
        self.used, self.private = used, private
        monkeypatch.setattr(memory, "_counter", lambda: lambda: self.used)
        monkeypatch.setattr(memory, "private_bytes", lambda: self.private)
        monkeypatch.setattr(memory, "_greatest_private_bytes", lambda: most)


def test_what_a_step_takes_and_gives_back_is_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, used=100 * MIB, private=120 * MIB, most=620 * MIB)
    events = EventMemory()
    for step in range(1, 4):
        process.used += 500 * MIB
        process.private = 120 * MIB + 500 * MIB + step * 60 * MIB  # with holes between events
        assert events.grown() <= step * 2 * MIB
        process.used -= 498 * MIB
        events.step_ended()
        assert events.taken == (0 if step == 1 else step * 2 * MIB)
    assert events.would_take() == 8 * MIB
    assert events.process_grown() == 180 * MIB
    assert events.at_end() == 6 * MIB


def test_what_only_the_first_step_adds_is_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, used=0, private=0, most=0)
    events = EventMemory()
    process.used = 400 * MIB + 2 * MIB  # gradients, and events
    events.step_ended()
    assert events.would_take() == 0
    process.used += 2 * MIB
    events.step_ended()
    assert events.taken == 4 * MIB


def test_a_step_may_take_as_much_as_the_two_greatest_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(monkeypatch, used=0, private=0, most=0)
    events = EventMemory()
    for grown in (0, 1, 1, 9, 1, 9, 1, 1, 1):  # torch takes a block of 9 MiB now and then
        process.used += grown * MIB
        events.step_ended()
    assert events.would_take() == events.taken + 9 * MIB


def test_what_the_job_keeps_once_is_not_expected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, used=0, private=0, most=0)
    events = EventMemory()
    for grown in (0, 1, 1, 500, -499, 1, 1, 1):
        process.used += grown * MIB
        events.step_ended()
    assert events.taken < events.would_take() <= events.taken + 1 * MIB


def test_a_long_step_is_measured_by_what_the_process_never_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(monkeypatch, used=100 * MIB, private=150 * MIB, most=200 * MIB)
    events = EventMemory()
    process.used, process.private = 149 * MIB, 199 * MIB
    assert events.grown() == 0
    process.used, process.private = 190 * MIB, 240 * MIB
    assert events.grown() == 40 * MIB


def test_only_what_is_in_use_counts_where_glibc_counts_it() -> None:
    # In a process of its own, in which nothing else allocates.
    program = """
import ctypes
from haiprof.capture.trace import memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
counter = memory._counter()
before = counter()
small = [libc.malloc(1000) for _ in range(10_000)]
large = libc.malloc(64 << 20)
print(counter is memory.private_bytes, counter() - before)
libc.free(large)
for each in small: libc.free(each)
print(counter() - before, memory._greatest_private_bytes() > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    is_private, taken, left, known = done.stdout.split()
    assert is_private == "False"
    assert known == "True"
    assert (64 << 20) + 10_000_000 <= int(taken) < (65 << 20) + 12_000_000
    assert abs(int(left)) < 1 << 20
