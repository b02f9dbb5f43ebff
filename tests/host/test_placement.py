"""Where the threads of a job run, and where its memory lies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_trees import SECOND, Key, Node, reason, states

from haiprof import _core

PID = 10
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGESIZE")
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNT = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A machine of two NUMA nodes, 0 with CPUs 0-3 and 1 with 4-7, and process 10."""
    node = Node(tmp_path)
    node.write_sys("devices/system/node/node0/cpulist", "0-3\n")
    node.write_sys("devices/system/node/node1/cpulist", "4-7\n")
    node.process(PID)
    return node


def thread(
    node: Node, tid: int, *, ticks: float, cpu: int | str, start: int = 500, pid: int = PID
) -> None:
    """Write one thread: CPU time in seconds of one core, half of it in the kernel."""
    half = round(ticks * TICKS) // 2
    rest = round(ticks * TICKS) - half
    node.write(
        f"{pid}/task/{tid}/stat",
        f"{tid} (py ) th) S 1 1 1 0 -1 4194304 1 0 3 0 {half} {rest} 0 0 20 0 4 0 {start} 1000 "
        f"10 0 0 0 0 0 0 0 0 0 0 0 0 0 17 {cpu} 0 0 0 0 0\n",
    )


def watching(node: Node, pid: int = PID) -> _core.HostSampler:
    sampler = node.sampler()
    sampler.watch(pid)
    node.tick(sampler, 10.0)
    return sampler


def on_nodes(values: dict[Key, float], pid: int = PID) -> dict[str | None, float]:
    return {i: v for (t, m, i), v in values.items() if t == pid and m == "proc.cpu_node.percent"}


def lies_on(values: dict[Key, float], pid: int = PID) -> dict[str | None, float]:
    return {i: v for (t, m, i), v in values.items() if t == pid and m == "cgroup.memory_node.bytes"}


# ---- threads


def test_all_threads_that_wait_for_a_cpu_add_up(node: Node) -> None:
    def waited(tid: int, seconds: float) -> None:
        node.write(f"{PID}/task/{tid}/schedstat", f"5 {round(seconds * SECOND)} 3\n")

    for tid in (10, 12):
        thread(node, tid, ticks=1, cpu=0)
        waited(tid, 100.0)
    sampler = watching(node)
    waited(10, 105.0)
    waited(12, 120.0)
    thread(node, 13, ticks=0, cpu=0, start=600)  # born since: all of it is new
    waited(13, 5.0)
    assert node.tick(sampler, 10.0)[PID, "proc.threads_wait.percent", None] == pytest.approx(300.0)
    assert node.tick(sampler, 10.0)[PID, "proc.threads_wait.percent", None] == 0.0


def test_a_kernel_that_does_not_count_how_long_threads_wait(node: Node) -> None:
    thread(node, 10, ticks=1, cpu=0)
    sampler = watching(node)
    assert (PID, "proc.threads_wait.percent", None) not in node.tick(sampler, 10.0)


def test_cpu_time_goes_to_the_node_where_a_thread_was_last_seen(node: Node) -> None:
    thread(node, 10, ticks=100, cpu=0)
    thread(node, 12, ticks=200, cpu=6)
    thread(node, 13, ticks=0, cpu=2)
    sampler = watching(node)
    thread(node, 10, ticks=105, cpu=3)
    thread(node, 12, ticks=210, cpu=7)
    thread(node, 13, ticks=4, cpu=4)  # moved to the other node
    assert on_nodes(node.tick(sampler, 10.0)) == {
        "node0": pytest.approx(50.0),
        "node1": pytest.approx(140.0),
    }


def test_a_node_that_runs_nothing_of_the_job_is_zero(node: Node) -> None:
    thread(node, 10, ticks=1, cpu=0)
    sampler = watching(node)
    thread(node, 10, ticks=2, cpu=0)
    values = on_nodes(node.tick(sampler, 10.0))
    assert values == {"node0": pytest.approx(10.0), "node1": 0.0}


