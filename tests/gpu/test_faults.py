"""Faults of a GPU in a whole job, from the double of the driver to what haiprof diagnose says."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import cuda_jobs
import pytest
from commands import haiprof

pytestmark = pytest.mark.jobs

# A hundred steps and more, with readings of the GPU beside them.
TRAINS = """
    use_cuda()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        train(20, each=lambda: time.sleep(0.002))
"""
FAILS = (
    TRAINS
    + """
    raise RuntimeError("CUDA error: unknown error")
"""
)


@pytest.fixture
def diagnosed(tmp_path: Path, native_build: Path) -> Any:
    """Run a job under haiprof on doubles of a GPU with a fault; return what it finds."""

    def run(program: str, seconds: float, ends_with: int = 0, **fault: str) -> list[dict[str, Any]]:
        script = tmp_path / "train.py"
        script.write_text(cuda_jobs.source(program.replace("SECONDS", str(seconds))))
        places = (
            native_build / "tests" / "native" / name for name in ("cuda", "cupti", "nvidia-ml")
        )
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(map(str, places)),
            "FAKE_CUDA_PLAIN_UUID": "1",
            "FAKE_NVML_CLOCK": "real",
            **fault,
        }
        logs = tmp_path / "logs"
        words = ("run", "--log-dir", logs, "--gpu-interval", "0.1", "--", sys.executable, script)
        done = haiprof(*words, env=environment)
        assert done.returncode == ends_with, done.stderr
        done = haiprof("diagnose", logs, "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return found

    return run


def test_a_cuda_error_is_named_by_what_the_driver_reported(diagnosed: Any) -> None:
    first = diagnosed(FAILS, 3.0, ends_with=1, FAKE_NVML_XID="79@10")[0]
    assert (first["kind"], first["ranks"]) == ("gpu_lost", [0])
    assert "CUDA error: unknown error" in first["problem"]
    assert (
        "Its GPU's driver reported gpu0: Xid 79, the GPU has fallen off the bus"
        in (first["problem"])
    )


def test_a_hot_gpu_and_an_error_that_did_not_end_the_job_are_named(diagnosed: Any) -> None:
    found = {each["kind"]: each for each in diagnosed(TRAINS, 4.0, FAKE_NVML_XID="63@10")}
    # The double is hot for half of the time.
    assert "gpu0 of" in found["gpu_thermal"]["problem"]
    share = re.search(r"ran at lower clocks (\d+) % of the time", found["gpu_thermal"]["problem"])
    assert share is not None
    assert 30 <= int(share[1]) <= 70
    assert "Xid 63" in found["gpu_row_remap"]["problem"]
    assert found["gpu_row_remap"]["lost_ns"] is None
