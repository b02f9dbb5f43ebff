"""A push beside the clock and a store; a Python span beside torch's own."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import KeptRecorder

#: Rounds, operations a round, pause between rounds (us). Flat out: what the push itself costs.
FLAT_OUT = ("300", "10000", "0")
#: About 50 000 records a second in bursts, as a busy training process makes them.
BURSTS = ("300", "1000", "18000")


def push_cost(
    native_programs: Path, ring: Path, run_dir: Path, load: tuple[str, str, str]
) -> dict[str, float]:
    done = subprocess.run(
        [native_programs / "push_cost", ring, run_dir, "node", *load],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    costs: dict[str, float] = json.loads(done.stdout)
    return costs


def test_push_with_nobody_reading(
    benchmark: Any, native_programs: Path, shm: Path, tmp_path: Path
) -> None:
    costs = benchmark.pedantic(
        push_cost, (native_programs, shm / "alone.ring", tmp_path, FLAT_OUT), rounds=1, iterations=1
    )
    ratio = costs["push_ns"] / costs["floor_ns"]
    benchmark.extra_info.update(costs, ratio=ratio, target=1.35)
    assert ratio <= 1.35
    assert costs["unique_texts_ns"] < 1000


def test_push_with_the_recorder_draining(
    benchmark: Any, native_programs: Path, shm: Path, tmp_path: Path
) -> None:
    recorder = KeptRecorder(shm, tmp_path / "bench")
    costs = benchmark.pedantic(
        push_cost,
        (native_programs, recorder.rings / "1.ring", tmp_path / "bench", BURSTS),
        rounds=1,
        iterations=1,
    )
    recorder.release()
    assert list(tmp_path.glob("bench/node#0/kernels-*.arrow"))
    ratio = costs["push_ns"] / costs["floor_ns"]
    benchmark.extra_info.update(costs, ratio=ratio, target=1.6)
    assert ratio <= 1.6


def per_call_ns(loop: Callable[[int], None], count: int) -> float:
    begin = time.perf_counter_ns()
    loop(count)
    return (time.perf_counter_ns() - begin) / count


def test_python_span_beside_torch(benchmark: Any, shm: Path, tmp_path: Path) -> None:
    import torch

    import haiprof

    haiprof.start(tmp_path, run="spans", hooks=False)
    span = haiprof.range("span")
    fast = torch._C._profiler._RecordFunctionFast("span")
    slow = torch.profiler.record_function

    def empty(count: int) -> None:
        for _ in range(count):
            pass

    def haiprof_spans(count: int) -> None:
        for _ in range(count):
            with span:
                pass

    def haiprof_ranges(count: int) -> None:
        for _ in range(count):
            with haiprof.range("span"):
                pass

    def fast_spans(count: int) -> None:
        for _ in range(count):
            with fast:
                pass

    def slow_spans(count: int) -> None:
        for _ in range(count):
            with slow("span"):
                pass

    loops = {
        "empty": (empty, 20_000),
        "span": (haiprof_spans, 20_000),
        "range": (haiprof_ranges, 5_000),
        "record_function_fast": (fast_spans, 20_000),
        "record_function": (slow_spans, 1_000),
    }
    costs: dict[str, list[float]] = {name: [] for name in loops}

    def rounds() -> None:
        for _ in range(41):
            for name, (loop, count) in loops.items():
                costs[name].append(per_call_ns(loop, count))

    benchmark.pedantic(rounds, rounds=1, iterations=1)
    haiprof.stop()
    median = {name: statistics.median(values) for name, values in costs.items()}
    for name in loops:
        if name != "empty":
            median[name] -= median["empty"]
    to_fast = median["span"] / median["record_function_fast"]
    to_slow = median["span"] / median["record_function"]
    benchmark.extra_info.update(
        {f"{name}_ns": value for name, value in median.items()},
        ratio_to_record_function_fast=to_fast,
        ratio_to_record_function=to_slow,
        target_to_record_function_fast=0.75,
        target_to_record_function=1 / 40,
    )
    assert to_fast <= 0.75
    assert to_slow <= 1 / 40
