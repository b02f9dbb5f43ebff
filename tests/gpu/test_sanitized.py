"""The collector beside jobs, Kinetos and a failing CUPTI, under the sanitizers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fixtures import SANITIZERS, build_native


def run(sanitizers: str, program: str, *arguments: object, **environment: str) -> dict[str, Any]:
    """Run a program with all of its libraries built under the sanitizers; they must be silent."""
    programs = build_native("gpu_programs", sanitizers) / "tests" / "native"
    words = [str(argument).replace("{programs}", str(programs)) for argument in arguments]
    done = subprocess.run(
        [programs / program, *words],
        env={**os.environ, "LD_LIBRARY_PATH": f"{programs / 'cuda'}:{programs / 'cupti'}",
             "TSAN_OPTIONS": "halt_on_error=1", **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    assert "Sanitizer" not in done.stderr, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("scenario", "environment"),
    [
        ("after", {}),
        ("queued", {"FAKE_CUPTI_PLACE": "end"}),
        ("stopped", {}),
        ("after", {"TEARDOWN_CUPTI": "1"}),
        ("queued", {"KINETO_TSC": "0"}),
    ],
)
@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_handing_over(
    shm: Path, sanitizers: str, scenario: str, environment: dict[str, str]
) -> None:
    kineto = "{programs}/kineto_lazy/libkineto.so"
    result = run(sanitizers, "handover_job", shm / "ring", kineto, scenario, 2, **environment)
    assert result["unknown_buffers"] == result["lost_buffers"] == result["flips"] == 0
    assert len(result["sessions"]) == 2


@pytest.mark.parametrize("how", [[], ["fatal"]])
@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_many_threads_and_a_cupti_that_ends(shm: Path, sanitizers: str, how: list[str]) -> None:
    result = run(sanitizers, "gpu_job", shm / "ring", 3000, 40, *how)
    assert result["shared"] == result["damaged"] == result["dirty"] == 0
    assert 0 < result["kernels"] <= 40 * 3000 + 10
