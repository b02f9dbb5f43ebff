"""Where things lie: ring files on tmpfs, run folders in the log directory, the node's /sys."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

SHM_VARIABLE: Final = "HAIPROF_SHM_DIR"
RING_SUFFIX: Final = ".ring"
LOCK_NAME: Final = "recorder.lock"
DOORBELL_NAME: Final = "doorbell"
RECORDER_LOG: Final = "recorder.log"
#: What the folders begin with in which deep traces of a run are written.
UNFINISHED_TRACE: Final = ".trace-"
#: How often the recorder of a run reads and drains, where it was told after its start.
PACE_NAME: Final = "pace.json"
#: Holds the sockets of docs/control.md; no run has a name that begins with a dot.
CONTROL_FOLDER: Final = ".control"
#: Of the socket of a process that does not listen at it yet.
PARTIAL_SUFFIX: Final = ".partial"
#: PROC_PID_INIT_INO of Linux: the namespace outside all containers.
_FIRST_NAMESPACE: Final = 0xEFFFFFFC
PROCFS: Final = "/proc"
SYSFS: Final = "/sys"
#: What a folder holds, at least one of them, that is a sysfs or procfs, or a copy of parts of one.
_SIGNS: Final = {
    "sys": ("bus", "class", "devices"),
    "proc": ("stat", "cpuinfo", "meminfo", "net", "self"),
}


class Access(NamedTuple):
    """How the sources of the node are reached."""

    procfs: str = PROCFS
    sysfs: str = SYSFS
    #: Socket of a haiprof-perfd; empty: it is never asked.
    perfd: str = ""
    #: Monitoring groups may be made in resctrl.
    resctrl: bool = False


def ring_root() -> Path:
    """Return the folder of this user's rings; it may not exist yet."""
    base = os.environ.get(SHM_VARIABLE) or "/dev/shm"
    return Path(base) / f"haiprof-{os.getuid()}"


def ring_dir(run: str) -> Path:
    """Return the folder of the rings of one run on this machine.

    Containers may share /dev/shm (``--ipc=host``) and a run, but a recorder only sees the processes
    of its own pid namespace; so each namespace has its own folder, and its own recorder.
    """
    return ring_root() / _of_this_namespace(run)


def control_socket() -> Path:
    """Return where this process is asked what it records, and told to (docs/control.md).

    Not beside its rings: it is there between two recordings, too, and a path that holds the name of
    a run is too long for a socket.
    """
    return ring_root() / CONTROL_FOLDER / _of_this_namespace(str(os.getpid()))


def _of_this_namespace(name: str) -> str:
    return name if in_first_pid_namespace() else f"{name}@{_pid_namespace():x}"


def _pid_namespace() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


def in_first_pid_namespace() -> bool:
    """Say whether this process sees all of the machine's processes."""
    return _pid_namespace() in (None, _FIRST_NAMESPACE)


def room_for_ring(folder: Path, wanted: int) -> int:
    """Return how many bytes a ring in ``folder`` may take: ``wanted``, or half of what is free.

    The other half is the job's: its DataLoader workers and NCCL die without shared memory.

    Raises:
        OSError: ``folder`` cannot be looked at.
    """
    found = os.statvfs(folder)
    return min(wanted, found.f_bavail * found.f_frsize // 2)


def removed(folder: Path) -> bool:
    """Return whether somebody has removed ``folder``.

    Raises:
        OSError: it cannot be told, as on a file system that is away for a while.
    """
    try:
        folder.stat()
    except FileNotFoundError:
        return True
    return False


def make_private(folder: Path) -> None:
    """Create ``folder`` with mode 0700, and refuse one that somebody else prepared.

    Raises:
        OSError: it cannot be made, or belongs to another user (a shared /dev/shm invites traps).
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(
                1, "exists but is not a folder of this user; remove it", str(folder)
            ) from None


def node_name() -> str:
    """Return the name that this machine's folders carry."""
    name = os.environ.get("MARSV2_NODE_NAME") or os.uname().nodename
    return safe_name(name) or "node"


def safe_name(text: str) -> str:
    """Return ``text`` as one harmless path component of at most 120 characters."""
    kept = "".join(c if c.isalnum() or c in "-_.+=@" else "-" for c in text)
    return kept.strip(".-")[:120]


def find_sysfs(root: str | Path) -> Path:
    """Return the sysfs that ``root`` is, or that it holds as ``sys``.

    Raises:
        ValueError: neither; the text goes on where the name of the option ends.
    """
    return _find(Path(root), "sys")


def find_procfs(root: str | Path) -> Path:
    """Return the procfs that ``root`` is, or that it holds as ``proc``.

    Raises:
        ValueError: neither; the text goes on where the name of the option ends.
    """
    return _find(Path(root), "proc")


def _find(root: Path, kind: str) -> Path:
    try:
        if not root.exists():
            raise ValueError("does not exist")
        for folder in (root, root / kind):
            if any((folder / sign).exists() for sign in _SIGNS[kind]):
                return folder
    except OSError as error:
        raise ValueError(f"cannot be looked at ({error.strerror})") from None
    *some, last = _SIGNS[kind]
    raise ValueError(f"is no {kind}fs: there is no {', '.join(some)} or {last} in it")


def mounted(folder: Path, kind: str) -> bool:
    """Say whether ``folder`` lies on a mounted file system of that type, which a copy does not."""
    try:
        device = folder.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [wanted]:
            return source.split()[:1] == [kind]
    return False


def in_container() -> bool:
    """Say whether this process most likely runs in a container."""
    return (
        not in_first_pid_namespace()
        or "KUBERNETES_SERVICE_HOST" in os.environ
        or any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
    )
