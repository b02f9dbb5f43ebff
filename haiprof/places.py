"""Where things lie: ring files on tmpfs, run folders in the log directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

SHM_VARIABLE: Final = "HAIPROF_SHM_DIR"
RING_SUFFIX: Final = ".ring"
LOCK_NAME: Final = "recorder.lock"
DOORBELL_NAME: Final = "doorbell"
RECORDER_LOG: Final = "recorder.log"
#: PROC_PID_INIT_INO of Linux: the namespace outside all containers.
_FIRST_NAMESPACE: Final = 0xEFFFFFFC


def ring_root() -> Path:
    """Return the folder of this user's rings; it may not exist yet."""
    base = os.environ.get(SHM_VARIABLE) or "/dev/shm"
    return Path(base) / f"haiprof-{os.getuid()}"


def ring_dir(run: str) -> Path:
    """Return the folder of the rings of one run on this machine.

    Containers may share /dev/shm (``--ipc=host``) and a run, but a recorder only sees the processes
    of its own pid namespace; so each namespace has its own folder, and its own recorder.
    """
    namespace = _pid_namespace()
    return ring_root() / (run if namespace in (None, _FIRST_NAMESPACE) else f"{run}@{namespace:x}")


def _pid_namespace() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


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
