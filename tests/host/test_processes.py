"""Made-up process trees, for what is hard to provoke in real ones."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from host_trees import Key, Node, reason, states

from haiprof import _core


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def of(values: dict[Key, float], pid: int) -> dict[tuple[str, str | None], float]:
    return {
        (metric, instance): v for (target, metric, instance), v in values.items() if target == pid
    }


def test_a_tree_worked_out_by_hand(node: Node) -> None:
    node.process(
        10, ticks=100, threads=5, pages=1000, io=(1000, 100, 50, 5), switches=(10, 20), waited=10**9
    )
    node.process(11, 10, ticks=50, threads=2, pages=500, name="a ) (b", io=(10, 0, 0, 0))
    node.process(12, 11, state="Z", threads=1, pages=0)
    node.process(99, 1, ticks=7000)
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler)
    node.process(
        10, ticks=150, threads=5, pages=1000, io=(3000, 500, 50, 405), switches=(30, 26),
        waited=1_500_000_000, faults=300,
    )  # fmt: skip
    node.process(11, 10, ticks=100, threads=2, pages=500, name="a ) (b", io=(1010, 0, 0, 0))
    hertz = os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")
    assert of(node.tick(sampler, 2.0), 10) == {
        ("proc.cpu.percent", None): pytest.approx(100 * (100 / hertz) / 2.0),
        ("proc.major_faults.per_s", None): 0.0,
        ("proc.minor_faults.per_s", None): 100.0,
        ("proc.rss.bytes", None): 1500.0 * page,
        ("proc.threads.count", None): 7.0,
        ("proc.processes.count", None): 2.0,  # a zombie is none
        ("proc.context_switches.per_s", "voluntary"): 10.0,
        ("proc.context_switches.per_s", "involuntary"): 3.0,
        ("proc.cpu_wait.percent", None): pytest.approx(25.0),
        ("io.syscall_read.bytes_per_s", None): 1500.0,
        ("io.syscall_write.bytes_per_s", None): 200.0,
        ("io.storage_read.bytes_per_s", None): 0.0,
        ("io.storage_write.bytes_per_s", None): 200.0,
    }


def test_what_the_main_thread_does_in_the_kernel(node: Node) -> None:
    def main(system: int, faults: int) -> None:
        numbers = f"{faults} 70 3 0 500 {system} 9 9 20 0 4 0 500 1000 10 0 0"
        node.write("10/task/10/stat", f"10 (a ) b) R 1 1 1 0 -1 4194304 {numbers}\n")

    node.process(10, ticks=100)
    main(50, 1000)
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler)
    main(50 + os.sysconf("SC_CLK_TCK"), 6000)
    values = of(node.tick(sampler, 2.0), 10)
    assert values["proc.main_system.percent", None] == pytest.approx(50.0)
    assert values["proc.main_minor_faults.per_s", None] == 2500.0
    (node.procfs / "10/task/10/stat").write_text("10 (a")
    assert ("proc.main_system.percent", None) not in of(node.tick(sampler), 10)


def test_rates_of_a_process_begin_when_it_is_watched(node: Node) -> None:
    sampler = node.sampler(10.0)
    node.tick(sampler)
    node.process(10, waited=0, switches=(0, 0))
    sampler.watch(10)
    assert sampler.next_due_ns <= node.now
    node.tick(sampler, 1.0)
    node.process(10, waited=3_000_000_000, switches=(0, 0))
    values = of(node.tick(sampler, 10.0), 10)
    assert values["proc.cpu_wait.percent", None] == pytest.approx(30)


def test_a_reused_pid_is_another_process(node: Node) -> None:
    node.process(10)
    node.process(11, 10, io=(0, 1000, 0, 0))
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler)
    node.process(11, 1, start=9999, io=(0, 90000, 0, 0))
    assert of(node.tick(sampler), 10)["io.syscall_write.bytes_per_s", None] == 0.0
    assert of(node.tick(sampler), 10)["proc.processes.count", None] == 1.0


def test_a_reused_pid_of_a_new_child_is_found(node: Node) -> None:
    node.process(10)
    node.process(11, 10)
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler)
    node.process(11, 10, start=9999, io=(0, 500, 0, 0))
    total = sum(
        of(node.tick(sampler, 20.0), 10)["io.syscall_write.bytes_per_s", None] * 20
        for _ in range(3)
    )
    assert total == pytest.approx(500)


def test_a_kernel_without_io_accounts(node: Node) -> None:
    node.process(10, io=None)
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler)
    values = of(node.tick(sampler), 10)
    assert ("proc.cpu.percent", None) in values
    assert not any(metric.startswith("io.") for metric, _ in values)
    assert states(sampler)["process_io"] == "absent"
    assert "CONFIG_TASK_IO_ACCOUNTING" in reason(sampler, "process_io")


@pytest.mark.parametrize("text", [None, "0 0 0\n", "", "12\n"])
def test_a_kernel_that_does_not_count_waiting_for_a_cpu(node: Node, text: str | None) -> None:
    node.process(10)
    if text is not None:
        node.write("10/schedstat", text)
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler)
    values = of(node.tick(sampler), 10)
    assert ("proc.cpu.percent", None) in values
    assert ("proc.cpu_wait.percent", None) not in values
    assert states(sampler)["process"] == "ok"
    assert states(sampler)["process_wait"] == "absent"
    assert "CONFIG_SCHED_INFO" in reason(sampler, "process_wait")


def test_threads_that_communicate_wait_for_a_cpu(node: Node) -> None:
    def thread(tid: int, name: str, waited_ms: int) -> None:
        node.write(f"10/task/{tid}/comm", f"{name}\n")
        node.write(f"10/task/{tid}/schedstat", f"5 {waited_ms * 1_000_000} 3\n")

    def share(seconds: float = 1.0) -> float | None:
        return of(node.tick(sampler, seconds), 10).get(("proc.communication_wait.percent", None))

    node.process(10, threads=2, switches=(0, 0), waited=0)
    thread(10, "python", 0)
    thread(11, "pt_main_thread", 0)
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler)
    assert share() is None
    node.process(10, threads=4, switches=(0, 0), waited=0)
    thread(12, "gloo_tcp_loop", 100)
    thread(13, "NCCL Progress 0", 200)
    share()  # the first look at them
    thread(12, "gloo_tcp_loop", 400)
    thread(13, "NCCL Progress 0", 300)
    assert share() == pytest.approx(30.0)
    thread(11, "pt_main_thread", 900)
    thread(13, "NCCL Progress 0", 1300)
    assert share(2.0) == pytest.approx(50.0)
    # One has ended, and another one has begun.
    for file in ("comm", "schedstat"):
        (node.procfs / f"10/task/13/{file}").unlink()
    (node.procfs / "10/task/13").rmdir()
    node.process(10, threads=3, switches=(0, 0), waited=0)
    thread(12, "gloo_tcp_loop", 500)
    assert share() == pytest.approx(10.0)


@pytest.mark.parametrize("outer_first", [True, False])
def test_a_watched_process_below_a_watched_one_is_counted_at_the_inner(
    node: Node, outer_first: bool
) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 10)):
        node.process(pid, parent)
    sampler = node.sampler()
    for pid in (10, 11) if outer_first else (11, 10):
        sampler.watch(pid)
        node.tick(sampler, 20.0)
    node.process(12, 11, io=(0, 700, 0, 0))
    node.process(13, 10, io=(0, 30, 0, 0))
    values = node.tick(sampler)
    assert of(values, 10)["io.syscall_write.bytes_per_s", None] == 30.0
    assert of(values, 11)["io.syscall_write.bytes_per_s", None] == 700.0
    assert of(values, 10)["proc.processes.count", None] == 2.0


WRITTEN = ("io.syscall_write.bytes_per_s", None)


@pytest.fixture
def launcher(node: Node) -> _core.HostSampler:
    """A watched launcher 10 with a watched rank 11, its worker 12, and work done by all three."""
    node.process(10, io=(0, 1000, 0, 0), switches=(10, 10))
    node.process(11, 10, io=(0, 50_000, 0, 0), switches=(900, 900))
    node.process(12, 11, io=(0, 70_000, 0, 0))
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler, 20.0)
    sampler.watch(11)
    node.tick(sampler, 20.0)
    node.process(11, 10, io=(0, 90_000, 0, 0), switches=(900, 900))
    node.tick(sampler)
    return sampler


def test_an_inner_tree_that_is_unwatched_goes_on_in_the_outer_one(
    node: Node, launcher: _core.HostSampler
) -> None:
    launcher.unwatch(11)
    node.process(12, 11, io=(0, 70_300, 0, 0))
    values = node.tick(launcher)
    assert of(values, 11) == {}
    assert of(values, 10)["proc.processes.count", None] == 3.0
    assert of(values, 10)[WRITTEN] == 300.0  # neither their past nor nothing
    assert of(values, 10)["proc.context_switches.per_s", "voluntary"] == 0.0  # its own, not 11's
    values = node.tick(launcher, 20.0)
    assert of(values, 10)["proc.processes.count", None] == 3.0
    assert of(values, 10)[WRITTEN] == 0.0


def test_an_inner_tree_that_is_reaped_after_it_was_unwatched_is_counted_once(
    node: Node, launcher: _core.HostSampler
) -> None:
    launcher.unwatch(11)
    for pid in (11, 12):
        node.process(pid, 1, start=9999)  # somebody else's by now
    # What both had done, and 500 bytes since the last reading.
    node.process(10, io=(0, 161_500, 0, 0), reaped_faults=200, switches=(10, 10))
    values = node.tick(launcher)
    assert of(values, 10)["proc.processes.count", None] == 1.0
    assert of(values, 10)[WRITTEN] == 500.0


def test_a_process_that_is_watched_again_goes_on_where_it_was(
    node: Node, launcher: _core.HostSampler
) -> None:
    launcher.unwatch(11)
    launcher.watch(11)
    node.tick(launcher)
    node.process(12, 11, io=(0, 70_300, 0, 0))
    values = node.tick(launcher)
    assert of(values, 11)[WRITTEN] == 300.0
    assert of(values, 11)["proc.processes.count", None] == 2.0
    assert of(values, 10)[WRITTEN] == 0.0
    assert of(values, 10)["proc.processes.count", None] == 1.0


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_one = os.dup(0)
    os.close(next_one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_that_cannot_be_opened_just_now_is_not_gone(node: Node) -> None:
    node.process(10)
    node.process(11, 10)
    sampler = node.sampler()
    sampler.watch(10)
    with no_more_descriptors():
        assert of(node.tick(sampler, 20.0), 10) == {}
    assert sampler.changes() == []
    assert of(node.tick(sampler, 20.0), 10)["proc.processes.count", None] == 2.0


def test_a_process_that_was_listed_before_its_parent_is_found(node: Node) -> None:
    node.process(10)
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler, 20.0)
    node.process(12, 11, io=(0, 400, 0, 0))
    node.tick(sampler, 20.0)
    node.process(11, 10)
    values = of(node.tick(sampler, 20.0), 10)
    assert values["proc.processes.count", None] == 3.0
    assert values[WRITTEN] == 400.0 / 20.0


def test_watching_twice_is_watching_once(node: Node) -> None:
    node.process(10)
    sampler = node.sampler()
    sampler.watch(10)
    sampler.watch(10)
    node.tick(sampler)
    assert of(node.tick(sampler), 10)["proc.processes.count", None] == 1.0


def test_nothing_watched_is_said_so(node: Node) -> None:
    sampler = node.sampler()
    assert states(sampler)["process"] == "absent"
    assert "no process is watched" in reason(sampler, "process")


@pytest.mark.parametrize("late", [False, True])
def test_a_child_that_is_dead_but_still_listed_is_its_parents(node: Node, late: bool) -> None:
    """Linux adds what it did to its parent a moment before it is gone; ``late``: after we read."""
    node.process(10, io=(0, 1000, 0, 0))
    node.process(11, 10, io=(0, 500, 0, 0))
    sampler = node.sampler()
    sampler.watch(10)
    node.tick(sampler)
    node.process(11, 10, io=(0, 700, 0, 0))
    written = of(node.tick(sampler), 10)[WRITTEN]
    node.process(11, 10, io=(0, 900, 0, 0), state="X")
    for took_over in (not late, True):
        if took_over:
            node.process(10, io=(0, 1900, 0, 0), reaped_faults=100)
        written += of(node.tick(sampler), 10)[WRITTEN]
    assert written == 400.0
