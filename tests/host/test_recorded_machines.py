"""The recorded /proc trees of real machines, as they are. Skipped where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import SECOND, Key, recorded

from haiprof import _core


def read(root: Path, *pids: int) -> tuple[_core.HostSampler, dict[Key, float]]:
    sampler = _core.HostSampler(procfs=str(root / "proc"), sysfs=str(root / "sys"))
    for pid in pids:
        sampler.watch(pid)
    sampler.read(SECOND)
    return sampler, {row[:3]: row[3] for row in sampler.read(2 * SECOND)}


def state(sampler: _core.HostSampler, name: str) -> object:
    return next(row["state"] for row in sampler.sources() if row["name"] == name)


def instances(values: dict[Key, float], metric: str) -> set[str | None]:
    return {instance for _, name, instance in values if name == metric}


def move(path: Path, old: str, new: str) -> None:
    """Change one number in place, as the kernel would."""
    text = path.read_text()
    assert old in text
    path.chmod(0o644)
    path.write_text(text.replace(old, new, 1))


def test_eight_core_workstation(tmp_path: Path) -> None:
    root = recorded("procfs", tmp_path)
    sampler, values = read(root, 26231)
    assert [state(sampler, name) for name in ("cpu", "memory", "network", "disk", "pressure")] == [
        "ok"
    ] * 5
    assert values[0, "mem.total.bytes", None] == 15666184 * 1024
    assert (0, "mem.used.bytes", None) not in values  # a 3.x kernel: no MemAvailable
    assert instances(values, "net.rx.bytes_per_s") == {"lo", "docker0", "eth0"}
    assert instances(values, "disk.read.bytes_per_s") == {
        *("sda", "sdb", "sdc", "mmcblk0", "vda", "nvme0n1")
    }
    assert values[0, "psi.io_full.percent", None] == 0.0
    assert values[26231, "proc.rss.bytes", None] == 1981 * 4096
    # Nothing moved since the first reading, so the CPU has no share to report.
    assert (0, "cpu.util.percent", None) not in values
    move(root / "proc/stat", "cpu0 44490 19 21045 1087069", "cpu0 44515 19 21045 1087144")
    move(root / "proc/26231/io", "rchar: 750339", "rchar: 850339")
    later = {row[:3]: row[3] for row in sampler.read(4 * SECOND)}
    assert later[0, "cpu.util.percent", "cpu0"] == pytest.approx(25.0)
    assert later[26231, "io.syscall_read.bytes_per_s", None] == 50000.0


def test_forty_core_server(tmp_path: Path) -> None:
    root = recorded("real_bdx_2s_min", tmp_path)
    sampler, values = read(root)
    assert instances(values, "disk.read.bytes_per_s") == {"sda", "sdb", "sdc"}
    assert state(sampler, "memory") == "absent"
    assert state(sampler, "network") == "absent"
    stat = root / "proc/stat"
    rows = stat.read_text().splitlines()
    moved = []
    for row in rows:
        if row.startswith("cpu") and not row.startswith("cpu "):
            name, user, *rest = row.split()
            row = " ".join([name, str(int(user) + 10), *rest])
        moved.append(row)
    stat.chmod(0o644)
    stat.write_text("\n".join(moved))  # without the last newline
    later = {row[:3]: row[3] for row in sampler.read(3 * SECOND)}
    cores = {i for i in instances(later, "cpu.util.percent") if i}
    assert cores == {f"cpu{i}" for i in range(40)}


def test_virtual_machine_of_which_little_was_recorded(tmp_path: Path) -> None:
    root = recorded("node_exporter", tmp_path)
    sampler, values = read(root, 10)
    assert values[0, "mem.total.bytes", None] == 3742148 * 1024
    assert values[0, "psi.memory_full.percent", None] == 0.0
    assert state(sampler, "network") == "absent"
    assert (10, "proc.cpu.percent", None) in values
    assert state(sampler, "process_io") == "absent"
    assert not any(metric.startswith(("io.sys", "io.storage")) for _, metric, _ in values)
