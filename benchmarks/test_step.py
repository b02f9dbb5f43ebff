"""What a step of a training job costs more under haiprof, and under torch.profiler beside it.

One process trains all the time. haiprof is on for a few steps between a few steps without it: its
hooks are attached and its recorder goes on, then they are detached and it is stopped. The blocks
are short because the speed of a machine wanders; the longer they are, the more of that lies between
what is compared. The first steps of each block are not counted.

Two processes instead, one with and one without, differ by more than haiprof costs: by where their
memory happens to lie.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
from pathlib import Path
from typing import Any

from figures import Figure, Interval, Measured, Reference, Unit, at_most
from processes import recorder_of
from recording import wait_recorded
from reporting import Report
from trainer import Training, keep_freed_memory

import haiprof
from haiprof.capture import hooks

#: Rounds of three blocks: off, haiprof, off.
ROUNDS = 1000
STEPS = 4
SETTLE = 2
#: The same for torch.profiler, whose start and stop take longer.
PROFILER_ROUNDS = 32
PROFILER_STEPS = 20
PROFILER_SETTLE = 5

Round = tuple[float, float, float]


def block(training: Training, settle: int, steps: int) -> float:
    """Mean time, s, of ``steps`` steps after ``settle`` others."""
    training.steps(settle)
    return statistics.mean(training.steps(steps))


def haiprof_round(training: Training, recorder: int) -> Round:
    """Step times, s: off, with haiprof, off. It is off before and after."""
    before = block(training, SETTLE, STEPS)
    os.kill(recorder, signal.SIGCONT)
    hooks.install()
    during = block(training, SETTLE, STEPS)
    hooks.uninstall()
    os.kill(recorder, signal.SIGSTOP)
    return before, during, block(training, SETTLE, STEPS)


def profiler_round(training: Training) -> Round:
    """Step times, s: off, with torch.profiler, off."""
    from torch.profiler import ProfilerActivity, profile

    before = block(training, PROFILER_SETTLE, PROFILER_STEPS)
    with profile(activities=[ProfilerActivity.CPU]):
        during = block(training, PROFILER_SETTLE, PROFILER_STEPS)
    return before, during, block(training, PROFILER_SETTLE, PROFILER_STEPS)


def summary(ratios: list[float]) -> Measured:
    """Mean of what the ratios add to 1, and its 95 % confidence interval."""
    mean = statistics.mean(ratios) - 1
    half = 1.96 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return Measured(mean, Interval(mean - half, mean + half, "95 %"))


def added(rounds: list[Round]) -> Measured:
    """Summarise the middle block against the blocks around it."""
    return summary([2 * during / (before + after) for before, during, after in rounds])


def test_time_of_a_step(benchmark: Any, report: Report, shm: Path, tmp_path: Path) -> None:
    keep_freed_memory()
    allowed = os.sched_getaffinity(0)
    training = Training()
    haiprof.start(tmp_path, run="steps")
    recorder = recorder_of(shm)
    # One core of a virtual machine may be faster than another; the recorder runs where it likes.
    os.sched_setaffinity(0, {max(allowed)})
    training.steps(100)
    hooks.uninstall()
    os.kill(recorder, signal.SIGSTOP)
    training.steps(100)

    def run() -> tuple[list[Round], list[Round]]:
        ours = [haiprof_round(training, recorder) for _ in range(ROUNDS)]
        return ours, [profiler_round(training) for _ in range(PROFILER_ROUNDS)]

    try:
        ours, profilers = benchmark.pedantic(run, rounds=1, iterations=1)
    finally:
        os.kill(recorder, signal.SIGCONT)
        os.sched_setaffinity(0, allowed)
        haiprof.stop()
    wait_recorded(shm, 120)
    # It did record: every step of its blocks.
    assert haiprof.Analyzer(tmp_path / "steps").steps().height >= ROUNDS * (SETTLE + STEPS)

    step = statistics.median(before for before, _, _ in ours)
    benchmark.extra_info.update(
        step_ms=step * 1e3, pairs=len(ours), torch_profiler_pairs=len(profilers)
    )
    profiler = Reference("torch.profiler", added(profilers))
    nothing = summary([after / before for before, _, after in ours])
    what = f"added to a training step of {step * 1e3:.1f} ms"
    report(
        Figure(what, Unit.SHARE, added(ours), profiler, at_most(0.005)),
        Figure("added by nothing at all", Unit.SHARE, nothing),
    )
