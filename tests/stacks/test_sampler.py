"""Stacks sampled many times a second, against what the process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recording import wait_for
from sampled import SPAWNS, WORKS, Sample, Sampled

from haiprof import _core
from haiprof.common.process_life import parent_of, start_time_of

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 15), reason="the layout of this Python is not known"
)

#: So many samples that shares of them mean something, and no more than a busy machine can take.
HZ = 50.0


Start = Callable[..., "tuple[subprocess.Popen[str], bytes]"]


def children(pid: int) -> list[int]:
    """Return the processes that the main thread of a process has started."""
    numbers = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(number) for number in numbers.split()]


def descendants(pid: int) -> list[int]:
    """Return its children and theirs."""
    return [number for child in children(pid) for number in (child, *descendants(child))]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program that prints its layout, then a line, when it is ready."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str) -> tuple[subprocess.Popen[str], bytes]:
        before = "from haiprof import _core; print(_core.python_layout().hex(), flush=True)\n"
        process = subprocess.Popen(
            [sys.executable, "-c", before + textwrap.dedent(program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        layout = bytes.fromhex(process.stdout.readline())
        assert process.stdout.readline() == "ready\n"
        return process, layout

    yield run
    for process in started:
        if process.poll() is None:
            for number in descendants(process.pid):  # they have its output, too
                os.kill(number, signal.SIGKILL)
        process.kill()
        process.communicate()


LOOP = """
import threading, time
def first():
    time.sleep(0.03)
def second():
    time.sleep(0.06)
def third():
    time.sleep(0.01)
print("ready", flush=True)
while True:
    first()
    second()
    third()
"""


@pytest.mark.parametrize("hz", [HZ, 10.0])
def test_shares_of_time_are_right_also_where_a_step_takes_one_period(
    start: Start, hz: float
) -> None:
    """A loop of 0.1 s, sampled ten times a second: were it always at one moment, one function
    would take all of the time.
    """
    process, layout = start(LOOP)
    sampled = Sampled(process.pid, layout, hz)
    time.sleep(6)
    sampled.end()
    shares = sampled.shares(process.pid)
    assert set(shares) <= {"first", "second", "third", "<module>"}
    # Of 60 samples a share wanders by 6 %, of 300 by 3 %; a slow machine may take fewer.
    assert shares["first"] == pytest.approx(0.3, abs=0.25)
    assert shares["second"] == pytest.approx(0.6, abs=0.25)
    assert sum(s.samples for s in sampled.samples) > 15


THREADS = """
import ctypes, threading, time
def holds_the_gil():
    time.sleep(1)
    libc = ctypes.PyDLL(None)
    begin = time.monotonic_ns()
    libc.sleep(3)
    print(time.monotonic_ns() - begin, flush=True)
    time.sleep(600)
def asleep():
    time.sleep(600)
def busy():
    while True:
        pass
for target in (asleep, holds_the_gil):
    threading.Thread(target=target, daemon=True).start()
print("ready", flush=True)
time.sleep(5)
busy()
"""


def test_state_wait_and_gil_of_each_thread(start: Start) -> None:
    begun = time.monotonic()
    process, layout = start(THREADS)
    sampled = Sampled(process.pid, layout, HZ)

    def innermost(name: str) -> list[Sample]:
        return [s for s in sampled.samples if sampled.names(s)[0] == name]

    wait_for(lambda: sampled.take() and len(innermost("busy")) > 20, 60)
    assert process.stdout is not None
    held = int(process.stdout.readline())
    sampled.end()
    # Asleep from beginning to end: one sample that went on, a new one every ten seconds. The first
    # look may have come before it slept.
    assert len(innermost("asleep")) <= 2 + (time.monotonic() - begun) / 10
    asleep = max(innermost("asleep"), key=lambda sample: sample.samples)
    assert (asleep.state, asleep.gil) == ("waiting", 0)
    assert asleep.samples > 20
    # A look that costs much makes a period longer.
    assert asleep.samples * 1e9 / HZ * 0.99 <= asleep.duration
    assert asleep.duration <= time.monotonic_ns() - asleep.time + 1e9
    assert asleep.waits_in is not None
    assert "sleep" in asleep.waits_in
    # Waiting in C code, with the GIL.
    holding = [s for s in innermost("holds_the_gil") if s.gil]
    assert 0.6e9 < sum(s.duration for s in holding) < held + 1e9
    assert {s.state for s in holding} >= {"waiting"}
    busy = innermost("busy")
    assert {s.thread for s in busy} == {process.pid}
    assert Counter(s.state for s in busy).most_common(1)[0][0] in ("running", "ready")
    assert any(s.gil for s in busy)
    assert sampled.sampler.counts(process.pid)["torn"] <= 2


BUSY = """
import os
print("ready", flush=True)
while True:
    pass
"""


@pytest.fixture
def cpus() -> Iterator[list[int]]:
    """Return the CPUs that this thread may use, and let it use them again afterwards."""
    allowed = os.sched_getaffinity(0)
    yield sorted(allowed)
    os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("state", ["ready", "running"])
def test_a_thread_whose_cpu_the_sampler_has_is_ready(
    start: Start, cpus: list[int], state: str
) -> None:
    if state == "running" and len(cpus) < 2:
        pytest.skip("there is one CPU")
    process, layout = start(BUSY)
    os.sched_setaffinity(process.pid, {cpus[0]})
    os.sched_setaffinity(0, {cpus[0] if state == "ready" else cpus[-1]})
    sampled = Sampled(process.pid, layout, HZ)  # on a thread that has our CPUs
    wait_for(lambda: sampled.take() and len(sampled.samples) > 20, 60)
    sampled.end()
    # Of those at the beginning it is not known yet where it runs.
    assert {s.state for s in sampled.samples[2:-1]} == {state}


WORKERS = """
import os, subprocess, sys, time
works, begins = os.pipe()
def worker():
    os.write(begins, b"x")
    time.sleep(600)
