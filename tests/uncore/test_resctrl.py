"""Monitoring groups of resctrl, in a folder that stands for the file system.

A real one fills a group with files when it is made, and empties it when it is removed; the tests do
both by hand.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_trees import Key, Node, reason, states

from haiprof import _core

PID = 10


class Resctrl(Node):
    """A machine with resctrl, and process 10 with three threads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = self.sysfs / "fs/resctrl"
        self.write_sys(
            "fs/resctrl/info/L3_MON/mon_features",
            "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
        )
        (self.root / "mon_groups").mkdir()
        self.threads(PID, 10, 11, 12)

    def threads(self, pid: int, *tids: int, parent: int = 1) -> None:
        self.process(pid, parent=parent)
        for tid in tids:
            (self.procfs / f"{pid}/task/{tid}").mkdir(parents=True, exist_ok=True)

    def group(self, pid: int = PID, control: str = "") -> Path:
        return self.root / control / f"mon_groups/haiprof-{pid}"

    def fill(self, *domains: tuple[int | str, int | str], group: Path | None = None) -> None:
        """Do what the kernel does: give the group its files. Each domain: total and local."""
        folder = group or self.group()
        if not (folder / "tasks").exists():
            (folder / "tasks").write_text("")
        for number, (total, local) in enumerate(domains):
            data = folder / f"mon_data/mon_L3_{number:02}"
            data.mkdir(parents=True, exist_ok=True)
            (data / "mbm_total_bytes").write_text(f"{total}\n")
            (data / "mbm_local_bytes").write_text(f"{local}\n")
            (data / "llc_occupancy").write_text("77\n")

    def empty(self, group: Path | None = None) -> None:
        """Take the files away, so that the folder can be removed as a real group."""
        for path in (group or self.group()).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def tasks(self, group: Path | None = None) -> list[int]:
        return [int(line) for line in ((group or self.group()) / "tasks").read_text().split()]

    def resctrl(self) -> _core.HostSampler:
        return _core.HostSampler(
            procfs=str(self.procfs), sysfs=str(self.sysfs), basic=0, io=0, ib=0, power=0,
            resctrl=True,
        )  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Resctrl:
    return Resctrl(tmp_path)


def counted(node: Resctrl, *domains: tuple[int | str, int | str]) -> _core.HostSampler:
    """A sampler that has its group and its baseline."""
    sampler = node.resctrl()
    sampler.watch(PID)
    node.tick(sampler)
    node.fill(*domains)
    node.tick(sampler, 30.0)
    return sampler


def bandwidth(values: dict[Key, float], pid: int = PID) -> dict[str, dict[str | None, float]]:
    found: dict[str, dict[str | None, float]] = {}
    for (target, metric, instance), value in values.items():
        if target == pid and metric.startswith("proc.mbm_"):
            kind = metric.removeprefix("proc.mbm_").removesuffix(".bytes_per_s")
            found.setdefault(kind, {})[instance] = value
    return found


def test_nothing_is_made_unless_it_is_asked_for(node: Resctrl) -> None:
    sampler = _core.HostSampler(procfs=str(node.procfs), sysfs=str(node.sysfs))
    sampler.watch(PID)
    node.tick(sampler)
    assert list((node.root / "mon_groups").iterdir()) == []
    assert "resctrl" not in states(sampler)


def test_total_local_and_remote_of_each_cache_and_of_all(node: Resctrl) -> None:
    sampler = counted(node, (1000, 1000), (5000, 0))
    assert states(sampler)["resctrl"] == "ok"
    node.fill((5000, 3000), (7000, 500))
    assert bandwidth(node.tick(sampler, 2.0)) == {
        "total": {None: 3000.0, "l3_0": 2000.0, "l3_1": 1000.0},
        "local": {None: 1250.0, "l3_0": 1000.0, "l3_1": 250.0},
        "remote": {None: 1750.0, "l3_0": 1000.0, "l3_1": 750.0},
    }


def test_all_threads_are_put_in_once_and_new_ones_later(node: Resctrl) -> None:
    node.threads(20, 20, 21, parent=PID)
    sampler = counted(node, (0, 0))
    assert sorted(node.tasks()) == [10, 11, 12, 20, 21]
    node.tick(sampler)
    node.threads(PID, 15)
    node.tick(sampler, 30.0)
    assert sorted(node.tasks()) == [10, 11, 12, 15, 20, 21]


