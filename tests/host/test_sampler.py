"""When sources are read, what they cost, and what is said about them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from host_trees import SECOND, STAT, Node, states

from haiprof import _core, schema


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.write("stat", STAT)
    return node


def test_nothing_is_due_before_the_interval_is_over(node: Node) -> None:
    sampler = node.sampler(interval=2.0)
    assert sampler.next_due_ns == 0
    node.tick(sampler)
    due = sampler.next_due_ns
    assert due == node.now + 2 * SECOND
    assert sampler.read(due - 1) == []
    assert sampler.read(due) != []


def test_samples_of_a_late_reading_are_flagged(node: Node) -> None:
    sampler = node.sampler(interval=1.0)
    node.tick(sampler)

    def flags(seconds: float) -> int:
        node.now += round(seconds * SECOND)
        rows = sampler.read(node.now)
        return next(row[4] for row in rows if row[1] == "cpu.context_switches.per_s")

    assert flags(1.0) == 0
    assert flags(3.0) == schema.FLAG_LATE
    assert flags(1.0) == 0


def test_a_clock_that_starts_again_does_not_stop_the_sampling(node: Node) -> None:
    sampler = node.sampler()
    node.tick(sampler)
    node.now = SECOND
    values = node.tick(sampler)
    assert values[0, "cpu.run_queue.threads", None] == 3.0
    assert (0, "cpu.context_switches.per_s", None) not in values
    assert (0, "cpu.context_switches.per_s", None) in node.tick(sampler)


def test_the_cost_of_each_source_is_a_series(node: Node) -> None:
    sampler = node.sampler()
    node.tick(sampler)
    cost = node.tick(sampler)[0, "haiprof.cost.ratio", "cpu"]
    assert 0.0 < cost < 0.1
    row = next(row for row in sampler.sources() if row["name"] == "cpu")
    assert float(str(row["cost_us"])) > 0.0
    assert row["interval_s"] == 1.0


def test_a_source_that_appears_later_is_picked_up_and_reported(node: Node) -> None:
    sampler = node.sampler()
    node.tick(sampler)
    assert sampler.changes() == []
    node.write("meminfo", "MemTotal: 1000 kB\n")
    assert (0, "mem.total.bytes", None) not in node.tick(sampler)  # tried again once a minute
    assert node.tick(sampler, 60.0)[0, "mem.total.bytes", None] == 1000 * 1024
    assert sampler.changes() == [("source", "source memory is back", {})]
    assert sampler.changes() == []
    assert states(sampler)["memory"] == "ok"


def test_a_source_that_breaks_is_reported_once_and_the_others_go_on(node: Node) -> None:
    node.write("meminfo", "MemTotal: 1000 kB\n")
    sampler = node.sampler()
    node.tick(sampler)
    node.write("stat", "nothing of the kind\n")
    for _ in range(5):
        assert node.tick(sampler)[0, "mem.total.bytes", None] == 1000 * 1024
    [(_, change, _)] = sampler.changes()
    assert change.startswith("source cpu is absent: ")
    assert str(node.procfs / "stat") in change


def test_every_metric_that_comes_is_described(node: Node) -> None:
    me = _core.HostSampler()
    me.watch(os.getpid())
    described = {m for row in me.sources() for m in row["metrics"]}  # type: ignore[attr-defined]
    me.read(time.monotonic_ns())
    came = {row[1] for row in me.read(time.monotonic_ns() + SECOND)}
    assert came - {"haiprof.cost.ratio"} <= described
    assert len(came) > 15


@pytest.mark.parametrize("interval", [-1.0, 0.001, 1e9, math.nan, math.inf])
def test_an_impossible_interval_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="interval must be 0 or between"):
        _core.HostSampler(basic=interval)


@pytest.mark.parametrize("pid", [0, -5, 1 << 40])
def test_an_impossible_pid_is_refused(pid: int) -> None:
    sampler = _core.HostSampler()
    with pytest.raises(ValueError, match="pid must be between"):
        sampler.watch(pid)
    with pytest.raises(ValueError, match="pid must be between"):
        sampler.unwatch(pid)


def test_unwatching_what_was_never_watched_is_nothing() -> None:
    sampler = _core.HostSampler()
    sampler.unwatch(12345)
    sampler.watch(os.getpid())
    sampler.read(1)
    assert "proc.rss.bytes" in {row[1] for row in sampler.read(2_000_000_000)}


def test_threads_may_share_a_sampler() -> None:
    sampler = _core.HostSampler(basic=0.01)
    failures: list[BaseException] = []

    def use(work: int) -> None:
        try:
            for i in range(200):
                sampler.read(time.monotonic_ns())
                if i % 10 == work:
                    sampler.watch(os.getpid())
                    sampler.sources()
                    sampler.unwatch(os.getpid())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_it_works_when_no_descriptor_may_be_kept() -> None:
    """With a limit of 3 + a handful there is nothing to keep open, only to open and close."""
    code = """
import os, resource, time
from haiprof._core import HostSampler
resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
sampler = HostSampler()
sampler.watch(os.getpid())
now = time.monotonic_ns()
sampler.read(now)
rows = sampler.read(now + 1_000_000_000)
assert len(os.listdir("/proc/self/fd")) <= 7, os.listdir("/proc/self/fd")
names = {row[1] for row in rows}
assert {"cpu.run_queue.threads", "mem.used.bytes", "proc.rss.bytes"} <= names, names
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_metric_has_its_row_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for row in _core.HostSampler().sources():
        for metric in row["metrics"]:  # type: ignore[attr-defined]
            assert f"`{metric}`" in page
