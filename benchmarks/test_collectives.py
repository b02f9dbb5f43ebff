"""What it costs to record a collective: time of the threads that ask for it and do it, and disk.

Of gloo with one rank, which has nothing to transfer: what is left is the path of every operation.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from figures import Figure, Interval, Measured, Reference, Unit, at_most
from recording import wait_recorded
from reporting import Report

#: 50 collectives may cost 0.1 % of a step of 10 ms.
BUDGET: Final = 200e-9
#: A record may take so much of the disk, bytes.
BYTES: Final = 16.0
ROUNDS: Final = 400

#: Prints ns of wall and CPU time that an operation takes: before, with us, after; in rounds.
COST = """
import os, sys, time
import torch, torch.distributed as dist
from haiprof import _core
from haiprof.capture.hooks.collectives import Collectives

torch.set_num_threads(1)
# On one core, threads take turns in the same way each time.
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
_core.open_ring(f"{os.environ['HAIPROF_SHM_DIR']}/bench.ring")
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
tensors, options, hook = [torch.ones(1000)], dist.AllreduceOptions(), Collectives(print)

def block():
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(10):  # as a backward pass does: many are asked for, then waited for
        for work in [backend.allreduce(tensors, options) for _ in range(50)]:
            work.wait()
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    return wall / 500, cpu / 500

block()
for _ in range(int(sys.argv[1])):
    before = block()
    hook.attach()
    block()
    during = block()
    hook.detach()
    print(*before, *during, *block())
"""

#: Asks for many, with a pause now and then.
MANY = """
import _haiprof_boot
_haiprof_boot.arm()
import time
import torch, torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for n in range(400):
    for work in [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(50)]:
        work.wait()
    time.sleep(0.002)
dist.destroy_process_group()
"""


def interval(values: list[float]) -> Measured:
    """Return the mean and its 95 % confidence interval."""
    mean = statistics.mean(values)
    half = 1.96 * statistics.stdev(values) / len(values) ** 0.5
    return Measured(mean, Interval(mean - half, mean + half, "95 %"))


def test_time_of_a_collective(benchmark: Any, report: Report, shm: Path) -> None:
    def run() -> str:
        command = [sys.executable, "-c", COST, str(ROUNDS)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    said = benchmark.pedantic(run, rounds=1, iterations=1)
    rows = [[float(word) * 1e-9 for word in line.split()] for line in said.splitlines()]
    assert len(rows) == ROUNDS
    for what, at, target in (
        ("recording a collective, CPU time of all threads", 1, at_most(BUDGET)),
        ("recording a collective, wall time", 0, None),
    ):
        ours = [row[2 + at] - (row[at] + row[4 + at]) / 2 for row in rows]
        nothing = [row[4 + at] - row[at] for row in rows]
        floor = Reference("nothing at all", interval(nothing))
        report(Figure(what, Unit.SECONDS, interval(ours), floor, target))


def test_bytes_of_a_record(benchmark: Any, report: Report, shm: Path, tmp_path: Path) -> None:
    from launched import recorded

    def run() -> None:
        environment = recorded(tmp_path, run="run", stack_hz=0) | {"RANK": "0", "WORLD_SIZE": "1"}
        subprocess.run([sys.executable, "-c", MANY], env=environment, check=True)
        wait_recorded(shm)

    benchmark.pedantic(run, rounds=1, iterations=1)
    files = list((tmp_path / "run").glob("*#0/collectives-*.arrow"))
    rows = sum(pa.ipc.open_file(file).read_all().num_rows for file in files)
    assert rows >= 20_000
    size = Measured(sum(file.stat().st_size for file in files) / rows)
    report(Figure("a record of a collective on disk", Unit.BYTES, size, target=at_most(BYTES)))
    benchmark.extra_info["rows"] = rows