if os.fork() == 0:
    worker()
os.read(works, 1)
# Until it has become another program it is a fork of this one.
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", flush=True)
time.sleep(600)
"""


def test_forked_workers_are_sampled_and_other_programs_are_not(start: Start) -> None:
    process, layout = start(WORKERS)
    sampled = Sampled(process.pid, layout, HZ)
    time.sleep(4)  # children are looked for each second
    sampled.end()
    found = {s.process for s in sampled.samples}
    (worker,) = found - {process.pid}
    assert worker in children(process.pid)
    assert len(children(process.pid)) == 2
    assert {sampled.names(s)[0] for s in sampled.samples if s.process == worker} == {"worker"}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_no_copies_are_sampled_and_what_serves_them_is_not(
    start: Start, tmp_path: Path, method: str
) -> None:
    (tmp_path / "spawned_work.py").write_text(WORKS)
    process, layout = start(SPAWNS.format(folder=str(tmp_path), method=method))
    sampled = Sampled(process.pid, layout, HZ)
    wait_for(lambda: any("works" in names for names in sampled.children().values()), 60)
    # The worker or the server that forks it, and a tracker of resources.
    assert len(children(process.pid)) == 2
    (worker,) = sampled.children()
    parent = parent_of(worker)
    assert parent == process.pid if method == "spawn" else parent in children(process.pid)
    command = Path(f"/proc/{worker}/cmdline").read_text()
    assert ("--multiprocessing-fork" if method == "spawn" else "forkserver") in command


def test_workers_of_a_server_are_sampled_where_that_is_watched_itself(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "spawned_work.py").write_text(WORKS)
    process, _ = start(SPAWNS.format(folder=str(tmp_path), method="forkserver"))

    def served() -> list[int]:
        return [child for child in children(process.pid) if children(child)]

    wait_for(lambda: bool(served()), 60)
    (server,) = served()
    sampled = Sampled(server, _core.layout_of(server), HZ)
    wait_for(lambda: any("works" in names for names in sampled.children().values()), 60)
    assert list(sampled.children()) == children(server)


def test_only_the_very_process_is_watched(start: Start) -> None:
    process, layout = start(LOOP)
    sampler = _core.StackSampler(HZ)
    started = start_time_of(process.pid)
    assert not sampler.watch(process.pid, started + 1, os.getuid(), layout)
    assert not sampler.watch(process.pid, started, os.getuid() + 1, layout)
    assert not sampler.watch(2**22 + 1, started, os.getuid(), layout)
    assert sampler.watch(process.pid, started, os.getuid(), layout)
    with pytest.raises(ValueError, match="impossible"):
        sampler.watch(
            process.pid, started, os.getuid(), layout[:100] + b"\xff" * (len(layout) - 100)
        )


def test_the_end_of_a_process_loses_nothing(start: Start) -> None:
    process, layout = start(LOOP)
    sampled = Sampled(process.pid, layout, HZ)
    wait_for(lambda: sum(s.samples for s in sampled.take()) > 5, 60)
    process.kill()
    wait_for(lambda: sampled.sampler.counts(process.pid)["ended"])
    assert sampled.sampler.counts(process.pid)["problem"] == ""
    process.wait()
    taken = len(sampled.samples)
    assert len(sampled.end()) > taken
    assert sampled.sampler.take(process.pid) == ([], [])


def test_a_rate_of_nothing_samples_nothing_until_it_changes(start: Start) -> None:
    process, layout = start(LOOP)
    sampled = Sampled(process.pid, layout, 0.0)
    time.sleep(0.5)
    assert sampled.take() == []
    sampled.sampler.hz = HZ
    wait_for(sampled.take)


MAKES = """
import time
print("ready", flush=True)
number = 0
while True:
    number += 1
    names = {}
    exec(f"def made_{number}():\\n    end = now() + 0.004\\n    while now() < end: pass",
         {"now": time.perf_counter}, names)
    names[f"made_{number}"]()
"""


def test_functions_that_come_and_go_are_named_right(start: Start) -> None:
    """Code objects die, and others lie at their addresses."""
    process, layout = start(MAKES)
    sampled = Sampled(process.pid, layout, 200.0)

    def named() -> list[list[str]]:
        return [sampled.names(s) for s in sampled.samples if s.thread == process.pid]

    def made() -> list[int]:
        return [int(names[0][5:]) for names in named() if names[0].startswith("made_")]

    wait_for(lambda: sampled.take() and len(made()) > 100, 60)
    sampled.end()
    assert made() == sorted(made())
    assert all(names[-1] == "<module>" for names in named())


MANY = """
import threading, time
def sleeps():
    time.sleep(600)
for _ in range(64):
    threading.Thread(target=sleeps, daemon=True).start()
print("ready", flush=True)
while True:
    pass
"""


def test_threads_that_wait_cost_a_row_each_however_many(start: Start) -> None:
    process, layout = start(MANY)
    begun = time.monotonic()
    sampled = Sampled(process.pid, layout, HZ)

    def waiting() -> list[Sample]:
        return [s for s in sampled.samples if sampled.names(s)[0] == "sleeps"]

    # A thread that works has a row for each look; one that waits has its row when it is over.
    wait_for(lambda: sum(s.thread == process.pid for s in sampled.take()) > 60, 60)
    sampled.end()
    assert len({s.thread for s in waiting()}) == 64
    # The first look may be at a thread that has not slept yet; a new row comes every ten seconds.
    assert len(waiting()) < 64 * (3 + (time.monotonic() - begun) // 10)
    assert sum(s.samples for s in waiting()) > 64 * 20
