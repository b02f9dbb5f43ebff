"""What counting reads that are submitted costs who submits them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from figures import Figure, Reference, Target, Unit, added_at_most, nanoseconds, ratio_at_most
from reporting import Report

#: The loads of the native program, what they are, and their targets.
LOADS: tuple[tuple[str, str, Target | None], ...] = (
    ("libaio", "a submission through libaio", added_at_most(3e-6)),
    ("libaio_16", "16 at once through libaio", None),
    ("io_uring", "a submission through liburing", ratio_at_most(1.2)),
    ("io_uring_16", "16 at once through liburing", None),
    ("syscall", "another call of syscall()", ratio_at_most(1.1)),
)


def test_submitting(
    benchmark: Any,
    report: Report,
    native_programs: Path,
    native_build: Path,
    shm: Path,
    tmp_path: Path,
) -> None:
    library = native_build / "tests" / "native" / "submit" / "libio_user_lazy.so"
    data = tmp_path / "data"
    data.write_bytes(os.urandom(1 << 20))

    def measure() -> dict[str, Any]:
        done = subprocess.run(
            [native_programs / "submit_cost", shm / "submit.ring", library, data],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        costs: dict[str, Any] = json.loads(done.stdout)
        return costs

    costs = benchmark.pedantic(measure, rounds=1, iterations=1)
    assert costs["bytes"] == 2 * 60 * 300 * (1 + 16) * 4096
    benchmark.extra_info.update(costs)
    report(*(figure(costs, *load) for load in LOADS))


def figure(costs: dict[str, Any], name: str, what: str, target: Target | None) -> Figure:
    bare = Reference("without haiprof", nanoseconds(costs[f"{name}_bare_ns"]))
    return Figure(what, Unit.SECONDS, nanoseconds(costs[f"{name}_ns"]), bare, target)
