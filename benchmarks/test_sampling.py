"""What sampling a node costs: CPU time of the thread that reads, of one core.

On the tree of a two-socket server, with counters that are really opened and read, and on this
machine itself; psutil, which reads much less, is measured beside it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import server_tree
from figures import Figure, Measured, Reference, Unit, at_most, ratio_at_most
from psutil_sampler import psutil_tick
from reporting import Report

from haiprof import _core

#: Sampling once a second may take 0.1 % of a core, ten times a second 1 %.
BUDGET_AT_1_HZ, BUDGET_AT_10_HZ = 0.001, 0.01
TICKS = {1: 20, 10: 100}


def share_of_a_core(tick: Callable[[], object], hz: int) -> float:
    """Tick in real time, caches as cold as that leaves them; return CPU time by time."""
    tick()  # opens what stays open
    spent = 0
    due = begun = time.monotonic()
    for _ in range(TICKS[hz]):
        due += 1 / hz
        time.sleep(max(0.0, due - time.monotonic()))
        before = time.thread_time_ns()
        tick()
        spent += time.thread_time_ns() - before
    return spent * 1e-9 / (time.monotonic() - begun)


def sampler_of(hz: int, **roots: str) -> _core.HostSampler:
    every = 1 / hz
    return _core.HostSampler(
        basic=every, ib=every, io=every, mem=every, power=every, gpu=0.0, **roots
    )


@pytest.fixture
def job() -> Iterator[int]:
    """A process with four workers, for this machine's own /proc."""
    program = "import subprocess, sys, time; [subprocess.Popen([sys.executable, '-c', "
    program += "'import time; time.sleep(600)']) for _ in range(4)]; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    time.sleep(1)
    yield process.pid
    os.killpg(process.pid, 9)
    process.wait()


def cost_on_a_server(
    benchmark: Any, folder: Path, hz: int, *, adapters: int, stacks: int
) -> tuple[dict[str, float], Measured]:
    """Sample the server; return the cost of each source, us, and that of all, of a core."""
    proc, sys_ = server_tree.make(folder, adapters, stacks)
    sampler = sampler_of(hz, procfs=str(proc), sysfs=str(sys_))
    sampler.watch(server_tree.RANK)
    values = 0
    spent: dict[str | None, list[float]] = {}

    def tick() -> None:
        nonlocal values
        rows = sampler.read(time.monotonic_ns())
        values = max(values, len(rows))
        for _, metric, source, value, _ in rows:
            if metric == "haiprof.cost.ratio":
                spent.setdefault(source, []).append(value)

    share = benchmark.pedantic(lambda: share_of_a_core(tick, hz), rounds=1, iterations=1)
    cost = {s["name"]: s["cost_us"] for s in sampler.sources() if s["state"] == "ok"}
    # Every source tells what it has cost since its last reading, however seldom it is read.
    sources = sum(map(statistics.mean, spent.values()))
    benchmark.extra_info.update(share_of_a_core=share, values=values, us_by_source=cost)
    assert {"memory_bandwidth", "links", "cpu_power", "infiniband", "cgroup_cpu"} <= set(cost)
    return cost, Measured(sources)


@pytest.mark.parametrize(("hz", "budget"), [(1, BUDGET_AT_1_HZ), (10, BUDGET_AT_10_HZ)])
def test_a_two_socket_server(
    benchmark: Any, report: Report, tmp_path: Path, hz: int, budget: float
) -> None:
    _, share = cost_on_a_server(benchmark, tmp_path, hz, adapters=2, stacks=0)
    what = f"sampling a two-socket server at {hz} Hz, of a core"
    report(Figure(what, Unit.SHARE, share, target=at_most(budget)))


@pytest.mark.parametrize(("hz", "budget"), [(1, BUDGET_AT_1_HZ), (10, BUDGET_AT_10_HZ)])
def test_a_server_with_eight_adapters_and_its_pcie_counted(
    benchmark: Any, report: Report, tmp_path: Path, hz: int, budget: float
) -> None:
    cost, share = cost_on_a_server(benchmark, tmp_path, hz, adapters=8, stacks=6)
    assert "pcie" in cost
    what = f"sampling a server with eight adapters, PCIe too, at {hz} Hz"
    report(Figure(what, Unit.SHARE, share, target=at_most(budget)))


@pytest.mark.parametrize("hz", [1, 10])
def test_this_machine_beside_psutil(benchmark: Any, report: Report, job: int, hz: int) -> None:
    sampler = sampler_of(hz)
    sampler.watch(job)

    def measure() -> tuple[float, float]:
        ours = share_of_a_core(lambda: sampler.read(time.monotonic_ns()), hz)
        return ours, share_of_a_core(psutil_tick(job), hz)

    ours, theirs = benchmark.pedantic(measure, rounds=1, iterations=1)
    what = f"sampling this machine at {hz} Hz, of a core"
    peer = Reference("psutil", Measured(theirs))
    report(Figure(what, Unit.SHARE, Measured(ours), peer, ratio_at_most(1)))
