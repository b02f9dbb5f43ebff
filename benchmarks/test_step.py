"""What a step of a training job costs more under haiprof, and under torch.profiler beside it.

Four processes train the same network, turn and turn about, a few steps at a time: two without a
profiler, one with haiprof, one with torch.profiler. Each keeps its state from its start to its end,
as a job does, so nothing is attached or detached between what is compared. They are forks of one
process and bound to one core: where things lie in memory, and which core of a virtual machine it
is, moves the time of a step by more than haiprof does. The recorder runs where it likes. Even the
order in which they were forked moves it, so each kind has each place in that order equally often,
and what a place adds is taken off. Each group gives one ratio, and the interval is that of all.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import statistics
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from processes import recorder_of
from recording import wait_recorded
from trainer import Training

import haiprof

GROUPS = 32
ROUNDS = 6
STEPS = 25
FIRST_STEPS = 100
WARM_UP = 5
KINDS = ["off", "haiprof", "torch_profiler", "off_again"]
#: Student's t of 95 % for 32 values.
T = 2.04

FORK = multiprocessing.get_context("fork")


def keep_freed_memory() -> None:
    """Have malloc keep what is freed.

    Else whether a tensor costs page faults in every step depends on what lies above it in the heap
    by chance, and moves the time of a step by 10 %.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    libc = ctypes.CDLL(None)
    for parameter, size in ((trim_threshold, 2**30), (top_pad, 2**26), (mmap_threshold, 2**25)):
        assert libc.mallopt(parameter, size) == 1


def serve(training: Training, kind: str, log_dir: Path, orders: Connection) -> None:
    """Run the numbers of steps that are ordered and send their times, until 0 is ordered."""
    around: Any = contextlib.nullcontext
    if kind == "haiprof":
        haiprof.start(log_dir, run="steps")
    elif kind == "torch_profiler":
        from torch.profiler import ProfilerActivity, profile

        def around() -> Any:
            return profile(activities=[ProfilerActivity.CPU])

    while count := orders.recv():
        with around():
            training.steps(WARM_UP)
            times = training.steps(count)
        orders.send(times)
    if kind == "haiprof":
        haiprof.stop()


class Trainer:
    """A fork of this process that trains when it is told to, and rests until then."""

    def __init__(self, training: Training, kind: str, log_dir: Path) -> None:
        """Fork."""
        self.times: list[float] = []
        self._orders, theirs = FORK.Pipe()
        self._process = FORK.Process(target=serve, args=(training, kind, log_dir, theirs))
        self._process.start()
        theirs.close()

    def steps(self, count: int) -> list[float]:
        """Have it run ``count`` steps; return the time of each, s."""
        self._orders.send(count)
        times: list[float] = self._orders.recv()
        return times

    def end(self) -> None:
        """Have it leave."""
        self._orders.send(0)
        self._process.join()
        assert self._process.exitcode == 0


def order(number: int) -> list[str]:
    """The kinds in the order in which the processes of one group are forked."""
    first = number % len(KINDS)
    return KINDS[first:] + KINDS[:first]


def group(training: Training, shm: Path, log_dir: Path, number: int) -> dict[str, list[float]]:
    """Step times, s, of each kind in one group of processes."""
    kinds = order(number)
    trainers = {kind: Trainer(training, kind, log_dir) for kind in kinds}
    for trainer in trainers.values():
        trainer.steps(FIRST_STEPS)
    recorder = recorder_of(shm)
    os.kill(recorder, signal.SIGSTOP)
    for turn in range(ROUNDS):
        for kind in kinds if turn % 2 == 0 else reversed(kinds):
            # The recorder works for haiprof's process alone, and on its time alone.
            if kind == "haiprof":
                os.kill(recorder, signal.SIGCONT)
            trainers[kind].times += trainers[kind].steps(STEPS)
            if kind == "haiprof":
                os.kill(recorder, signal.SIGSTOP)
    os.kill(recorder, signal.SIGCONT)
    for trainer in trainers.values():
        trainer.end()
    wait_recorded(shm, 120)
    return {kind: trainer.times for kind, trainer in trainers.items()}


def logarithms(groups: list[dict[str, list[float]]], statistic: Any) -> dict[str, list[float]]:
    """Logarithm of each kind's step time in each group, less what its place in the order adds."""
    logs = [{kind: math.log(statistic(times)) for kind, times in g.items()} for g in groups]
    means = [statistics.mean(values.values()) for values in logs]
    place = [
        statistics.mean(logs[i][order(i)[at]] - means[i] for i in range(len(logs)))
        for at in range(len(KINDS))
    ]
    return {
        kind: [logs[i][kind] - place[order(i).index(kind)] for i in range(len(logs))]
        for kind in KINDS
    }


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % confidence interval."""
    return statistics.mean(values), T * statistics.stdev(values) / math.sqrt(len(values))


def test_time_of_a_step(benchmark: Any, shm: Path, tmp_path: Path) -> None:
    keep_freed_memory()
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    training = Training()
    training.steps(FIRST_STEPS)
    groups: list[dict[str, list[float]]] = []

    def run() -> None:
        for i in range(GROUPS):
            groups.append(group(training, shm, tmp_path / str(i), i))

    benchmark.pedantic(run, rounds=1, iterations=1)
    os.sched_setaffinity(0, allowed)
    # They did record: every step that was timed, and those before.
    for i in range(GROUPS):
        recorded = haiprof.Analyzer(tmp_path / str(i) / "steps").steps()
        assert recorded.height >= FIRST_STEPS + ROUNDS * STEPS

    info: dict[str, Any] = {
        "pairs": GROUPS,
        "steps_a_process": ROUNDS * STEPS,
        "step_ms": statistics.median(t for g in groups for t in g["off"]) * 1e3,
        "target_percent": 0.5,
    }
    for statistic in (statistics.median, statistics.mean):
        logs = logarithms(groups, statistic)
        for kind in KINDS[1:]:
            bases = ["off"] if kind == "off_again" else ["off", "off_again"]
            ratios = [
                math.expm1(logs[kind][i] - statistics.mean(logs[base][i] for base in bases))
                for i in range(GROUPS)
            ]
            mean, half = interval(ratios)
            label = f"{kind}_percent_of_{statistic.__name__}s"
            info[label] = mean * 100
            info[f"{label}_95"] = [(mean - half) * 100, (mean + half) * 100]
    benchmark.extra_info.update(info)
    assert info["haiprof_percent_of_medians"] <= 0.5
