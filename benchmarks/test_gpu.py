"""What it costs to take over the records of CUPTI, and to time phases with CUDA events."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any


def test_decoding(benchmark: Any, native_programs: Path, shm: Path) -> None:
    def measure() -> dict[str, float]:
        done = subprocess.run(
            [native_programs / "decode_cost", shm / "decode.ring", "400"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        costs: dict[str, float] = json.loads(done.stdout)
        return costs

    costs = benchmark.pedantic(measure, rounds=1, iterations=1)
    rate = 1e9 / costs["decode_ns"]
    benchmark.extra_info.update(costs, records_per_s=rate, target_records_per_s=30e6)
    assert rate >= 30e6


def test_timing_a_phase(benchmark: Any, native_programs: Path, shm: Path) -> None:
    def measure() -> dict[str, float]:
        done = subprocess.run(
            [native_programs / "stream_timer_cost", shm / "timer.ring"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        costs: dict[str, float] = json.loads(done.stdout)
        return costs

    costs = benchmark.pedantic(measure, rounds=1, iterations=1)
    benchmark.extra_info.update(costs, target_timed_ns=300, target_unused_ns=10)
    assert costs["spans"] == 30 * 100  # nothing was left out of what is called timed
    assert costs["timed_ns"] <= 300
    assert costs["unused_ns"] <= 10
