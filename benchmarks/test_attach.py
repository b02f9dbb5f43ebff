"""Attaching to a training loop that was not prepared: how soon it records, and what it feels of it.

Each round is a process of its own, for only the first time anything is imported there. The loop
notes when each of its steps ended (drivers/train_unprepared.py). What attaching adds to a gap
between two steps is the longest gap of a while around it, minus the longest of a while as long
before it, of the same process.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest
from commands import haiprof
from figures import (
    Figure,
    Interval,
    Measured,
    Reference,
    Target,
    Unit,
    at_most,
    median_in_range,
    within,
)
from numpy.typing import NDArray
from processes import own_mib
from recording import wait_for, wait_recorded
from reporting import Report

from haiprof import Analyzer
from haiprof.control.attach import Attached, RecordingPlan, attach
from haiprof.control.find import find

#: Cold attaches to each loop; by the command; by the peer.
ROUNDS = 10
COMMANDS = 3
PEERS = 3
#: How long before, around and after an attach the steps are looked at, s.
WHILE = 1.0
CYCLES = 50
#: Cycles until all that is allocated once has been.
SETTLE = 5
#: Turns of the loop, each beside one of its untouched twins, and how long each is, s.
TURNS = 240
TURN = 0.1
#: malloc keeps what is freed. Else what lies above a tensor in the heap by chance says whether its
#: memory goes back to the system each time, and megabytes come and go.
KEEPS_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(2**26),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}


class Loop:
    """A process that trains."""

    def __init__(self, kind: str, folder: Path, environment: dict[str, str] | None = None) -> None:
        """Start it, and wait until it is in its pace."""
        self._file = folder / "steps"
        self._file.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, peers.DRIVERS / "train_unprepared.py", kind, self._file],
            env={**(environment or os.environ), **KEEPS_MEMORY},
            stdout=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        self._told: NDArray[np.int64] | None = None
        wait_for(self._started, 60, "the loop's start")

    def _started(self) -> bool:
        assert self._process.poll() is None
        if self._told is None and self._file.exists() and self._file.stat().st_size:
            self._told = np.memmap(self._file, np.int64, "r")
        return self._told is not None and self._told[0] > 100

    def steps(self, begin_ns: int, end_ns: int) -> NDArray[np.int64]:
        """Time and CPU time of steps: those that ended then, and one more at either end; ns."""
        assert self._told is not None
        rows = self._told[1 : 1 + 2 * int(self._told[0])].reshape(-1, 2)
        first, last = np.searchsorted(rows[:, 0], (begin_ns, end_ns))
        return np.array(rows[max(first - 1, 0) : last + 1])

    def longest_gap(self, begin_ns: int, end_ns: int) -> float:
        """Longest time between the ends of two steps, ms."""
        return float(np.diff(self.steps(begin_ns, end_ns)[:, 0]).max()) / 1e6

    def figures(self) -> dict[str, int]:
        """Threads and descriptors."""
        return {
            name: len(os.listdir(f"/proc/{self.pid}/{name}"))  # noqa: PTH208
            for name in ("task", "fd")
        }

    def pause(self) -> None:
        """Have it stand."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """End it, as it must still be there."""
        assert self._process.poll() is None
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def loop(kind: str, folder: Path, environment: dict[str, str] | None = None) -> Iterator[Loop]:
    running = Loop(kind, folder, environment)
    try:
        yield running
    finally:
        running.end()


def first_record(run_dir: Path) -> int:
    """When the first record was whole in the ring, ns since the epoch: the end of a span."""
    spans = Analyzer(run_dir).spans(category="phase")
    return int((spans["start"].cast(int) + spans["duration"].cast(int)).min())


def cold(running: Loop, plan: RecordingPlan) -> dict[str, float]:
    """Attach, stay a while, and leave; ms."""
    before = time.monotonic_ns()
    time.sleep(WHILE)
    begin, clock = time.monotonic_ns(), time.time_ns()
    attached = attach(find(str(running.pid))[0], plan)
    took = time.monotonic_ns() - begin
    assert attached.way in ("injector", "remote_exec")
    time.sleep(max(0.0, WHILE - took / 1e9))
    end = time.monotonic_ns()
    attached.end()
    time.sleep(max(0.0, WHILE - (time.monotonic_ns() - end) / 1e9))
    after = time.monotonic_ns()
    quiet = running.longest_gap(before, begin)
    return {
        "first_record_ms": (first_record(plan.run_dir) - clock) / 1e6,
        "attached_ms": took / 1e6,
        "frozen_ms": attached.frozen_ns / 1e6,
        "added_gap_ms": running.longest_gap(begin, end) - quiet,
        "added_gap_at_end_ms": running.longest_gap(end, after) - quiet,
        "quiet_gap_ms": quiet,
        "step_ms": float(np.median(np.diff(running.steps(before, begin)[:, 0]))) / 1e6,
    }


def over(rows: list[dict[str, float]], name: str) -> Measured:
    """Median of a time, which the rows have in ms, and its range."""
    return median_in_range([row[name] for row in rows]).times(1e-3)


@pytest.mark.parametrize("kind", ["mlp", "gpt"])
def test_the_first_attach(
    benchmark: Any, report: Report, shm: Path, tmp_path: Path, kind: str
) -> None:
    def run() -> list[dict[str, float]]:
        rows = []
        for number in range(ROUNDS):
            with loop(kind, tmp_path) as running:
                rows.append(cold(running, RecordingPlan(f"{kind}-{number}", tmp_path / "logs", 30)))
        return rows

    rows = benchmark.pedantic(run, rounds=1, iterations=1)
    wait_recorded(shm)
    benchmark.extra_info["rounds"] = rows
    quiet = Reference("the longest gap without", over(rows, "quiet_gap_ms"))

    def time_of(what: str, name: str, target: Target | None = None) -> Figure:
        reference = quiet if name.startswith("added_gap") else None
        return Figure(f"{kind}: {what}", Unit.SECONDS, over(rows, name), reference, target)

    report(
        time_of("from attach to the first record", "first_record_ms", at_most(300e-3)),
        time_of("frozen by an attach", "frozen_ms", at_most(5e-3)),
        time_of("gap between steps that an attach adds", "added_gap_ms", at_most(20e-3)),
        time_of("until attached", "attached_ms"),
        time_of("gap between steps that detaching adds", "added_gap_at_end_ms"),
    )


def test_the_first_attach_by_the_command(
    benchmark: Any, report: Report, shm: Path, tmp_path: Path
) -> None:
    """What a user waits for: the command's own start, too."""
    options = ["--time", "1", "--log-dir", str(tmp_path / "logs")]

    def run() -> list[dict[str, float]]:
        rows = []
        for number in range(COMMANDS):
            with loop("mlp", tmp_path) as running:
                begin = time.time_ns()
                done = haiprof("attach", str(running.pid), "--name", f"c{number}", *options)
                assert done.returncode == 0, done.stderr
                record = first_record(tmp_path / "logs" / f"c{number}")
                rows.append({"first_record_ms": (record - begin) / 1e6})
        return rows

    rows = benchmark.pedantic(run, rounds=1, iterations=1)
    wait_recorded(shm)
    benchmark.extra_info["rounds"] = rows
    what = "mlp: from the start of haiprof attach to the first record"
    report(Figure(what, Unit.SECONDS, over(rows, "first_record_ms")))


