"""What counting reads that are submitted costs who submits them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any


def test_submitting(
    benchmark: Any, native_programs: Path, native_build: Path, shm: Path, tmp_path: Path
) -> None:
    library = native_build / "tests" / "native" / "submit" / "libio_user_lazy.so"
    data = tmp_path / "data"
    data.write_bytes(os.urandom(1 << 20))

    def measure() -> dict[str, float]:
        done = subprocess.run(
            [native_programs / "submit_cost", shm / "submit.ring", library, data],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        costs: dict[str, float] = json.loads(done.stdout)
        return costs

    costs = benchmark.pedantic(measure, rounds=1, iterations=1)
    assert costs["bytes"] == 2 * 60 * 300 * (1 + 16) * 4096
    for name in ("libaio", "libaio_16", "io_uring", "io_uring_16", "syscall"):
        costs[f"{name}_ratio"] = costs[f"{name}_ns"] / costs[f"{name}_bare_ns"]
    benchmark.extra_info.update(costs)
    assert costs["io_uring_ratio"] <= 1.2
    assert costs["syscall_ratio"] <= 1.1
    assert costs["libaio_ns"] - costs["libaio_bare_ns"] <= 3000
