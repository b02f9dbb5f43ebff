"""What the recorder's whole process costs beside a job of five processes, stacks not counted.

By the kernel's account of that process, not by what its sources meter: draining rings, writing
tables and waking up are included. Beside it, at the same time, sample the same node at the same
rate: a process that reads with psutil and writes lines of JSON; and Prometheus' node_exporter with
its usual collectors, asked by somebody else, where there is one. They know nothing of steps.
"""

from __future__ import annotations

import http.client
import mmap
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psutil_sampler
import pytest
from figures import Figure, Measured, Reference, Unit, at_most, median_in_range
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


class Sampled(NamedTuple):
    """A job that is sampled: its process, and the recorder's."""

    job: int
    recorder: int


@pytest.fixture
def sampled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sampled]:
    """A job whose recorder samples so many times a second."""
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
    yield Sampled(job.pid, pid)
    os.killpg(job.pid, 9)
    job.wait()


def measured_beside(pids: list[int]) -> list[float]:
    """Return what each process uses of a core, at the same time."""
    before, begun = [cpu_ns(pid) for pid in pids], time.monotonic()
    time.sleep(SECONDS)
    passed = time.monotonic() - begun
    return [(cpu_ns(pid) - used) * 1e-9 / passed for pid, used in zip(pids, before, strict=True)]


@pytest.fixture
def with_psutil(sampled: Sampled, hz: int, tmp_path: Path) -> Iterator[int]:
    """A process that samples the same with psutil."""
    lines = tmp_path / "psutil.jsonl"
    program = [sys.executable, psutil_sampler.__file__, str(sampled.job), str(hz), str(lines)]
    process = subprocess.Popen(program)
    time.sleep(2.0)
    yield process.pid
    process.kill()
    process.wait()
    assert len(lines.read_text().splitlines()) > SECONDS * hz / 2


@pytest.fixture
def node_exporter(hz: int) -> Iterator[int]:
    """Prometheus' node_exporter, which is asked so many times a second."""
    names = ("node_exporter", "prometheus-node-exporter")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"neither {' nor '.join(names)} is on PATH")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    process = subprocess.Popen([program, f"--web.listen-address={address}", "--log.level=error"])
    over = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        while not over.wait(1 / hz):
            connection = http.client.HTTPConnection(address, timeout=10)
            with closing(connection):
                connection.request("GET", "/metrics")
                answers.append(len(connection.getresponse().read()))

    time.sleep(2.0)
    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(2.0)
    yield process.pid
    over.set()
    asking.join()
    process.kill()
    process.wait()
    assert len(answers) > SECONDS * hz / 2
    assert min(answers) > 1000


#: As much memory as a few recorders have.
PAGES = 8192


def page_s(idle_s: float) -> float:
    """CPU time that it takes to read from a page of memory which nothing has used for so long, s.

    Some virtual machines take the pages of an idle guest away, and charge it for what it takes to
    have them back: there, who wakes up rarely pays for that most of all.
    """
    with (
        mmap.mmap(-1, PAGES * mmap.PAGESIZE) as memory,
        memoryview(memory) as whole,
        whole[:: mmap.PAGESIZE] as pages,
    ):
        for _ in range(2):
            pages[:] = bytes(PAGES)
        time.sleep(idle_s)
        begun = time.thread_time()
        bytes(pages)
        return (time.thread_time() - begun) / PAGES


def test_what_an_idle_page_costs(benchmark: Any, report: Report) -> None:
    rounds = 5
    used = min(page_s(0.0) for _ in range(rounds))
    idle = benchmark.pedantic(lambda: [page_s(1.0) for _ in range(rounds)], rounds=1, iterations=1)
    assert 0 < used < 1e-3
    assert min(idle) > 0
    floor = Reference("one that was used just before", Measured(used))
    what = "a page of memory that nothing has used for 1 s, on this machine"
    report(Figure(what, Unit.SECONDS, median_in_range(idle), floor))


RATES = pytest.mark.parametrize(
    ("sampled", "hz"), [(hz, hz) for hz in BUDGETS], indirect=["sampled"]
)


@RATES
def test_beside_node_exporter(
    benchmark: Any, report: Report, sampled: Sampled, node_exporter: int, hz: int
) -> None:
    shares = benchmark.pedantic(
        measured_beside, ([sampled.recorder, node_exporter],), rounds=1, iterations=1
    )
    assert all(0 < share < 1 for share in shares)
    peer = Reference("node_exporter, which is asked as often", Measured(shares[1]))
    what = f"the recorder's process at {hz} Hz beside node_exporter, of a core"
    report(Figure(what, Unit.SHARE, Measured(shares[0]), peer))


@RATES
def test_the_whole_process(
    benchmark: Any, report: Report, sampled: Sampled, with_psutil: int, hz: int
) -> None:
    recorder = sampled.recorder
    share, peers = benchmark.pedantic(
        measured_beside, ([recorder, with_psutil],), rounds=1, iterations=1
    )
    assert 0 < share < 1
    assert 0 < peers < 1
    memory = Measured(rss_mib(recorder) * 2**20)
    what = f"memory of the recorder's process at {hz} Hz"
    report(Figure(what, Unit.BYTES, memory, target=at_most(MOST_BYTES)))
    what = f"the recorder's process at {hz} Hz, of a core"
    peer = Reference("a process that samples with psutil", Measured(peers))
    report(Figure(what, Unit.SHARE, Measured(share), peer, at_most(BUDGETS[hz])))
