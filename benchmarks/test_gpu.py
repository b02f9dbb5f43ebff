"""What it costs to take over the records of CUPTI."""

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
