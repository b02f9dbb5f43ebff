"""Which processes of this node can be asked: their sockets, in containers, too.

Tests: tests/capture/socket/test_server.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from haiprof.common.control_folder import is_socket
from haiprof.common.places import (
    CONTROL_FOLDER,
    SHM_VARIABLE,
    folders_for_rings,
    names_of_roots,
)
from haiprof.control.client import ControlError


def sockets() -> list[Path]:
    """Return the sockets of this user's processes on this node; of all users' for root.

    Those in containers are found where their ``/proc/<pid>/root`` can be read, which root can.
    """
    found: dict[tuple[int, int], list[Path]] = {}
    for root in _roots():
        for folder in _folders(root):
            with contextlib.suppress(OSError):
                about = folder.stat()
                found.setdefault((about.st_dev, about.st_ino), _sockets_in(folder))
    return [path for paths in found.values() for path in paths]


def socket_of(pid: int) -> Path:
    """Return the socket of a process, which may run in a container.

    Raises:
        ControlError: there is no such process, it is another user's, or has no socket.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise ControlError("gone", f"there is no process {pid}") from None
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    inner = lines.get("NSpid", str(pid)).split()[-1]
    folders = os.environ.get(SHM_VARIABLE, "")
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        namespace = Path(f"/proc/{pid}/ns/pid").stat().st_ino
        # Through this process's root, if the same: another user's root is closed to us.
        root = Path("/") if same_root(pid) else Path(f"/proc/{pid}/root")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            raise ControlError("gone", f"there is no process {pid}") from None
        text = f"process {pid} is another user's: ask as that user, or as root"
        raise ControlError("denied", text) from None
    for word in environment:
        if word.startswith(SHM_VARIABLE.encode() + b"=") and not word.endswith(b"="):
            folders = os.fsdecode(word.partition(b"=")[2])
    for folder in _folders(root, folders):
        for name in (inner, f"{inner}@{namespace:x}"):
            if (folder / name).is_socket():
                return folder / name
    raise ControlError("unloaded", f"process {pid} has not loaded haiprof, or records nothing yet")


def same_root(pid: int) -> bool:
    """Say whether a process sees the files that we see.

    Raises:
        OSError: it has ended, or is another user's.
    """
    return os.path.samestat(
        Path(f"/proc/{pid}/ns/mnt").stat(), Path("/proc/self/ns/mnt").stat()
    ) and os.path.samestat(Path(f"/proc/{pid}/root").stat(), Path("/").stat())


def _roots() -> Iterator[Path]:
    """Yield this process's root and one of each other mount namespace that can be looked into."""
    yield Path("/")
    seen = set()
    with contextlib.suppress(OSError):
        seen.add(Path("/proc/self/ns/mnt").readlink())
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                namespace = (entry / "ns" / "mnt").readlink()
                if namespace not in seen:
                    seen.add(namespace)
                    yield entry / "root"


def users_folders(root: Path, folders: str | None = None) -> Iterator[Path]:
    """Yield the folders of rings and sockets of the users whose processes we may ask.

    Args:
        root: ``/``, or what is that to a process in a container.
        folders: what ``HAIPROF_SHM_DIR`` is there; as here if None.
    """
    uid = os.getuid()
    users = [uid] if uid else sorted({0, *_logged_in(root)})
    bases = dict.fromkeys(base for user in users for base in folders_for_rings(folders, user))
    for base in bases:
        here = root / str(base).lstrip("/")
        for name in names_of_roots(here, uid or None):
            with contextlib.suppress(OSError):
                # A folder under our name that is another user's is not ours.
                if not uid or (here / name).lstat().st_uid == uid:
                    yield here / name


def _logged_in(root: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(p.name) for p in (root / "run/user").iterdir() if p.name.isdecimal()]
    return []


def _folders(root: Path, folders: str | None = None) -> Iterator[Path]:
    for user in users_folders(root, folders):
        folder = user / CONTROL_FOLDER
        with contextlib.suppress(OSError):
            about = folder.lstat()
            # A folder that another user has put there is no place to look for answers.
            if stat.S_ISDIR(about.st_mode) and about.st_uid == user.lstat().st_uid:
                yield folder


def _sockets_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_socket(path.name))