def test_each_watched_process_has_a_group_of_its_own(node: Resctrl) -> None:
    node.threads(20, 20, 21, parent=PID)
    sampler = node.resctrl()
    sampler.watch(PID)
    sampler.watch(20)
    node.tick(sampler)
    for pid in (PID, 20):
        node.fill((0, 0), group=node.group(pid))
    node.tick(sampler, 30.0)
    assert sorted(node.tasks()) == [10, 11, 12]
    assert sorted(node.tasks(node.group(20))) == [20, 21]


def test_group_is_removed_with_the_watch_and_with_the_sampler(node: Resctrl) -> None:
    node.threads(20, 20)
    sampler = node.resctrl()
    sampler.watch(PID)
    sampler.watch(20)
    node.tick(sampler)
    assert node.group().is_dir()
    sampler.unwatch(PID)
    assert not node.group().exists()
    assert node.group(20).is_dir()
    del sampler
    assert not node.group(20).exists()


def test_it_is_read_once_a_second_at_most(node: Resctrl) -> None:
    sampler = _core.HostSampler(
        procfs=str(node.procfs), sysfs=str(node.sysfs), mem=0.1, resctrl=True
    )
    assert next(row for row in sampler.sources() if row["name"] == "resctrl")["interval_s"] == 1.0


# ---- groups that were left behind


def test_group_of_a_recorder_that_is_no_more_is_removed(node: Resctrl) -> None:
    node.group(99).mkdir()
    (node.root / "mon_groups/somebody").mkdir()
    (node.root / "batch/mon_groups/haiprof-98").mkdir(parents=True)
    node.resctrl()
    assert not node.group(99).exists()
    assert not node.group(98, "batch").exists()
    assert (node.root / "mon_groups/somebody").is_dir()


def test_group_of_a_living_recorder_stays(node: Resctrl) -> None:
    node.group(99).mkdir()
    locked = os.open(node.group(99), os.O_RDONLY)
    try:
        fcntl.flock(locked, fcntl.LOCK_EX)
        node.resctrl()
        assert node.group(99).is_dir()
    finally:
        os.close(locked)


def test_same_number_in_another_container_gets_another_name(node: Resctrl) -> None:
    first = node.resctrl()
    first.watch(PID)
    node.tick(first)
    second = node.resctrl()
    second.watch(PID)
    node.tick(second)
    names = {path.name for path in (node.root / "mon_groups").iterdir()}
    assert names == {"haiprof-10", "haiprof-10.1"}


