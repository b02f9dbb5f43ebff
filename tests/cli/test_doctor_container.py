"""``haiprof doctor`` in containers: what is missing there, and how it is given."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from haiprof.cli.doctor import container, given, reach, rights
from haiprof.cli.doctor.container import (
    Mount,
    ends_with_container,
    mount_of,
    parse_mounts,
    ranks_here,
    rings_that_fit,
)
from haiprof.common.places import Access

MIB = 1 << 20
#: The lines that count of a container of Docker with a volume, in a pod, and of one on btrfs.
MOUNTINFO = """\
1 0 0:50 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
2 1 0:52 / /proc rw,nosuid - proc proc rw
3 1 0:54 / /dev/shm rw,nosuid,nodev,noexec - tmpfs shm rw,size=65536k
4 1 8:1 /data/logs /logs rw,relatime - ext4 /dev/sda1 rw
5 1 8:1 /data/a\\040b /with\\040blank rw,relatime - ext4 /dev/sda1 rw
6 1 8:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/x /scratch rw - xfs /dev/sda1 rw
7 4 0:60 / /logs/later rw - nfs4 server:/x rw
8 1 0:61 / /sys/devices/virtual/powercap ro - tmpfs tmpfs ro
"""
ON_BTRFS = "1 0 0:50 /var/lib/docker/btrfs/subvolumes/1 / rw - btrfs /dev/sda2 rw"

EXAMINE = """
import json, sys
from haiprof.cli.doctor import container, reach
from haiprof.common.places import Access
found = [*container.examine(Access(sysfs=sys.argv[1], perfd=sys.argv[2])), *reach.attach()]
print(json.dumps({f.what: [f.state, f.found, f.fix] for f in found}))
"""


def inside(*before: str, script: str = "", sysfs: str = "/sys", perfd: str = "") -> dict[str, Any]:
    """Return the findings in a pid and mount namespace, after a script of the shell."""
    prefix = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("no namespaces may be made here")
    command = [*before, sys.executable, "-c", EXAMINE, sysfs, perfd]
    done = subprocess.run(
        [*prefix, "sh", "-ec", f'{script}\nexec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_on_a_machine_itself_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "in_container", lambda: False)
    assert list(container.examine(Access())) == []


def test_small_shared_memory_is_reported_with_the_ranks_that_lose(tmp_path: Path) -> None:
    logs = f"mount -t tmpfs none {tmp_path}; cd {tmp_path}"
    found = inside(
        script=f"mount -t tmpfs -o size=64m none /dev/shm; {logs}; export LOCAL_WORLD_SIZE=8",
    )
    state, text, fix = found["container shared memory"]
    assert state == "broken"
    assert "64 MiB free, 3 rings of 16 MiB fit and 3 smaller ones: 2 ranks" in text
    assert given.SHARED_MEMORY.docker in fix
    assert given.SHARED_MEMORY.kubernetes in fix
    state, text, fix = found["log folder"]
    assert (state, "memory (tmpfs)" in text) == ("absent", True)
    assert given.LOGS.docker in fix
    state, text, fix = found["container processes"]
    assert (state, text.startswith("only this container's")) == ("ok", True)
    assert given.PROCESSES.docker in fix
    assert found["container"][0] == "ok"
    assert found["attach"][0] == "ok"


def test_with_room_for_all_ranks_there_is_nothing_to_fix(tmp_path: Path) -> None:
    found = inside(
        script="mount -t tmpfs -o size=1g none /dev/shm; export LOCAL_WORLD_SIZE=8",
    )
    state, text, fix = found["container shared memory"]
    assert (state, fix) == ("ok", "")
    assert "63 rings of 16 MiB fit" in text


def counters(sysfs: Path, *names: str) -> str:
    """Make a /sys that shows these PMUs beside those of cores."""
    for name in (*names, "cpu"):
        (sysfs / "bus/event_source/devices" / name).mkdir(parents=True)
    (sysfs / "devices/system/node").mkdir(parents=True)
    (sysfs / "devices/system/cpu").mkdir(parents=True)
    return str(sysfs)


def test_without_the_right_to_counters_it_says_how_to_get_it(tmp_path: Path) -> None:
    if rights.perf_event_paranoid() <= 0:
        pytest.skip("all may count here")
    sysfs = counters(tmp_path / "sys", "uncore_imc_0", "uncore_imc_1")
    bare = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    state, text, fix = inside(*bare, sysfs=sysfs)["container rights"]
    assert state == "denied"
    assert text.startswith("no CAP_PERFMON")
    assert "2 PMUs" in text
    assert given.PERFMON.docker in fix
    assert given.PERFD.kubernetes in fix
    some = ("setpriv", "--bounding-set=-all,+perfmon", "--inh-caps=-all")
    assert inside(*some, sysfs=sysfs)["container rights"][:1] == ["ok"]
    # Where a machine has no such counters, the right would give nothing.
    without = counters(tmp_path / "without")
    assert inside(*bare, sysfs=without)["container rights"][0] == "ok"


def test_a_sys_that_shows_little_is_reported(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    state, text, fix = inside(sysfs=str(tmp_path))["container sys"]
    assert state == "absent"
    assert "no hardware counters, no memory by NUMA node" in text
    assert given.SYS.docker in fix


def test_what_docker_covers_is_reported(tmp_path: Path) -> None:
    finding = container._sys(Access(), parse_mounts(MOUNTINFO))
    assert (finding.state, given.SYS.docker in finding.fix) == ("denied", True)
    # The machine's own, mounted elsewhere, is not covered.
    mounted = Access(sysfs=counters(tmp_path))
    assert container._sys(mounted, parse_mounts(MOUNTINFO)).state == "ok"


def test_attach_is_refused_by_yama_without_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "yama", lambda: 1)
    monkeypatch.setattr(rights, "effective", set)
    monkeypatch.setattr(reach, "in_container", lambda: True)
    (finding,) = reach.attach()
    assert finding.state == "denied"
    assert "ptrace_scope is 1" in finding.found
    assert given.PTRACE.kubernetes in finding.fix


@pytest.mark.parametrize(
    ("rights_here", "whose"),
    [(set(), "of this user; another's need root"), ({"SYS_PTRACE"}, "of all users")],
)
def test_attach_says_whose_processes_the_caller_may_attach_to(
    monkeypatch: pytest.MonkeyPatch, rights_here: set[str], whose: str
) -> None:
    monkeypatch.setattr(rights, "yama", lambda: 0)
    monkeypatch.setattr(rights, "effective", lambda: rights_here)
    (finding,) = reach.attach()
    assert finding.state == "ok"
    assert f"running Python processes {whose} (" in finding.found


@pytest.mark.parametrize(
    ("free", "wanted", "fit"),
    [
        (64 * MIB, 16 * MIB, (3, 3)),
        (1024 * MIB, 16 * MIB, (63, 3)),
        (32 * MIB, 16 * MIB, (1, 3)),
        (31 * MIB, 16 * MIB, (0, 3)),
        (4 * MIB, 16 * MIB, (0, 1)),
        (4 * MIB - 1, 16 * MIB, (0, 0)),
        (0, 16 * MIB, (0, 0)),
    ],
)
def test_each_ring_takes_at_most_half_of_what_is_left(
    free: int, wanted: int, fit: tuple[int, int]
) -> None:
    assert rings_that_fit(free, wanted) == fit


def test_the_launcher_says_how_many_ranks_there_are() -> None:
    assert ranks_here({"LOCAL_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) == 4
    assert ranks_here({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) == 2
    assert ranks_here({"LOCAL_WORLD_SIZE": "many"}) == len(list(Path("/dev").glob("nvidia[0-9]*")))


@pytest.mark.parametrize(
    ("path", "kind", "why"),
    [
        ("/data/logs", "overlay", "the container's own files (overlay)"),
        ("/dev/shm/x", "tmpfs", "memory (tmpfs)"),
        ("/logs", "ext4", ""),
        ("/logs/run", "ext4", ""),
        ("/logs/later/run", "nfs4", ""),
        ("/logsfor", "overlay", "own files"),
        ("/with blank/run", "ext4", ""),
        ("/scratch/run", "xfs", "emptyDir, which ends with the pod"),
    ],
)
def test_where_runs_lie_says_whether_they_stay(path: str, kind: str, why: str) -> None:
    mount = mount_of(path, parse_mounts(MOUNTINFO))
    assert mount.kind == kind
    reason = ends_with_container(mount, by_engine=True)
    assert why in reason
    assert bool(why) == bool(reason)


def test_the_root_on_btrfs_is_the_engines_or_the_machines_own() -> None:
    mount = mount_of("/data", parse_mounts(ON_BTRFS))
    assert "own files (btrfs)" in ends_with_container(mount, by_engine=True)
    assert ends_with_container(mount, by_engine=False) == ""
    assert ends_with_container(Mount("/", "/", "ext4"), by_engine=True) == ""


def test_capabilities_have_the_kernels_numbers() -> None:
    header = Path("/usr/include/linux/capability.h")
    if not header.exists():
        pytest.skip("no headers of the kernel here")
    words = [line.split() for line in header.read_text().splitlines()]
    known = {w[1]: w[2] for w in words if len(w) == 3 and w[0] == "#define"}
    assert {n: known[f"CAP_{name}"] for n, name in rights.CAPABILITIES.items()} == {
        n: str(n) for n in rights.CAPABILITIES
    }


def test_whether_stacks_can_be_read_is_tried_out() -> None:
    (finding,) = reach.stacks()
    assert finding.what == "stacks"
    if sys.version_info >= (3, 15):  # its layout is not known
        assert finding.state == "absent"
    else:
        assert (finding.state, finding.fix) == ("ok", "")
