"""What it costs to take over the records of CUPTI, and to time phases with CUDA events."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from figures import Figure, Reference, Unit, at_least, at_most, nanoseconds
from reporting import Report


def test_decoding(benchmark: Any, report: Report, native_programs: Path, shm: Path) -> None:
    def measure() -> dict[str, Any]:
        done = subprocess.run(
            [native_programs / "decode_cost", shm / "decode.ring", "400"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        costs: dict[str, Any] = json.loads(done.stdout)
        return costs

    costs = benchmark.pedantic(measure, rounds=1, iterations=1)
    benchmark.extra_info.update(costs)
    what = "kernel records from CUPTI's buffer into the ring"
    rate = nanoseconds(costs["decode_ns"]).per_second()
    walk = Reference("walking over them", nanoseconds(costs["walk_ns"]).per_second())
    report(Figure(what, Unit.PER_SECOND, rate, walk, at_least(30e6)))


def test_timing_a_phase(benchmark: Any, report: Report, native_programs: Path, shm: Path) -> None:
    def measure() -> dict[str, Any]:
        done = subprocess.run(
            [native_programs / "stream_timer_cost", shm / "timer.ring"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        costs: dict[str, Any] = json.loads(done.stdout)
        return costs

    costs = benchmark.pedantic(measure, rounds=1, iterations=1)
    benchmark.extra_info.update(costs)
    assert costs["spans"] == 30 * 100  # nothing was left out of what is called timed
    timed, unused, left_out = (
        nanoseconds(costs[name]) for name in ("timed_ns", "unused_ns", "left_out_ns")
    )
    alone = Reference("the boundary itself", nanoseconds(costs["alone_ns"]))
    report(
        Figure("timing a phase boundary on the GPU", Unit.SECONDS, timed, alone, at_most(300e-9)),
        Figure(
            "a phase boundary where no GPU is used", Unit.SECONDS, unused, alone, at_most(10e-9)
        ),
        Figure("a phase boundary that is left out", Unit.SECONDS, left_out, alone),
    )