KILLED = """
import os, signal, sys
from haiprof import _core
sampler = _core.HostSampler(procfs=sys.argv[1], sysfs=sys.argv[2], basic=0, io=0, resctrl=True)
sampler.watch(10)
sampler.read(10**12)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_recorder_that_is_killed_leaves_a_group_that_the_next_removes(node: Resctrl) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(node.procfs), str(node.sysfs)], check=False)
    assert node.group().is_dir()
    node.resctrl()
    assert not node.group().exists()


def test_group_that_somebody_removes_is_made_again(node: Resctrl) -> None:
    sampler = counted(node, (0, 0))
    shutil.rmtree(node.group())
    assert bandwidth(node.tick(sampler)) != {}  # the fixture's open files go on; a kernel's do not
    node.tick(sampler, 30.0)
    assert node.group().is_dir()


@pytest.fixture
def kernel_groups(node: Resctrl) -> Iterator[Path]:
    """Folders that the kernel itself fills and empties: those of a cgroup hierarchy."""
    folder = Path(f"/sys/fs/cgroup/freezer/haiprof-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup hierarchy of version 1 to stand in: {error}")
    (node.root / "mon_groups").rmdir()
    (node.root / "mon_groups").symlink_to(folder)
    try:
        yield folder
    finally:
        for group in [*filter(Path.is_dir, folder.iterdir()), folder]:
            group.rmdir()


def test_threads_of_a_real_process_in_folders_of_the_kernel(
    node: Resctrl, kernel_groups: Path
) -> None:
    sampler = _core.HostSampler(
        procfs="/proc", own_procfs="/proc", sysfs=str(node.sysfs), basic=0, io=0, resctrl=True
    )
    code = (
        "import sys, threading; threading.Thread(target=sys.stdin.read).start(); print(flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout is not None
        job.stdout.readline()
        sampler.watch(job.pid)
        node.tick(sampler)
        group = kernel_groups / f"haiprof-{job.pid}"
        inside = {int(tid) for tid in (group / "tasks").read_text().split()}
        assert inside == {int(path.name) for path in Path(f"/proc/{job.pid}/task").iterdir()}
        assert len(inside) == 2
        other = _core.HostSampler(
            procfs="/proc", sysfs=str(node.sysfs), basic=0, io=0, resctrl=True
        )
        del other  # neither takes the group away from its recorder
        assert group.is_dir()
        for tid in inside:  # a cgroup, unlike a group of resctrl, must be empty to go
            (kernel_groups.parent / "tasks").write_text(f"{tid}\n")
        sampler.unwatch(job.pid)
        assert not group.exists()
        job.communicate(b"", timeout=30)


# ---- control groups and other tools


def test_process_in_a_control_group_is_counted_there(node: Resctrl) -> None:
    (node.root / "batch/mon_groups").mkdir(parents=True)
    node.write(f"{PID}/cpu_resctrl_groups", "res:batch\nmon:\n")
    sampler = node.resctrl()
    sampler.watch(PID)
    node.tick(sampler)
    assert node.group(control="batch").is_dir()
    assert not node.group().exists()


def test_process_that_another_tool_monitors_is_left_to_it(node: Resctrl) -> None:
    node.write(f"{PID}/cpu_resctrl_groups", "res:/\nmon:pqos-1\n")
    sampler = node.resctrl()
    sampler.watch(PID)
    node.tick(sampler)
    assert states(sampler)["resctrl"] == "denied"
    assert "monitoring group pqos-1 of another tool" in reason(sampler, "resctrl")
    assert not node.group().exists()


def test_rank_below_a_watched_launcher_leaves_the_launchers_group(node: Resctrl) -> None:
    node.write(f"{PID}/cpu_resctrl_groups", "res:/\nmon:haiprof-7\n")
    sampler = node.resctrl()
    sampler.watch(PID)
    node.tick(sampler)
    assert node.group().is_dir()


# ---- what is not there


def test_no_resctrl_at_all(tmp_path: Path) -> None:
    node = Node(tmp_path)
    sampler = _core.HostSampler(procfs=str(node.procfs), sysfs=str(node.sysfs), resctrl=True)
    assert states(sampler)["resctrl"] == "absent"
    assert "no such folder" in reason(sampler, "resctrl")


def test_resctrl_that_is_not_mounted(node: Resctrl) -> None:
    shutil.rmtree(node.root)
    node.root.mkdir()
    sampler = node.resctrl()
    assert states(sampler)["resctrl"] == "absent"
    assert "is not mounted" in reason(sampler, "resctrl")
    assert "mount -t resctrl" in reason(sampler, "resctrl")


@pytest.mark.parametrize("features", [None, "", "llc_occupancy\n"])
def test_cpu_without_bandwidth_counters(node: Resctrl, features: str | None) -> None:
    path = node.root / "info/L3_MON/mon_features"
    path.unlink() if features is None else path.write_text(features)
    sampler = node.resctrl()
    assert states(sampler)["resctrl"] == "absent"
    assert "names no counter of memory bandwidth" in reason(sampler, "resctrl")


def test_without_the_right_to_make_groups() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody who may not write")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        node = Resctrl(Path(folder))
        os.seteuid(65534)
        try:
            if not os.access(node.root / "info", os.R_OK, effective_ids=True):
                pytest.skip("the folder for temporary files is not open to others")
            sampler = node.resctrl()
        finally:
            os.seteuid(0)
        assert states(sampler)["resctrl"] == "denied"
        assert "mon_groups: Permission denied" in reason(sampler, "resctrl")
        assert "as root" in reason(sampler, "resctrl")


def test_no_monitoring_number_left(node: Resctrl) -> None:
    # A file system that has room for one more folder, as a CPU has for one more group.
    groups = node.root / "mon_groups"
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=2", "none", str(groups)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this process may not mount a file system")
    try:
        node.threads(20, 20)
        sampler = node.resctrl()
        sampler.watch(PID)
        sampler.watch(20)
        node.tick(sampler)
        assert node.group().is_dir()
        assert not node.group(20).exists()
        sampler.unwatch(PID)
        assert states(sampler)["resctrl"] == "absent"
        assert "no monitoring number (RMID) left" in reason(sampler, "resctrl")
        node.tick(sampler, 30.0)
        assert node.group(20).is_dir()  # the number that came free
        del sampler
    finally:
        subprocess.run(["umount", str(groups)], check=True)


def test_all_names_of_a_process_are_taken(node: Resctrl) -> None:
    for suffix in ("", *(f".{i}" for i in range(1, 16))):
        group = node.root / f"mon_groups/haiprof-{PID}{suffix}"
        group.mkdir()
        (group / "tasks").write_text("")
    sampler = node.resctrl()
    sampler.watch(PID)
    assert bandwidth(node.tick(sampler)) == {}
    assert "mon_groups: File exists" in reason(sampler, "resctrl")


# ---- what the files may say


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Unavailable", "fewer counters than groups"),
        ("Unassigned", "no counter was left for the group"),
        ("Error", "says Error"),
        ("-5", "says -5"),
    ],
)
def test_caches_that_give_no_number(node: Resctrl, text: str, why: str) -> None:
    sampler = counted(node, (text, text), (text, text))
    assert bandwidth(node.tick(sampler)) == {}
    assert states(sampler)["resctrl"] == "absent"
    assert why in reason(sampler, "resctrl")
    node.fill((0, 0), (0, 0))  # it comes back by itself
    node.tick(sampler)
    node.fill((8, 8), (0, 0))
    assert bandwidth(node.tick(sampler))["total"] == {None: 8.0, "l3_0": 8.0, "l3_1": 0.0}
    assert states(sampler)["resctrl"] == "ok"


def test_one_cache_that_gives_no_number_takes_only_the_sum_with_it(node: Resctrl) -> None:
    sampler = counted(node, (0, 0), ("Unavailable", "Unavailable"))
    node.fill((600, 100), ("Unavailable", "Unavailable"))
    assert bandwidth(node.tick(sampler)) == {
        "total": {"l3_0": 600.0},
        "local": {"l3_0": 100.0},
        "remote": {"l3_0": 500.0},
    }
    assert states(sampler)["resctrl"] == "ok"


def test_cpu_that_counts_only_the_total(node: Resctrl) -> None:
    sampler = node.resctrl()
    sampler.watch(PID)
    node.tick(sampler)
    node.fill((0, 0))
    (node.group() / "mon_data/mon_L3_00/mbm_local_bytes").unlink()
    node.tick(sampler, 30.0)
    (node.group() / "mon_data/mon_L3_00/mbm_total_bytes").write_text("50\n")
    assert bandwidth(node.tick(sampler)) == {"total": {None: 50.0, "l3_0": 50.0}}


def test_local_that_is_ahead_of_total_gives_no_remote(node: Resctrl) -> None:
    sampler = counted(node, (100, 100))
    node.fill((200, 201))
    assert set(bandwidth(node.tick(sampler))) == {"total", "local"}


def test_caches_that_come_and_go(node: Resctrl) -> None:
    sampler = counted(node, (0, 0), (0, 0))
    shutil.rmtree(node.group() / "mon_data/mon_L3_01")
    node.tick(sampler, 30.0)
    node.fill((70, 0))
    assert bandwidth(node.tick(sampler))["total"] == {None: 70.0, "l3_0": 70.0}


def test_process_that_is_gone(node: Resctrl) -> None:
    sampler = node.resctrl()
    sampler.watch(77)
    node.tick(sampler)
    assert "process 77 is gone" in reason(sampler, "resctrl")


def test_no_process_is_watched(node: Resctrl) -> None:
    sampler = node.resctrl()
    node.tick(sampler)
    assert "no process is watched" in reason(sampler, "resctrl")