@pytest.mark.parametrize("kind", ["mlp", "gpt"])
def test_memray_attach(
    benchmark: Any, report: Report, memray: Path, tmp_path: Path, kind: str
) -> None:
    """The longest gap of the same loops while a peer attaches, records for a second, and leaves."""
    (packages,) = (memray.parent.parent / "lib").glob("python*/site-packages")
    paths = (os.environ.get("PYTHONPATH"), packages)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in paths if p)}

    def once() -> dict[str, float]:
        with loop(kind, tmp_path, environment) as running:
            before = time.monotonic_ns()
            time.sleep(WHILE)
            begin = time.monotonic_ns()
            done = subprocess.run(
                [memray.parent / "memray", "attach", str(running.pid), "--duration", "1",
                 "--output", tmp_path / "memray.bin", "--force"],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            end = time.monotonic_ns()
            time.sleep(WHILE)
            quiet = running.longest_gap(before, begin)
            return {
                "attached_ms": (end - begin) / 1e6,
                "added_gap_ms": running.longest_gap(begin, time.monotonic_ns()) - quiet,
            }

    def run() -> list[dict[str, float]]:
        return [once() for _ in range(PEERS)]

    rows = benchmark.pedantic(run, rounds=1, iterations=1)
    benchmark.extra_info["rounds"] = rows
    gap = f"{kind}: gap between steps that memray attach adds"
    report(
        Figure(f"{kind}: memray attach", Unit.SECONDS, over(rows, "attached_ms")),
        Figure(gap, Unit.SECONDS, over(rows, "added_gap_ms")),
    )


def error(values: NDArray[np.float64]) -> float:
    """Standard error of the median, of values that have a normal distribution but for a few."""
    deviation = 1.4826 * float(np.median(np.abs(values - np.median(values))))
    return math.sqrt(math.pi / 2 / len(values)) * deviation


def test_fifty_times(benchmark: Any, report: Report, shm: Path, tmp_path: Path) -> None:
    """What they leave: memory, threads, descriptors, and the time of a step beside two twins'.

    One twin beside the other tells what a step's time does by itself meanwhile.
    """

    def cycle(running: Loop, number: int) -> Attached:
        attached = attach(
            find(str(running.pid))[0], RecordingPlan(f"{number}", tmp_path / "logs", 30)
        )
        time.sleep(0.1)
        attached.end()
        # The thread that answered is the last to go.
        wait_for(lambda: running.figures() == figures, 5, f"the end of attach {number}")
        return attached

    with contextlib.ExitStack() as stack:
        loops = []
        for name in ("attached", "twin", "other"):
            (tmp_path / name).mkdir()
            loops.append(stack.enter_context(loop("mlp", tmp_path / name)))
        running = loops[0]
        figures = running.figures()

        def turn(goes: Loop) -> float:
            """Logarithm of the CPU time of a step, while the others stand."""
            for each in loops:
                each.pause()
            goes.go_on()
            time.sleep(TURN / 4)
            begin = time.monotonic_ns()
            time.sleep(TURN)
            steps = goes.steps(begin, time.monotonic_ns())[1:-1, 1]
            return math.log(float(np.median(np.diff(steps))))

        def turns() -> NDArray[np.float64]:
            """Of each turn: beside the twins' mean, and one twin beside the other; (TURNS, 2)."""
            order = itertools.cycle(itertools.permutations(range(len(loops))))
            rows = np.empty((TURNS, len(loops)))
            for row in rows:
                for which in next(order):
                    row[which] = turn(loops[which])
            return np.column_stack([rows[:, 0] - rows[:, 1:].mean(axis=1), rows[:, 2] - rows[:, 1]])

        def run() -> dict[str, Measured]:
            before = turns()
            for each in loops:
                each.pause()
            running.go_on()
            frozen, memory = [], [0.0]
            for number in range(CYCLES):
                frozen.append(cycle(running, number).frozen_ns / 1e6)
                if number == SETTLE - 1:
                    memory = [own_mib(running.pid)]
            memory.append(own_mib(running.pid))
            after = turns()
            return {
                "memory": Measured(memory[1] - memory[0]).times(2**20),
                "step": changed(before[:, 0], after[:, 0]),
                "untouched": changed(before[:, 1], after[:, 1]),
                "frozen": median_in_range(frozen).times(1e-3),
            }

        found = benchmark.pedantic(run, rounds=1, iterations=1)
    wait_recorded(shm)
    fifty = f"attaching and detaching {CYCLES} times"
    report(
        Figure(f"{fifty}: memory", Unit.BYTES, found["memory"], target=within(2 * 2**20)),
        Figure(f"{fifty}: a step", Unit.SHARE, found["step"], target=within(0.01)),
        Figure("a step of an untouched process meanwhile", Unit.SHARE, found["untouched"]),
        Figure(f"{fifty}: frozen", Unit.SECONDS, found["frozen"], target=at_most(5e-3)),
    )


def changed(before: NDArray[np.float64], after: NDArray[np.float64]) -> Measured:
    """By what share a step's time changed, of the logarithms of times."""
    change = float(np.median(after) - np.median(before))
    apart = float(np.hypot(error(before), error(after)))
    return Measured(change, Interval(change - apart, change + apart, "standard error"))
