"""What our container restricts: shared memory, persistent files, rights, /sys.

Says nothing on a machine itself.

Tests: tests/cli/test_doctor_container.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from haiprof.cli.doctor import given, rights
from haiprof.cli.doctor.finding import ABSENT, BROKEN, DENIED, OK, Finding
from haiprof.cli.doctor.itself import SMALLEST_RING, mib
from haiprof.common.places import Access, folders_for_rings, in_container, in_first_pid_namespace
from haiprof.options import resolve

#: File systems that engines lay a container's own files on.
_LAYERS: Final = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
#: How Kubernetes names the folders of volumes that end with the pod.
_EMPTY_DIR: Final = "kubernetes.io~empty-dir"
#: Where launchers and batch systems say how many processes of a job a node has.
_LOCAL_SIZES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
#: Engines cover it with an empty folder: the energy of a CPU reveals what it computes.
_POWERCAP: Final = "/sys/devices/virtual/powercap"
#: How the kernel names the PMUs that count for the whole machine.
_UNCORE: Final = ("uncore_", "amd_df", "amd_umc", "power", "nvidia_scf_pmu", "arm_cmn")


_SHM_FIX: Final = f"{given.SHARED_MEMORY}, mounted at /dev/shm"


class Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo``: what of a file system is seen where."""

    point: str
    root: str
    kind: str


def examine(access: Access) -> Iterator[Finding]:
    """Look at the container around this process, if there is one."""
    if not in_container():
        return
    mounts = _mounts()
    yield Finding("container", OK, _which())
    yield _rings()
    yield _log_folder(mounts)
    yield _processes()
    yield _rights(access)
    yield _sys(access, mounts)


def _which() -> str:
    """Say what kind of container it is, as far as can be seen."""
    signs = [name for name, there in _engines().items() if there]
    text = ", ".join(signs) or "a pid namespace of its own"
    return f"{text}; root here is not the machine's root" if _mapped_users() else text


def _engines() -> dict[str, bool]:
    return {
        "a pod of Kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ,
        "Docker": Path("/.dockerenv").exists(),
        "Podman": Path("/run/.containerenv").exists(),
    }


def _mapped_users() -> bool:
    """Say whether user 0 here is another user outside, or some users are not mapped."""
    try:
        words = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    except OSError:
        return False
    return words != ["0", "0", "4294967295"]


