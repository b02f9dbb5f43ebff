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
    node = Node(tmp_path)
    node.process(PID)
    return node


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


# ---- bytes of block devices


def device(node: Node, numbers: str, name: str) -> None:
    folder = node.sysfs / "dev/block"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / numbers).symlink_to(f"../../devices/virtual/block/{name}")


def moved(values: dict[Key, float]) -> dict[tuple[str, str | None], float]:
    return {
        (m.removeprefix("cgroup.io_").removesuffix(".bytes_per_s"), i): v
        for (pid, m, i), v in values.items()
        if pid == PID and m.startswith("cgroup.io_")
    }


def io_stat(node: Node, path: str, **devices: tuple[int, int]) -> None:
    """Write a v2 group's io.stat. ``devices``: ``d8_0=(read, written)`` is the device 8:0."""
    rows = (
        f"{name[1:].replace('_', ':')} rbytes={read} wbytes={written} rios=1 wios=1 dbytes=9 dios=1"
        for name, (read, written) in devices.items()
    )
    node.write_sys(f"fs/cgroup{path}/io.stat", "".join(f"{row}\n" for row in rows))


def test_v2_bytes_of_whole_disks_by_name(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/job\n")
    v2_group(node, "/job")
    # The same byte is in the rows of the dm device and of the disk below it.
    for numbers, name in (
        ("8:0", "sda"),
        ("259:3", "nvme0n1"),
        ("253:0", "dm-0"),
        ("7:1", "loop1"),
    ):
        device(node, numbers, name)
    device(node, "251:0", "fancy0")
    node.write_sys("block/fancy0/slaves/sda", "")
    io_stat(node, "/job", **dict.fromkeys(("d8_0", "d259_3", "d253_0", "d7_1", "d251_0"), (5, 5)))
    sampler = node.sampler()
    sampler.watch(PID)
    assert moved(node.tick(sampler)) == {}
    rows = {"d8_0": (205, 5), "d259_3": (5, 1005), "d253_0": (205, 5), "d7_1": (7, 7)}
    io_stat(node, "/job", **rows, d251_0=(9, 9))
    assert moved(node.tick(sampler, 2.0)) == {
        ("read", "sda"): 100.0,
        ("write", "sda"): 0.0,
        ("read", "nvme0n1"): 0.0,
        ("write", "nvme0n1"): 500.0,
    }
    assert states(sampler)["cgroup_io"] == "ok"


@pytest.mark.parametrize("name", ["io_service_bytes", "io_service_bytes_recursive"])
def test_v1_bytes_of_disks(node: Node, name: str) -> None:
    node.write("self/mountinfo", v1_mounts().replace("memory", "blkio"))
    node.write(f"{PID}/cgroup", "3:blkio:/job\n")
    device(node, "8:0", "sda")
    device(node, "8:16", "sdb")

    def write(read: int, written: int) -> None:
        node.write_sys(
            f"fs/cgroup/blkio/job/blkio.throttle.{name}",
            "".join(
                f"{numbers} Read {read}\n{numbers} Write {written}\n{numbers} Sync 3\n"
                f"{numbers} Async 4\n{numbers} Discard 5\n{numbers} Total 6\n"
                for numbers in ("8:0", "8:16")
            )
            + "Total 12\n",
        )

    write(100, 0)
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    write(300, 0)
    assert moved(node.tick(sampler)) == {("read", "sda"): 200.0, ("read", "sdb"): 200.0}
    assert states(sampler)["cgroup_io"] == "ok"


def test_v1_of_a_kernel_that_counts_only_where_a_limit_is_set(node: Node) -> None:
    node.write("self/mountinfo", v1_mounts().replace("memory", "blkio"))
    node.write(f"{PID}/cgroup", "3:blkio:/job\n")
    node.write_sys("fs/cgroup/blkio/job/blkio.throttle.io_service_bytes_recursive", "Total 0\n")
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    assert moved(node.tick(sampler)) == {}
    assert states(sampler)["cgroup_io"] == "absent"
    assert "lists no disk" in reason(sampler, "cgroup_io")
    assert "read_bps_device" in reason(sampler, "cgroup_io")


def test_v2_without_the_io_controller_the_group_around_counts_but_not_the_node(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/slice/unit\n")
    device(node, "8:0", "sda")
    v2_group(node, "/slice")
    v2_group(node, "/slice/unit")
    io_stat(node, "", d8_0=(1, 1))
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    io_stat(node, "", d8_0=(10**9, 1))
    assert moved(node.tick(sampler)) == {}
    assert states(sampler)["cgroup_io"] == "absent"
    assert "IOAccounting=yes" in reason(sampler, "cgroup_io")
    io_stat(node, "/slice", d8_0=(50, 1))
    node.tick(sampler, 31.0)
    io_stat(node, "/slice", d8_0=(90, 1))
    assert moved(node.tick(sampler))["read", "sda"] == 40.0
    assert states(sampler)["cgroup_io"] == "ok"


def test_a_process_in_the_root_group_has_no_bytes_of_its_own(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/\n")
    io_stat(node, "", d8_0=(1, 1))
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    assert states(sampler)["cgroup_io"] == "absent"
    assert "root" in reason(sampler, "cgroup_io")


def test_bytes_of_another_group_are_no_continuation(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/a\n")
    device(node, "8:0", "sda")
    for group, read in (("/a", 100), ("/b", 10**9)):
        v2_group(node, group)
        io_stat(node, group, d8_0=(read, 0))
    sampler = node.sampler()
    sampler.watch(PID)
    node.tick(sampler)
    node.write(f"{PID}/cgroup", "0::/b\n")
    assert moved(node.tick(sampler, 31.0)) == {}
    io_stat(node, "/b", d8_0=(10**9 + 7, 0))
    assert moved(node.tick(sampler))["read", "sda"] == 7.0
    sampler.unwatch(PID)
    assert moved(node.tick(sampler)) == {}


def test_rows_of_devices_that_are_broken_or_unknown(node: Node) -> None:
    node.write("self/mountinfo", V2_MOUNT.format(root="/"))
    node.write(f"{PID}/cgroup", "0::/job\n")
    v2_group(node, "/job")
    device(node, "8:0", "sda")

    def write(read: int) -> None:
        node.write_sys(
            "fs/cgroup/job/io.stat",
            "8:16 \n8:32\n9:x rbytes=1 wbytes=1\n:0 rbytes=1 wbytes=1\n8:48 rbytes=x wbytes=1\n"
            f"8:64 rbytes=5\n99999999999:0 rbytes=1 wbytes=1\n8:80 rbytes={read} wbytes=1\n"
            + "".join(f"66:{i} rbytes={read} wbytes=0\n" for i in range(10_000))
            + "(unknown) rbytes=7 wbytes=7\n",
        )

    write(1)
    sampler = node.sampler(interval=60.0)
    sampler.watch(PID)
    node.tick(sampler, 60.0)
    write(60)
    assert moved(node.tick(sampler, 60.0)) == {}
    io_stat(node, "/job", d8_0=(1, 1))
    node.tick(sampler, 60.0)
    io_stat(node, "/job", d8_0=(61, 1))
    assert moved(node.tick(sampler, 60.0))["read", "sda"] == pytest.approx(1.0)
