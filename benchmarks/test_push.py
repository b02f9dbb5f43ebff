"""A push beside the clock and a store; a Python span beside torch's own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import (
    Figure,
    Measured,
    Reference,
    Unit,
    at_most,
    median,
    nanoseconds,
    ratio_at_most,
)
from processes import KeptRecorder
from reporting import Report

#: Rounds, operations a round, pause between rounds (us). Flat out: what the push itself costs.
FLAT_OUT = ("300", "10000", "0")
#: About 50 000 records a second in bursts, as a busy training process makes them.
BURSTS = ("300", "1000", "18000")


def push_cost(
    native_programs: Path, ring: Path, run_dir: Path, load: tuple[str, str, str]
) -> dict[str, Any]:
    done = subprocess.run(
        [native_programs / "push_cost", ring, run_dir, "node", *load],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    costs: dict[str, Any] = json.loads(done.stdout)
    return costs


def record(what: str, costs: dict[str, Any], most: float) -> Figure:
    """The cost of a record beside its floor, and the most times that it may be."""
    floor = Reference("clock and 64-byte store", nanoseconds(costs["floor_ns"]))
    push = nanoseconds(costs["push_ns"])
    return Figure(what, Unit.SECONDS, push, floor, ratio_at_most(most))


def test_push_with_nobody_reading(
    benchmark: Any, report: Report, native_programs: Path, shm: Path, tmp_path: Path
) -> None:
    costs = benchmark.pedantic(
        push_cost, (native_programs, shm / "alone.ring", tmp_path, FLAT_OUT), rounds=1, iterations=1
    )
    benchmark.extra_info.update(costs)
    texts = nanoseconds(costs["unique_texts_ns"])
    report(
        record("a record, clock included", costs, 1.35),
        Figure("a span of known texts", Unit.SECONDS, nanoseconds(costs["span_ns"])),
        Figure("a span with new texts", Unit.SECONDS, texts, target=at_most(1e-6)),
    )


def test_push_with_the_recorder_draining(
    benchmark: Any, report: Report, native_programs: Path, shm: Path, tmp_path: Path
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
    benchmark.extra_info.update(costs)
    report(record("a record in bursts, the recorder draining", costs, 1.6))


def per_call_ns(loop: Callable[[int], None], count: int) -> float:
    begin = time.perf_counter_ns()
    loop(count)
    return (time.perf_counter_ns() - begin) / count


def test_python_span_beside_torch(
    benchmark: Any, report: Report, shm: Path, tmp_path: Path
) -> None:
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
    benchmark.extra_info["empty_ns"] = median(costs["empty"]).value
    again, new = without_loop(costs, "span"), without_loop(costs, "range")
    to_fast = Reference("_RecordFunctionFast", without_loop(costs, "record_function_fast"))
    to_slow = Reference("record_function", without_loop(costs, "record_function"))
    what = "with haiprof.range(…) entered again"
    report(
        Figure(what, Unit.SECONDS, again, to_fast, ratio_at_most(0.75)),
        Figure(what, Unit.SECONDS, again, to_slow, ratio_at_most(1 / 40)),
        Figure("with haiprof.range(…), a new one", Unit.SECONDS, new, to_slow),
    )


def without_loop(costs: dict[str, list[float]], name: str) -> Measured:
    """The cost of a span, of which the loop around it is no part."""
    return median(costs[name]).minus(median(costs["empty"]).value).times(1e-9)