def test_thread_born_in_between_counts_whole_and_an_older_one_from_now(node: Node) -> None:
    thread(node, 10, ticks=0, cpu=0)
    sampler = watching(node)
    thread(node, 10, ticks=0, cpu=0)
    thread(node, 11, ticks=2, cpu=4, start=900)
    thread(node, 12, ticks=50, cpu=4, start=100)  # an old process that came into the tree
    assert on_nodes(node.tick(sampler, 10.0))["node1"] == pytest.approx(20.0)


def test_thread_number_that_is_given_again_starts_anew(node: Node) -> None:
    thread(node, 10, ticks=0, cpu=0)
    thread(node, 11, ticks=50, cpu=4, start=600)
    sampler = watching(node)
    thread(node, 11, ticks=3, cpu=4, start=900)
    assert on_nodes(node.tick(sampler, 10.0))["node1"] == pytest.approx(30.0)


def test_workers_count_at_the_nearest_watched_process(node: Node) -> None:
    node.process(20, parent=PID)
    node.process(21, parent=20)
    thread(node, 10, ticks=0, cpu=0)
    thread(node, 20, ticks=0, cpu=0, pid=20)
    thread(node, 21, ticks=0, cpu=4, pid=21)
    sampler = node.sampler()
    sampler.watch(PID)
    sampler.watch(20)
    node.tick(sampler, 10.0)
    thread(node, 10, ticks=1, cpu=0)
    thread(node, 20, ticks=2, cpu=0, pid=20)
    thread(node, 21, ticks=4, cpu=4, pid=21)
    values = node.tick(sampler, 10.0)
    assert on_nodes(values) == {"node0": pytest.approx(10.0), "node1": 0.0}
    assert on_nodes(values, 20) == {"node0": pytest.approx(20.0), "node1": pytest.approx(40.0)}


def test_it_is_read_every_ten_seconds_at_most(node: Node) -> None:
    thread(node, 10, ticks=0, cpu=0)
    sampler = watching(node)
    assert not on_nodes(node.tick(sampler, 9.0))
    assert on_nodes(node.tick(sampler, 1.0))


def test_cpus_of_no_node_and_broken_threads_are_left_out(node: Node) -> None:
    thread(node, 10, ticks=0, cpu=0)
    for tid in (11, 12):
        thread(node, tid, ticks=0, cpu=9)
    sampler = watching(node)
    thread(node, 10, ticks=1, cpu=0)
    thread(node, 11, ticks=5, cpu=9)
    thread(node, 12, ticks=5, cpu=999999)
    node.write(f"{PID}/task/13/stat", "13 (x) S 1")
    node.write(f"{PID}/task/nothing/stat", "")
    (node.procfs / f"{PID}/task/14").mkdir()
    assert on_nodes(node.tick(sampler, 10.0)) == {"node0": pytest.approx(10.0), "node1": 0.0}


def test_more_threads_than_are_looked_at(node: Node) -> None:
    for tid in range(PID, PID + 1100):
        thread(node, tid, ticks=0, cpu=0)
    sampler = watching(node)
    for tid in range(PID, PID + 1100):
        thread(node, tid, ticks=1, cpu=0)
    # Which of them, the folder decides; what is read is right.
    assert on_nodes(node.tick(sampler, 10.0))["node0"] == pytest.approx(10240.0, rel=0.15)


def test_no_nodes_no_figures_and_a_reason(tmp_path: Path) -> None:
    bare = Node(tmp_path)
    bare.process(PID)
    thread(bare, 10, ticks=0, cpu=0)
    sampler = watching(bare)
    assert not on_nodes(bare.tick(sampler, 10.0))
    assert states(sampler)["placement_cpu"] == "absent"
    assert "CONFIG_NUMA" in reason(sampler, "placement_cpu")


def test_nothing_watched(node: Node) -> None:
    sampler = node.sampler()
    node.tick(sampler, 10.0)
    assert "no process is watched" in reason(sampler, "placement_affinity")