def rings_that_fit(free: int, wanted: int) -> tuple[int, int]:
    """Return how many rings get their full size, and how many smaller ones follow.

    Args:
        free: bytes of shared memory that are free.
        wanted: bytes of a ring. Each takes at most half of what is free before it.
    """
    whole = smaller = 0
    while (takes := min(wanted, free // 2)) >= SMALLEST_RING:
        if takes == wanted:
            whole += 1
        else:
            smaller += 1
        free -= takes
    return whole, smaller


def ranks_here(environment: Mapping[str, str]) -> int:
    """Return how many ranks the node may have: as launchers say, else one per GPU; 0: unknown."""
    for name in _LOCAL_SIZES:
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    return sum(p.name[6:].isdecimal() for p in Path("/dev").glob("nvidia[0-9]*"))


def _rings() -> Finding:
    what = "container shared memory"
    base = folders_for_rings()[0]
    try:
        room = os.statvfs(base)
    except OSError as error:
        return Finding(what, ABSENT, f"{base}: {error.strerror}", _SHM_FIX)
    wanted = resolve({})[0].ring_mib
    free = room.f_frsize * room.f_bavail
    whole, smaller = rings_that_fit(free, wanted << 20)
    ranks = ranks_here(os.environ)
    found = f"{base}: {mib(free)} free, {whole} rings of {wanted} MiB fit"
    if smaller:
        found += f" and {smaller} smaller ones"
    if whole + smaller < max(ranks, 1):
        lost = max(ranks, 1) - whole - smaller
        return Finding(what, BROKEN, f"{found}: {_ranks(lost)} would record nothing", _SHM_FIX)
    if whole < max(ranks, 1):
        less = max(ranks, 1) - whole
        return Finding(what, OK, f"{found}: {_ranks(less)} would lose records sooner", _SHM_FIX)
    return Finding(what, OK, f"{found}, one is needed for each rank")


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _log_folder(mounts: Sequence[Mount]) -> Finding:
    what = "log folder"
    folder = resolve({})[0].log_dir
    with contextlib.suppress(FileNotFoundError):  # the working folder has been removed
        folder = folder.absolute()
    there = next((p for p in (folder, *folder.parents) if p.is_dir()), Path("/"))
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(what, DENIED, f"{folder} cannot be written", str(given.LOGS))
    mount = mount_of(os.path.realpath(there), mounts)
    why = ends_with_container(mount, by_engine=any(_engines().values()))
    if why:
        return Finding(
            what, ABSENT, f"{folder} {why}: runs end with the container", str(given.LOGS)
        )
    return Finding(what, OK, f"{folder}, on {mount.kind}")


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount:
    """Return the mount that a real path lies on: the most recent of the innermost."""
    own = Mount("/", "/", "?")
    for mount in mounts:
        beneath = mount.point == "/" or f"{path}/".startswith(f"{mount.point}/")
        if beneath and len(mount.point) >= len(own.point):
            own = mount
    return own


def ends_with_container(mount: Mount, *, by_engine: bool) -> str:
    """Say why what is written to a mount ends with the container or pod; empty: it does not.

    Args:
        mount: what it lies on.
        by_engine: an engine made the container: where its root is a part of a file system, as on
            btrfs, that is created for each container.
    """
    if _EMPTY_DIR in mount.root:
        return "lies in an emptyDir, which ends with the pod"
    if mount.kind in ("tmpfs", "ramfs"):
        return f"lies in memory ({mount.kind})"
    if mount.kind in _LAYERS or (by_engine and mount.point == "/" != mount.root):
        return f"lies among the container's own files ({mount.kind})"
    return ""


def _processes() -> Finding:
    what = "container processes"
    if in_first_pid_namespace():
        return Finding(what, OK, "all of the machine's are seen here")
    first = Path("/proc/1/comm")
    try:
        shared = first.read_text(encoding="utf-8", errors="replace").strip() == "pause"
    except OSError:
        shared = False
    if shared:
        return Finding(what, OK, "those of all containers of the pod are seen here")
    return Finding(
        what,
        OK,
        "only this container's are seen here",
        f"for another's: {given.PROCESSES}; for the machine's: {given.ALL_PROCESSES}",
    )


def _rights(access: Access) -> Finding:
    what = "container rights"
    capabilities = rights.effective()
    names = (
        ", ".join(f"CAP_{name}" for name in sorted(capabilities))
        or "no CAP_PERFMON, no CAP_SYS_PTRACE"
    )
    found = f"{names}; seccomp {rights.seccomp()}"
    pmus = _uncore_pmus(access)
    if not pmus or capabilities & {"PERFMON", "SYS_ADMIN"} or rights.perf_event_paranoid() <= 0:
        return Finding(what, OK, found)
    if access.perfd and Path(access.perfd).is_socket():
        return Finding(what, OK, f"{found}; a haiprof-perfd is at {access.perfd}")
    return Finding(
        what,
        DENIED,
        f"{found}: no memory bandwidth, links or PCIe traffic from this machine's {pmus} PMUs",
        f"haiprof-perfd on the machine, and its socket here ({given.PERFD}); or {given.PERFMON}",
    )


def _uncore_pmus(access: Access) -> int:
    try:
        entries = list((Path(access.sysfs) / "bus/event_source/devices").iterdir())
    except OSError:
        return 0
    return sum(entry.name.startswith(_UNCORE) for entry in entries)


def _sys(access: Access, mounts: Sequence[Mount]) -> Finding:
    what = "container sys"
    sysfs = Path(access.sysfs)
    missing = [
        lost
        for folder, lost in (
            ("bus/event_source/devices", "hardware counters"),
            ("devices/system/node", "memory by NUMA node"),
            ("devices/system/cpu", "clocks of the cores"),
        )
        if not (sysfs / folder).is_dir()
    ]
    if missing:
        return Finding(what, ABSENT, f"{sysfs} shows no {', no '.join(missing)}", str(given.SYS))
    if access.sysfs == "/sys" and any(m.point == _POWERCAP for m in mounts):
        return Finding(
            what,
            DENIED,
            f"{_POWERCAP} is covered: no energy from powercap",
            f"{given.SYS}; not needed where the PMU power can be read",
        )
    ports = "with" if any(_entries(sysfs / "class/infiniband")) else "no"
    return Finding(what, OK, f"{sysfs}: PMUs, NUMA nodes, cores; {ports} InfiniBand devices")


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _mounts() -> list[Mount]:
    try:
        return parse_mounts(Path("/proc/self/mountinfo").read_text("utf-8", "replace"))
    except OSError:
        return []


def parse_mounts(text: str) -> list[Mount]:
    """Return what ``/proc/self/mountinfo`` says, oldest first."""
    mounts = []
    for line in text.splitlines():
        place, _, source = line.partition(" - ")
        words = place.split()
        if len(words) >= 5 and source:
            root, point = (_unescaped(word) for word in words[3:5])
            mounts.append(Mount(point, root, source.split()[0]))
    return mounts


def _unescaped(word: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, character)
    return word
