"""Memory by NUMA node, on nodes of every kind that machines have."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import SECOND, Key, Node, reason, recorded, states

from haiprof import _core

KB = 1024


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def add(
    node: Node,
    number: int,
    *,
    cpus: str = "",
    total: int = 1000,
    free: int = 100,
    pages: tuple[int, int, int] = (0, 0, 0),
) -> None:
    """Write one NUMA node: memory in kB; pages missed, foreign, other."""
    folder = f"devices/system/node/node{number}"
    rows = {
        "MemTotal": total,
        "MemFree": free,
        "MemUsed": total - free,
        "Active(file)": 200,
        "Inactive(file)": 300,
        "FilePages": 540,
        "KReclaimable": 60,
        "SReclaimable": 50,
    }
    node.write_sys(
        f"{folder}/meminfo", "".join(f"Node {number} {k}: {v:>8} kB\n" for k, v in rows.items())
    )
    miss, foreign, other = pages
    node.write_sys(
        f"{folder}/numastat",
        f"numa_hit 5\nnuma_miss {miss}\nnuma_foreign {foreign}\ninterleave_hit 1\n"
        f"local_node 5\nother_node {other}\n",
    )
    node.write_sys(f"{folder}/cpulist", cpus + "\n")


def of(values: dict[Key, float], metric: str) -> dict[str | None, float]:
    return {instance: v for (_, name, instance), v in values.items() if name == metric}


def test_used_and_free_memory_of_two_nodes(node: Node) -> None:
    add(node, 0, cpus="0-3", total=2000)
    add(node, 1, cpus="4-7", free=400)
    values = node.tick(node.sampler())
    assert of(values, "mem.free.bytes") == {"node0": 100 * KB, "node1": 400 * KB}
    # without page cache and what the kernel can give back, as mem.used.bytes of the whole node
    assert of(values, "mem.used.bytes") == {"node0": 1340 * KB, "node1": 40 * KB}


def test_used_memory_of_a_node_does_not_replace_that_of_the_machine(node: Node) -> None:
    node.write("meminfo", "MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    add(node, 0, cpus="0-3")
    values = node.tick(node.sampler())
    assert of(values, "mem.used.bytes") == {None: 5000 * KB, "node0": 340 * KB}


def test_pages_from_other_nodes_are_rates_once_there_has_been_one(node: Node) -> None:
    add(node, 0, cpus="0")
    add(node, 1, cpus="1", pages=(7, 0, 0))
    sampler = node.sampler()
    node.tick(sampler)
    add(node, 0, cpus="0", pages=(0, 500, 0))
    add(node, 1, cpus="1", pages=(507, 0, 100))
    values = node.tick(sampler, 2.0)
    assert of(values, "numa.miss.pages_per_s") == {"node1": 250.0}
    assert of(values, "numa.foreign.pages_per_s") == {"node0": 250.0}
    assert of(values, "numa.other.pages_per_s") == {"node1": 50.0}


def test_nodes_with_gaps_without_cpus_and_without_memory(node: Node) -> None:
    add(node, 0, cpus="0-3", total=0, free=0)
    add(node, 2)  # an expander: memory only
    add(node, 8, cpus="4-7")
    values = node.tick(node.sampler())
    assert set(of(values, "mem.free.bytes")) == {"node2", "node8"}


def test_memory_of_a_gpu_is_not_called_a_node_of_the_host(node: Node) -> None:
    add(node, 0, cpus="0-71")
    add(node, 1)
    add(node, 2)
    node.write("driver/nvidia/gpus/0009:01:00.0/numa_status", "Node: 1\nStatus: online\n")
    # A driver that names a node with CPUs does not make it the GPU's.
    node.write("driver/nvidia/gpus/0019:01:00.0/numa_status", "Node: 0\nStatus: online\n")
    values = node.tick(node.sampler())
    assert set(of(values, "mem.used.bytes")) == {"node0", "gpu_node1", "node2"}


def test_node_that_goes_offline_and_one_that_comes(node: Node) -> None:
    node.write_sys("devices/system/node/online", "0\n")
    add(node, 0, cpus="0-3")
    sampler = node.sampler()
    node.tick(sampler)
    add(node, 3)
    assert set(of(node.tick(sampler), "mem.free.bytes")) == {"node0"}
    node.write_sys("devices/system/node/online", "0,3\n")
    assert set(of(node.tick(sampler), "mem.free.bytes")) == {"node0", "node3"}
    for file in ("meminfo", "numastat", "cpulist"):
        (node.sysfs / f"devices/system/node/node3/{file}").unlink()
    (node.sysfs / "devices/system/node/node3").rmdir()
    node.write_sys("devices/system/node/online", "0\n")
    assert set(of(node.tick(sampler), "mem.free.bytes")) == {"node0"}


def test_kernel_without_numa_says_so(node: Node) -> None:
    sampler = node.sampler()
    assert states(sampler)["numa"] == "absent"
    assert "devices/system/node: no such folder" in reason(sampler, "numa")
    assert "CONFIG_NUMA" in reason(sampler, "numa")
    assert of(node.tick(sampler), "mem.free.bytes") == {}


@pytest.mark.parametrize(
    "meminfo",
    ["", "Node 0\n", "Node 0 MemTotal: x kB\n", "Node 0 MemTotal: 5", "MemTotal: 5 kB\n", "\n\n"],
)
def test_broken_meminfo_of_one_node_leaves_the_others(node: Node, meminfo: str) -> None:
    add(node, 0)
    add(node, 1)
    node.write_sys("devices/system/node/node0/meminfo", meminfo)
    assert set(of(node.tick(node.sampler()), "mem.free.bytes")) == {"node1"}


def test_old_kernel_without_file_pages_has_no_used(node: Node) -> None:
    add(node, 0)
    node.write_sys(
        "devices/system/node/node0/meminfo", "Node 0 MemTotal: 9 kB\nNode 0 MemFree: 4 kB\n"
    )
    values = node.tick(node.sampler())
    assert of(values, "mem.free.bytes") == {"node0": 4 * KB}
    assert of(values, "mem.used.bytes") == {}


def test_this_machine_adds_up() -> None:
    sampler = _core.HostSampler(io=0)
    values = {row[:3]: row[3] for row in sampler.read(SECOND)}
    if states(sampler)["numa"] != "ok":
        pytest.skip("this kernel has no NUMA nodes: " + reason(sampler, "numa"))
    whole = values[0, "mem.used.bytes", None]
    nodes = [v for i, v in of(values, "mem.used.bytes").items() if i is not None]
    total = values[0, "mem.total.bytes", None]
    # They differ by the watermarks that MemAvailable keeps back: a few percent of all memory.
    assert sum(nodes) == pytest.approx(whole, abs=0.05 * total)


def test_forty_core_server(tmp_path: Path) -> None:
    root = recorded("real_bdx_2s_min", tmp_path)
    sampler = _core.HostSampler(procfs=str(root / "proc"), sysfs=str(root / "sys"))
    values = {row[:3]: row[3] for row in sampler.read(SECOND)}
    assert set(of(values, "mem.free.bytes")) == {"node0", "node1"}
    assert set(of(values, "mem.used.bytes")) == {"node0", "node1"}


def test_two_sockets_of_two_nodes(tmp_path: Path) -> None:
    root = recorded("qemu_rome", tmp_path)
    sampler = _core.HostSampler(procfs=str(root / "proc"), sysfs=str(root / "sys"))
    values = {row[:3]: row[3] for row in sampler.read(SECOND)}
    assert set(of(values, "mem.free.bytes")) == {f"node{i}" for i in range(4)}