def test_series_end_with_the_watch(node: Node) -> None:
    thread(node, 10, ticks=0, cpu=0)
    node.write(f"{PID}/status", "Cpus_allowed_list:\t0-7\n")
    sampler = watching(node)
    assert any(target == PID for target, _, _ in node.tick(sampler, 10.0))
    sampler.unwatch(PID)
    assert not any(target == PID for target, _, _ in node.tick(sampler, 10.0))


# ---- affinity


def affinities(sampler: _core.HostSampler) -> list[tuple[str, str, dict[str, object]]]:
    return [change for change in sampler.changes() if change[0].startswith("affinity")]


def test_allowed_cpus_and_their_change(node: Node) -> None:
    node.write(f"{PID}/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,6\n")
    sampler = node.sampler()
    sampler.watch(PID)
    values = node.tick(sampler, 10.0)
    assert values[PID, "proc.allowed_cpus.count", None] == 5.0
    assert affinities(sampler) == [
        ("affinity", "process 10 may run on CPUs 0-3,6", {"pid": PID, "cpus": "0-3,6"})
    ]
    node.tick(sampler, 10.0)
    assert affinities(sampler) == []
    node.write(f"{PID}/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t4-7\n")
    values = node.tick(sampler, 10.0)
    assert values[PID, "proc.allowed_cpus.count", None] == 4.0
    assert affinities(sampler) == [
        (
            "affinity_changed",
            "process 10 may now run on CPUs 4-7, before on 0-3,6",
            {"pid": PID, "cpus": "4-7", "before": "0-3,6"},
        )
    ]


@pytest.mark.parametrize("text", ["", "0-", "-", "3-1", "0-99999999", "a", "0,,1", "0-3 "])
def test_odd_lists_of_cpus(node: Node, text: str) -> None:
    node.write(f"{PID}/status", f"Cpus_allowed_list:\t{text}\n")
    sampler = node.sampler()
    sampler.watch(PID)
    values = node.tick(sampler, 10.0)
    expected = 4.0 if text == "0-3 " else None
    assert values.get((PID, "proc.allowed_cpus.count", None)) == expected


# ---- a real process

BUSY = r"""
import os, sys, threading, time

def spin(cpu):
    os.sched_setaffinity(0, {cpu})
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass

cpus = sorted(os.sched_getaffinity(0))
threading.Thread(target=spin, args=(cpus[-1],), daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    os.sched_setaffinity(0, {cpus[0]})
    print("moved", flush=True)
"""


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_pinned_thread_and_an_affinity_that_changes(busy: subprocess.Popen[str]) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    nodes = sorted(Path("/sys/devices/system/node").glob(f"node*/cpu{cpus[-1]}"))
    if not nodes:
        pytest.skip("this kernel has no NUMA nodes")
    sampler = _core.HostSampler(io=0, basic=0.5)
    sampler.watch(busy.pid)
    begin = time.monotonic_ns()
    sampler.read(begin)
    [(kind, _, attributes)] = affinities(sampler)
    assert kind == "affinity"
    assert attributes["pid"] == busy.pid
    assert busy.stdin is not None
    assert busy.stdout is not None
    busy.stdin.write("move\n")
    busy.stdin.flush()
    assert busy.stdout.readline() == "moved\n"
    time.sleep(1.5)
    # 10 s of the sampler's clock pass in some 1.5 s of the machine's.
    values = {row[:3]: row[3] for row in sampler.read(begin + 10 * SECOND)}
    seconds = (time.monotonic_ns() - begin) / SECOND
    share = values[busy.pid, "proc.cpu_node.percent", nodes[0].parent.name] * 10 / 100
    assert 0.1 < share <= seconds + 0.1
    assert values[busy.pid, "proc.cpu.percent", None] == pytest.approx(share * 10, abs=5.0)
    assert values[busy.pid, "proc.allowed_cpus.count", None] == 1.0
    if len(cpus) > 1:
        [(kind, text, attributes)] = affinities(sampler)
        assert kind == "affinity_changed"
        assert attributes["cpus"] == str(cpus[0])
        assert f"may now run on CPUs {cpus[0]}, before on" in text


