"""Control groups of version 1, 2 and both, with limits at every level."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import Key, Node, reason, states

PID = 10
V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
MB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.process(PID)
    return made


def v1_mounts(root: str = "/") -> str:
    return "".join(
        f"3{i} 31 0:3{i} {root} /sys/fs/cgroup/{names} rw - cgroup cgroup rw,{names}\n"
        for i, names in enumerate(("cpu,cpuacct", "memory"))
    )


def v1_group(
    node: Node, path: str, *, quota: int = -1, limit: int = 9223372036854771712, effective: int = 0
) -> None:
    cpu = f"fs/cgroup/cpu,cpuacct{path}"
    node.write_sys(f"{cpu}/cpu.cfs_quota_us", f"{quota}\n")
    node.write_sys(f"{cpu}/cpu.cfs_period_us", "100000\n")
    memory = f"fs/cgroup/memory{path}"
    node.write_sys(f"{memory}/memory.limit_in_bytes", f"{limit}\n")
    node.write_sys(f"{memory}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    node.write_sys(
        f"{memory}/memory.stat",
        f"inactive_file 1\nhierarchical_memory_limit {effective or limit}\n"
        f"total_inactive_file {10 * MB}\n",
    )
    v1_usage(node, path)


def v1_usage(
    node: Node,
    path: str,
    *,
    ns: int = 0,
    memory: int = 50 * MB,
    throttled: tuple[int, int, int] = (0, 0, 0),
) -> None:
    cpu = f"fs/cgroup/cpu,cpuacct{path}"
    node.write_sys(f"{cpu}/cpuacct.usage", f"{ns}\n")
    periods, hit, lost = throttled
    node.write_sys(
        f"{cpu}/cpu.stat", f"nr_periods {periods}\nnr_throttled {hit}\nthrottled_time {lost}\n"
    )
    node.write_sys(f"fs/cgroup/memory{path}/memory.usage_in_bytes", f"{memory}\n")


def v2_group(
    node: Node, path: str, *, cpu: str = "max 100000", limit: str = "max", memory: bool = True
) -> None:
    folder = f"fs/cgroup{path}"
    node.write_sys(f"{folder}/cgroup.type", "domain\n")
    node.write_sys(f"{folder}/cpu.max", f"{cpu}\n")
    if memory:
        node.write_sys(f"{folder}/memory.max", f"{limit}\n")
        node.write_sys(f"{folder}/memory.events", "low 0\nhigh 0\nmax 5\noom 1\noom_kill 3\n")
        node.write_sys(f"{folder}/memory.stat", f"anon 1\ninactive_file {10 * MB}\n")
    v2_usage(node, path, memory=memory)


def v2_usage(
    node: Node,
    path: str,
    *,
    us: int = 0,
    throttled: tuple[int, int, int] = (0, 0, 0),
    memory: bool = True,
    stalled: int = 0,
) -> None:
    folder = f"fs/cgroup{path}"
    periods, hit, lost = throttled
    node.write_sys(
        f"{folder}/cpu.stat",
        f"usage_usec {us}\nuser_usec {us}\nsystem_usec 0\n"
        f"nr_periods {periods}\nnr_throttled {hit}\nthrottled_usec {lost}\n",
    )
    if memory:
        node.write_sys(f"{folder}/memory.current", f"{50 * MB}\n")
    for name in ("cpu", "io", "memory"):
        node.write_sys(
            f"{folder}/{name}.pressure",
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled}\n"
            f"full avg10=0.00 avg60=0.00 avg300=0.00 total={stalled // 2}\n",
        )


def two_ticks(node: Node) -> dict[str, float]:
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    return groups(node.tick(sampler))


def groups(values: dict[Key, float]) -> dict[str, float]:
    return {m: v for (pid, m, _), v in values.items() if pid == PID and m.startswith("cgroup.")}


def test_v2_limits_usage_throttling_and_pressure(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/job\n")
    v2_group(node, "/job", cpu="250000 100000", limit=str(100 * MB))
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    v2_usage(node, "/job", us=3_000_000, throttled=(20, 5, 800_000), stalled=400_000)
    assert groups(node.tick(sampler, 2.0)) == {
        "cgroup.cpu_limit.cores": 2.5,
        "cgroup.cpu_used.cores": pytest.approx(1.5),
        "cgroup.throttled.percent": pytest.approx(40.0),
        "cgroup.throttled_periods.ratio": pytest.approx(0.25),
        "cgroup.memory_limit.bytes": 100.0 * MB,
        "cgroup.memory_used.bytes": 40.0 * MB,
        "cgroup.oom_kills.count": 3.0,
        "cgroup.psi_cpu_some.percent": pytest.approx(20.0),
        "cgroup.psi_io_some.percent": pytest.approx(20.0),
        "cgroup.psi_io_full.percent": pytest.approx(10.0),
        "cgroup.psi_memory_some.percent": pytest.approx(20.0),
        "cgroup.psi_memory_full.percent": pytest.approx(10.0),
    }


def test_v1_limits_usage_and_throttling(node: Node) -> None:
    node.write("self/mountinfo", v1_mounts())
    node.write(f"{PID}/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n1:name=systemd:/job\n")
    v1_group(node, "/job", quota=150000, limit=100 * MB)
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    v1_usage(node, "/job", ns=1_000_000_000, throttled=(10, 1, 500_000_000))
    assert groups(node.tick(sampler, 2.0)) == {
        "cgroup.cpu_limit.cores": 1.5,
        "cgroup.cpu_used.cores": pytest.approx(0.5),
        "cgroup.throttled.percent": pytest.approx(25.0),
        "cgroup.throttled_periods.ratio": pytest.approx(0.1),
        "cgroup.memory_limit.bytes": 100.0 * MB,
        "cgroup.memory_used.bytes": 40.0 * MB,
        "cgroup.oom_kills.count": 2.0,
    }
    assert states(sampler)["cgroup_pressure"] == "absent"
    assert "version 1" in reason(sampler, "cgroup_pressure")


def test_hybrid_takes_controllers_from_v1_and_pressure_from_v2(node: Node) -> None:
    unified = V2_MOUNT.format(root="/").replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    node.write("self/mountinfo", v1_mounts() + unified)
    node.write(f"{PID}/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n0::/job\n")
    v1_group(node, "/job", quota=100000)
    v2_usage(node, "/unified/job", us=10**9, memory=False)
    node.write_sys("fs/cgroup/unified/job/cgroup.type", "domain\n")
    values = two_ticks(node)
    assert values["cgroup.cpu_limit.cores"] == 1.0
    assert values["cgroup.cpu_used.cores"] == 0.0
    assert values["cgroup.psi_cpu_some.percent"] == 0.0


def test_hybrid_with_an_empty_v2_root_has_no_pressure_of_its_own(node: Node) -> None:
    unified = V2_MOUNT.format(root="/").replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    node.write("self/mountinfo", v1_mounts() + unified)
    node.write(f"{PID}/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n")
    v1_group(node, "/job")
    node.write_sys("fs/cgroup/cpu,cpuacct/release_agent", "\n")
    node.write_sys("fs/cgroup/unified/cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=5\n")
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    values = groups(node.tick(sampler))
    assert set(values) == {"cgroup.memory_used.bytes", "cgroup.oom_kills.count"}
    assert states(sampler)["cgroup_cpu"] == "absent"
    assert states(sampler)["cgroup_pressure"] == "absent"
    assert "root" in reason(sampler, "cgroup_cpu")


def test_unlimited_is_absent_and_not_a_huge_number(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/job\n")
    v2_group(node, "/job")
    values = two_ticks(node)
    assert "cgroup.cpu_limit.cores" not in values
    assert "cgroup.throttled.percent" not in values
    assert "cgroup.memory_limit.bytes" not in values
    assert values["cgroup.cpu_used.cores"] == 0.0


def test_v2_the_tightest_ancestor_limits_and_is_measured(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/pods/pod/main\n")
    v2_group(node, "/pods", cpu="6400000 100000", limit=str(1000 * MB))
    v2_group(node, "/pods/pod", cpu="200000 100000", limit=str(300 * MB))
    v2_group(node, "/pods/pod/main", cpu="400000 100000", limit="max")
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    v2_usage(node, "/pods/pod", us=1_800_000, throttled=(10, 5, 100_000))
    v2_usage(node, "/pods/pod/main", us=1_000)
    values = groups(node.tick(sampler))
    assert values["cgroup.cpu_limit.cores"] == 2.0
    assert values["cgroup.cpu_used.cores"] == pytest.approx(1.8)
    assert values["cgroup.throttled_periods.ratio"] == pytest.approx(0.5)
    assert values["cgroup.memory_limit.bytes"] == 300.0 * MB


def test_v2_a_group_without_the_memory_controller_is_measured_above(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/slice/unit\n")
    v2_group(node, "/slice", limit=str(200 * MB))
    v2_group(node, "/slice/unit", memory=False)
    values = two_ticks(node)
    assert values["cgroup.memory_limit.bytes"] == 200.0 * MB
    assert values["cgroup.memory_used.bytes"] == 40.0 * MB


def test_v1_limit_of_a_group_that_cannot_be_seen(node: Node) -> None:
    """In a container of v1 the mount shows the container only, but the kernel names the limit."""
    node.write("self/mountinfo", v1_mounts("/docker/abc"))
    node.write(f"{PID}/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n")
    v1_group(node, "", quota=50000, effective=80 * MB)
    values = two_ticks(node)
    assert values["cgroup.cpu_limit.cores"] == 0.5
    assert values["cgroup.memory_limit.bytes"] == 80.0 * MB


def test_v1_nested_limits(node: Node) -> None:
    node.write("self/mountinfo", v1_mounts())
    node.write(f"{PID}/cgroup", "5:cpu,cpuacct:/a/b\n4:memory:/a/b\n")
    v1_group(node, "/a", quota=100000, limit=60 * MB)
    v1_group(node, "/a/b", quota=300000, limit=90 * MB, effective=60 * MB)
    v1_usage(node, "/a", memory=55 * MB)
    values = two_ticks(node)
    assert values["cgroup.cpu_limit.cores"] == 1.0
    assert values["cgroup.memory_limit.bytes"] == 60.0 * MB
    assert values["cgroup.memory_used.bytes"] == 45.0 * MB


def test_a_cgroup_namespace_shows_the_container_as_root(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/\n")
    v2_group(node, "", cpu="100000 100000", limit=str(70 * MB))
    values = two_ticks(node)
    assert values["cgroup.cpu_limit.cores"] == 1.0
    assert values["cgroup.memory_limit.bytes"] == 70.0 * MB


def test_the_node_root_of_v2_has_no_limits(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/\n")
    node.write_sys("fs/cgroup/cpu.stat", "usage_usec 1\n")
    node.write_sys("fs/cgroup/cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=1\n")
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    assert groups(node.tick(sampler)) == {}
    assert {s for n, s in states(sampler).items() if n.startswith("cgroup")} == {"absent"}


def test_a_pressure_file_that_cannot_be_read_is_not_there(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/job\n")
    v2_group(node, "/job", cpu="100000 100000")
    # With psi=0 the kernel makes the file and refuses to read it; so does a folder.
    pressure = node.sysfs / "fs/cgroup/job/cpu.pressure"
    pressure.unlink()
    pressure.mkdir()
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    assert states(sampler)["cgroup_cpu"] == "ok"
    assert states(sampler)["cgroup_pressure"] == "absent"
    assert "cpu.pressure" in reason(sampler, "cgroup_pressure")


def test_a_process_outside_our_cgroup_namespace_is_not_visible(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/../other\n")
    v2_group(node, "/other", cpu="100000 100000")  # a namesake inside
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    assert groups(node.tick(sampler)) == {}
    assert "not visible" in reason(sampler, "cgroup_cpu")


def test_a_mount_of_the_nodes_whole_tree_shows_what_lies_outside(node: Node) -> None:
    outside = node.sysfs.parent / "host"
    mount = V2_MOUNT.format(root="/../..").replace("/sys/fs/cgroup", str(outside))
    node.write("self/mountinfo", V2_MOUNT.format(root="/") + mount)
    node.write(f"{PID}/cgroup", "0::/../../pods/other\n")
    folder = outside / "pods" / "other"
    folder.mkdir(parents=True)
    (folder / "cgroup.type").write_text("domain\n")
    (folder / "cpu.max").write_text("300000 100000\n")
    assert two_ticks(node)["cgroup.cpu_limit.cores"] == 3.0


def test_blanks_in_mount_points(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/").replace("fs/cgroup", r"fs/my\040group"))
    node.write(f"{PID}/cgroup", "0::/job:1\n")
    node.write_sys("fs/my group/job:1/cgroup.type", "domain\n")
    node.write_sys("fs/my group/job:1/cpu.max", "100000 50000\n")
    assert two_ticks(node)["cgroup.cpu_limit.cores"] == 2.0


def test_a_limit_that_is_changed_and_a_process_that_is_moved_are_noticed(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/a\n")
    v2_group(node, "/a", cpu="100000 100000")
    v2_group(node, "/b", cpu="500000 100000")
    v2_usage(node, "/b", us=10**12)
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    node.write_sys("fs/cgroup/a/cpu.max", "200000 100000\n")
    assert groups(node.tick(sampler, 31.0))["cgroup.cpu_limit.cores"] == 2.0
    node.write(f"{PID}/cgroup", "0::/b\n")
    moved = groups(node.tick(sampler, 31.0))
    assert moved["cgroup.cpu_limit.cores"] == 5.0
    assert "cgroup.cpu_used.cores" not in moved  # another group's counter is no growth
    assert groups(node.tick(sampler))["cgroup.cpu_used.cores"] == 0.0


def test_ranks_of_one_container_get_the_same_numbers(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    v2_group(node, "/job", cpu="100000 100000")
    sampler = node.sampler()
    for pid in (PID, 11, 12):
        node.process(pid)
        node.write(f"{pid}/cgroup", "0::/job\n")
        sampler.watch(pid)
    node.tick(sampler)
    v2_usage(node, "/job", us=500_000)
    values = node.tick(sampler)
    assert [values[pid, "cgroup.cpu_used.cores", None] for pid in (PID, 11, 12)] == [0.5] * 3
    sampler.unwatch(11)
    left = {pid for pid, metric, _ in node.tick(sampler) if metric.startswith("cgroup.")}
    assert left == {PID, 12}


def test_no_cgroup_file_is_said_so(node: Node) -> None:
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    assert states(sampler)["cgroup_cpu"] == "absent"
    assert f"{PID}/cgroup" in reason(sampler, "cgroup_cpu")
