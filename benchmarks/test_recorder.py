"""What the recorder's whole process costs beside a job of five processes, stacks not counted.

By the kernel's account of that process, not by what its sources meter: draining rings, writing
tables and waking up are included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from figures import Figure, Measured, Unit, at_most
from processes import recorder_of, rss_mib
from reporting import Report

#: CPU time of a core by samples per second, and memory.
BUDGETS = {1: 0.002, 10: 0.01}
MOST_BYTES = 70 << 20
SECONDS = 20.0
#: Four processes that do nothing, and one that records a range now and then.
JOB = """
import subprocess, sys, time, haiprof
for _ in range(4):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
haiprof.start()
while True:
    with haiprof.range("work"):
        time.sleep(0.1)
"""


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process, ns."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


@pytest.fixture
def recorder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The recorder of a job that is sampled so many times a second."""
    shm = tmp_path / "shm"
    shm.mkdir()
    options = {"SHM_DIR": shm, "LOG_DIR": tmp_path / "logs", "SAMPLE_HZ": request.param}
    environment = {f"HAIPROF_{name}": str(value) for name, value in options.items()}
    job = subprocess.Popen(
        [sys.executable, "-P", "-c", JOB],
        env={**os.environ, **environment, "HAIPROF_STACK_HZ": "0"},
        start_new_session=True,
    )
    pid = recorder_of(shm)
    time.sleep(5.0)  # what it does in the beginning, and when the job has begun, it does once
    yield pid
    os.killpg(job.pid, 9)
    job.wait()


@pytest.mark.parametrize(("recorder", "hz"), [(hz, hz) for hz in BUDGETS], indirect=["recorder"])
def test_the_whole_process(benchmark: Any, report: Report, recorder: int, hz: int) -> None:
    def measure() -> float:
        before, begun = cpu_ns(recorder), time.monotonic()
        time.sleep(SECONDS)
        return (cpu_ns(recorder) - before) * 1e-9 / (time.monotonic() - begun)

    share = benchmark.pedantic(measure, rounds=1, iterations=1)
    assert 0 < share < 1
    memory = Measured(rss_mib(recorder) * 2**20)
    what = f"memory of the recorder's process at {hz} Hz"
    report(Figure(what, Unit.BYTES, memory, target=at_most(MOST_BYTES)))
    what = f"the recorder's process at {hz} Hz, of a core"
    report(Figure(what, Unit.SHARE, Measured(share), target=at_most(BUDGETS[hz])))