# ---- memory of the control group


def test_v2_memory_by_node(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT)
    node.write(f"{PID}/cgroup", "0::/job\n")
    folder = "fs/cgroup/job"
    node.write_sys(f"{folder}/cgroup.type", "domain\n")
    node.write_sys(f"{folder}/memory.current", "5000\n")
    node.write_sys(f"{folder}/memory.max", "max\n")
    node.write_sys(f"{folder}/memory.stat", "inactive_file 70\n")
    node.write_sys(
        f"{folder}/memory.numa_stat",
        "anon N0=1000 N1=20000\nfile N0=300 N1=0\nkernel_stack N0=7 N1=0\nshmem N0=200 N1=0\n"
        "file_mapped N0=5 N1=5\nanon_thp N0=900 N1=0\nslab_reclaimable N0=0 N1=60\n"
        "workingset_refault_anon N0=9 N1=9\n",
    )
    sampler = node.sampler()
    sampler.watch(PID)
    # shmem is part of file, anon_thp of anon; refaults are no memory
    assert lies_on(node.tick(sampler)) == {"node0": 1307.0, "node1": 20060.0}
    assert lies_on(node.tick(sampler)) == {}  # every ten seconds is enough
    assert lies_on(node.tick(sampler, 9.0)) == {"node0": 1307.0, "node1": 20060.0}


def test_v1_memory_by_node_is_in_pages(node: Node) -> None:
    node.write("self/mountinfo", V1_MOUNT)
    node.write(f"{PID}/cgroup", "4:memory:/job\n")
    folder = "fs/cgroup/memory/job"
    node.write_sys(f"{folder}/memory.usage_in_bytes", "5000\n")
    node.write_sys(f"{folder}/memory.limit_in_bytes", "9000\n")
    node.write_sys(f"{folder}/memory.stat", "total_inactive_file 70\n")
    node.write_sys(
        f"{folder}/memory.numa_stat",
        "total=3 N0=1 N1=2\nfile=0 N0=0 N1=0\nhierarchical_total=30 N0=10 N1=20\n"
        "hierarchical_file=1 N0=1 N1=0\n",
    )
    sampler = node.sampler()
    sampler.watch(PID)
    assert lies_on(node.tick(sampler)) == {"node0": 10.0 * PAGE, "node1": 20.0 * PAGE}


def test_memory_on_a_gpu_is_named_so(node: Node) -> None:
    node.write_sys("devices/system/node/node2/cpulist", "\n")
    node.write("driver/nvidia/gpus/0009:01:00.0/numa_status", "Node: 2\nStatus: online\n")
    node.write("self/mountinfo", V1_MOUNT)
    node.write(f"{PID}/cgroup", "4:memory:/job\n")
    folder = "fs/cgroup/memory/job"
    node.write_sys(f"{folder}/memory.usage_in_bytes", "5000\n")
    node.write_sys(f"{folder}/memory.numa_stat", "hierarchical_total=30 N0=10 N2=20\n")
    sampler = node.sampler()
    sampler.watch(PID)
    assert set(lies_on(node.tick(sampler))) == {"node0", "gpu_node2"}


@pytest.mark.parametrize(
    "text",
    ["", "hierarchical_total", "hierarchical_total=5 N0 N=3 Nx=1 N1=-4 N99999=1 5", "N0=5\n"],
)
def test_broken_memory_by_node_gives_nothing(node: Node, text: str) -> None:
    node.write("self/mountinfo", V1_MOUNT)
    node.write(f"{PID}/cgroup", "4:memory:/job\n")
    folder = "fs/cgroup/memory/job"
    node.write_sys(f"{folder}/memory.usage_in_bytes", "5000\n")
    node.write_sys(f"{folder}/memory.stat", "total_inactive_file 70\n")
    node.write_sys(f"{folder}/memory.numa_stat", text)
    sampler = node.sampler()
    sampler.watch(PID)
    values = node.tick(sampler)
    assert lies_on(values) == {}
    assert values[PID, "cgroup.memory_used.bytes", None] == 4930.0
