"""NFS mounts: what passed the network, what was asked for, and mounts that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import Key, Node, reason, recorded, states, unpacked

from haiprof import _core

MB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def section(
    point: str = "/data",
    *,
    device: str = "fs:/export",
    age: int = 100,
    normal: tuple[int, int] = (0, 0),
    direct: tuple[int, int] = (0, 0),
    server: tuple[int, int] = (0, 0),
    read: tuple[int, int, int] = (0, 0, 0),
    write: tuple[int, int, int] = (0, 0, 0),
    statvers: str = "1.1",
    fstype: str = "nfs4",
) -> str:
    """Return what mountstats has of one mount. ``read``: operations, sent anew, ms in all."""

    def row(name: str, operations: int, again: int, rtt: int) -> str:
        errors = " 0" if statvers == "1.1" else ""
        return f"\t{name:>12}: {operations} {operations + again} 0 10 20 999 {rtt} 999{errors}\n"

    return (
        f"device {device} mounted on {point} with fstype {fstype} statvers={statvers}\n"
        f"\topts:\trw,vers=4.2\n\tage:\t{age}\n\tevents:\t1 0 0\n"
        f"\tbytes:\t{normal[0]} {normal[1]} {direct[0]} {direct[1]} {server[0]} {server[1]} 7 8\n"
        f"\tRPC iostats version: {statvers}  p/v: 100003/4 (nfs)\n\txprt:\ttcp 0 0 2 0\n"
        f"\tper-op statistics\n{row('NULL', 1, 0, 5)}{row('READ', *read)}{row('WRITE', *write)}\n"
    )


OTHERS = (
    "device proc mounted on /proc with fstype proc\ndevice /dev/sda mounted on / with fstype ext4\n"
)


def write(node: Node, *sections: str, path: str = "self/mountstats") -> None:
    node.write(path, OTHERS + "".join(sections))


def nfs(values: dict[Key, float], point: str = "/data") -> dict[str, float]:
    return {m: v for (_, m, i), v in values.items() if m.startswith("io.nfs") and i == point}


@pytest.mark.parametrize("statvers", ["1.0", "1.1"])
def test_traffic_and_times_of_a_mount(node: Node, statvers: str) -> None:
    write(node, section(statvers=statvers, read=(10, 0, 100), server=(MB, MB)))
    sampler = node.sampler()
    assert nfs(node.tick(sampler)) == {}
    write(
        node,
        section(
            statvers=statvers,
            age=102,
            normal=(40, 20),
            direct=(60, 80),
            server=(5 * MB, 2 * MB),
            read=(30, 4, 150),
            write=(2, 2, 3000),
        ),
    )
    assert nfs(node.tick(sampler, 2.0)) == {
        "io.nfs_read.bytes_per_s": 2.0 * MB,
        "io.nfs_write.bytes_per_s": MB / 2,
        "io.nfs_app_read.bytes_per_s": 50.0,
        "io.nfs_app_write.bytes_per_s": 50.0,
        "io.nfs_read_rtt.milliseconds": pytest.approx(2.5),
        "io.nfs_write_rtt.milliseconds": pytest.approx(1500.0),
        "io.nfs_retransmits.per_s": 3.0,
    }
    assert states(sampler)["nfs"] == "ok"


def test_no_operation_has_no_time(node: Node) -> None:
    write(node, section(read=(10, 0, 100)))
    sampler = node.sampler()
    node.tick(sampler)
    assert "io.nfs_read_rtt.milliseconds" not in nfs(node.tick(sampler))


def test_other_file_systems_are_none(node: Node) -> None:
    write(
        node,
        "device nfsd mounted on /proc/fs/nfsd with fstype nfsd\n",
        "no device mounted on /x with fstype nfs statvers=1.1\n\tbytes:\t1 2 3 4 5 6 7 8\n",
    )
    sampler = node.sampler()
    assert node.tick(sampler).keys() & {(0, "io.nfs_read.bytes_per_s", "/x")} == set()
    assert states(sampler)["nfs"] == "absent"
    assert "names no NFS file system" in reason(sampler, "nfs")


def test_a_mount_that_comes_later_is_found(node: Node) -> None:
    write(node)
    sampler = node.sampler()
    node.tick(sampler)
    write(node, section(server=(5, 0)))
    node.tick(sampler, 61.0)
    write(node, section(server=(105, 0), age=101))
    assert nfs(node.tick(sampler))["io.nfs_read.bytes_per_s"] == 100.0
    assert states(sampler)["nfs"] == "ok"


def test_mounts_that_come_go_and_come_back(node: Node) -> None:
    write(node, section("/a", server=(5, 0)), section("/b", server=(1000, 0)))
    sampler = node.sampler()
    node.tick(sampler)
    write(node, section("/a", server=(6, 0), age=101))
    values = node.tick(sampler)
    assert nfs(values, "/a")["io.nfs_read.bytes_per_s"] == 1.0
    assert nfs(values, "/b") == {}
    write(node, section("/a", server=(7, 0), age=102), section("/b", server=(10**9, 0), age=1))
    assert nfs(node.tick(sampler), "/b") == {}  # a baseline
    write(node, section("/a", server=(7, 0), age=103), section("/b", server=(10**9 + 5, 0), age=2))
    assert nfs(node.tick(sampler), "/b")["io.nfs_read.bytes_per_s"] == 5.0


@pytest.mark.parametrize(
    "other", [{"device": "fs:/other"}, {"age": 0}], ids=["another export", "mounted again"]
)
def test_another_file_system_at_the_same_place_starts_anew(
    node: Node, other: dict[str, object]
) -> None:
    write(node, section(server=(5, 0)))
    sampler = node.sampler()
    node.tick(sampler)
    write(node, section(server=(10**12, 0), **other))  # type: ignore[arg-type]
    assert nfs(node.tick(sampler)) == {}
    write(node, section(server=(10**12 + 8, 0), **other))  # type: ignore[arg-type]
    assert nfs(node.tick(sampler))["io.nfs_read.bytes_per_s"] == 8.0


def test_blanks_and_bytes_that_are_no_utf8_in_mount_points(node: Node) -> None:
    def both(by: int) -> bytes:
        return (
            section(r"/my\040big\134data", server=(by, 0)) + section("/d\u00ffta", server=(by, 0))
        ).encode("latin-1")

    node.write("self/mountstats", both(1))
    sampler = node.sampler()
    node.tick(sampler)
    node.write("self/mountstats", both(3))
    values = node.tick(sampler)
    assert nfs(values, "/my big\\data")["io.nfs_read.bytes_per_s"] == 2.0
    assert nfs(values, "/d\ufffdta")["io.nfs_read.bytes_per_s"] == 2.0


def test_a_file_system_at_two_places_is_counted_at_the_first(node: Node) -> None:
    node.write(
        "self/mountinfo",
        "70 1 0:55 / /export rw - nfs4 fs:/export rw\n"
        "71 1 0:55 /sub /var/lib/pod rw - nfs4 fs:/export rw\n"
        "72 1 0:56 / /other rw - nfs4 fs:/other rw\n",
    )

    def places(by: int, *names: str) -> None:
        write(node, *(section(name, server=(by, 0), age=by) for name in names))

    places(1, "/export", "/var/lib/pod", "/other")
    sampler = node.sampler()
    node.tick(sampler)
    places(5, "/export", "/var/lib/pod", "/other")
    values = node.tick(sampler)
    assert {i for _, m, i in values if m == "io.nfs_read.bytes_per_s"} == {"/export", "/other"}
    places(9, "/var/lib/pod", "/other")  # the first place is unmounted, the other goes on
    node.tick(sampler)
    places(13, "/var/lib/pod", "/other")
    assert nfs(node.tick(sampler), "/var/lib/pod")["io.nfs_read.bytes_per_s"] == 4.0


def test_mounts_on_top_of_each_other_have_one_row(node: Node) -> None:
    write(node, section(server=(5, 0)), section(device="fs:/under", server=(900, 0), age=7))
    sampler = node.sampler()
    node.tick(sampler)
    write(node, section(server=(6, 0)), section(device="fs:/under", server=(990, 0), age=7))
    assert nfs(node.tick(sampler))["io.nfs_read.bytes_per_s"] == 1.0


def test_a_mounted_host_proc_shows_the_mounts_of_the_node(node: Node) -> None:
    write(node, section("/in/container", server=(5, 0)))
    write(node, section("/of/node", server=(5, 0)), path="1/mountstats")
    sampler = node.sampler()
    node.tick(sampler)
    write(node, section("/of/node", server=(7, 0)), path="1/mountstats")
    values = node.tick(sampler)
    assert nfs(values, "/of/node")["io.nfs_read.bytes_per_s"] == 2.0
    assert nfs(values, "/in/container") == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bytes:\t", "bites:\t"),
        ("bytes:\t0 0", "bytes:\t0 -1"),
        ("READ: ", "READ: x "),
        ("per-op statistics", ""),
        (" mounted on ", " mounted at "),
        (" with fstype nfs4", " with fstype"),
        ("age:\t100", "age:\tx"),
    ],
)
def test_a_line_that_is_broken_costs_its_own_values_and_no_more(
    node: Node, old: str, new: str
) -> None:
    whole = section("/whole", server=(5, 0))
    broken = section("/broken", server=(5, 0))
    assert old in broken
    write(node, broken.replace(old, new), whole)
    sampler = node.sampler()
    node.tick(sampler)
    write(node, broken.replace(old, new), section("/whole", server=(6, 0)))
    values = node.tick(sampler)
    assert nfs(values, "/whole")["io.nfs_read.bytes_per_s"] == 1.0
    assert all(value == 0.0 for value in nfs(values, "/broken").values())


def test_operations_of_an_hour_and_transmissions_below_operations(node: Node) -> None:
    write(node, section(read=(1, 0, 0), write=(5, -3, 0)))
    sampler = node.sampler()
    node.tick(sampler)
    write(node, section(read=(2, 0, 7_200_000), write=(9, -3, 0)))
    values = nfs(node.tick(sampler))
    assert values["io.nfs_read_rtt.milliseconds"] == 3_600_000.0
    assert "io.nfs_retransmits.per_s" not in values


def test_thousands_of_mounts(node: Node) -> None:
    def rows(by: int) -> None:
        write(node, *(section(f"/m{i}", server=(by, 0), age=by) for i in range(5000)))

    rows(1)
    sampler = node.sampler(interval=60.0)
    node.tick(sampler, 60.0)
    rows(61)
    values = node.tick(sampler, 60.0)
    counted = {i for _, m, i in values if m == "io.nfs_read.bytes_per_s"}
    assert counted == {f"/m{i}" for i in range(4096)}


# ---- recorded machines


def read(root: Path) -> tuple[_core.HostSampler, dict[Key, float]]:
    sampler = _core.HostSampler(procfs=str(root / "proc"), sysfs=str(root / "sys"))
    sampler.read(10**9)
    return sampler, {row[:3]: row[3] for row in sampler.read(2 * 10**9)}


def test_recorded_mount_of_an_old_server(tmp_path: Path) -> None:
    root = recorded("procfs", tmp_path)
    sampler, values = read(root)
    assert nfs(values, "/mnt/nfs/test")["io.nfs_read.bytes_per_s"] == 0.0
    stats = root / "proc/26231/mountstats"
    stats.chmod(0o644)
    text = stats.read_text().replace(
        "READ: 1298 1298 0 207680 1210292152 6 79386", "READ: 1398 1398 0 1 1 1 79886"
    )
    stats.write_text(text.replace("1210214218", "1220214218"))
    later = {row[:3]: row[3] for row in sampler.read(3 * 10**9)}
    assert nfs(later, "/mnt/nfs/test")["io.nfs_read.bytes_per_s"] == 10_000_000.0
    assert nfs(later, "/mnt/nfs/test")["io.nfs_read_rtt.milliseconds"] == pytest.approx(5.0)


def test_recorded_mount_of_nfs_4_2(tmp_path: Path) -> None:
    (stats,) = unpacked("qemu_misc", tmp_path).rglob("nfs4.mountstats")
    node = Node(tmp_path / "made")
    node.write("self/mountstats", stats.read_bytes())
    sampler = node.sampler()
    node.tick(sampler)
    node.write(
        "self/mountstats",
        stats.read_text()
        .replace("537395200 0 82048", "604504064 0 82048")
        .replace("READ: 1795 1795 0 323100 537581880 6925 22813", "READ: 1923 1925 0 1 1 1 24349"),
    )
    values = nfs(node.tick(sampler), "/tmp/nm")
    assert values["io.nfs_read.bytes_per_s"] == 64.0 * MB
    assert values["io.nfs_read_rtt.milliseconds"] == pytest.approx(12.0)
    assert values["io.nfs_app_read.bytes_per_s"] == 0.0
    assert values["io.nfs_retransmits.per_s"] == 2.0
