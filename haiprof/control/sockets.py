"""Which processes of this node can be asked: their sockets, in containers, too."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from haiprof.control.client import ControlError
from haiprof.places import CONTROL_FOLDER, PARTIAL_SUFFIX, SHM_VARIABLE

_SHM: Final = "/dev/shm"
#: A socket that is still being made after so long is a dead process's, s.
_PARTIAL_SECONDS: Final = 60.0


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
    base = os.environ.get(SHM_VARIABLE) or _SHM
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        namespace = Path(f"/proc/{pid}/ns/pid").stat().st_ino
        # Where this process sees it, if it does: what is in another user's root is closed to us.
        root = Path("/") if same_root(pid) else Path(f"/proc/{pid}/root")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            raise ControlError("gone", f"there is no process {pid}") from None
        text = f"process {pid} is another user's: ask as that user, or as root"
        raise ControlError("denied", text) from None
    for word in environment:
        if word.startswith(SHM_VARIABLE.encode() + b"=") and not word.endswith(b"="):
            base = os.fsdecode(word.partition(b"=")[2])
    for folder in _folders(root, base):
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


def users_folders(root: Path, base: str | None = None) -> Iterator[Path]:
    """Yield the folders in shared memory of the users whose processes we may ask.

    Args:
        root: ``/``, or what is that to a process in a container.
        base: where shared memory is there; as here when not given.
    """
    base = base or os.environ.get(SHM_VARIABLE) or _SHM
    with contextlib.suppress(OSError):
        for folder in sorted((root / base.lstrip("/")).glob("haiprof-*")):
            if os.getuid() == 0 or folder.name == f"haiprof-{os.getuid()}":
                yield folder


def _folders(root: Path, base: str | None = None) -> Iterator[Path]:
    for user in users_folders(root, base):
        folder = user / CONTROL_FOLDER
        with contextlib.suppress(OSError):
            about = folder.lstat()
            # A folder that another user has put there is no place to look for answers.
            if stat.S_ISDIR(about.st_mode) and about.st_uid == user.lstat().st_uid:
                yield folder


def _sockets_in(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.name.partition("@")[0].isdecimal() and path.suffix != PARTIAL_SUFFIX
    )


def remove_dead(folder: Path) -> None:
    """Remove the sockets of processes that have ended, and the folder with the last. Never raises.

    Args:
        folder: of sockets, all of one user.
    """
    with contextlib.suppress(OSError):
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for path in _sockets_in(folder):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
                    knock.setblocking(False)
                    try:
                        knock.connect(f"/proc/self/fd/{at}/{path.name}")
                    except ConnectionRefusedError:  # listened at since it has its name, until now
                        path.unlink()
                    except OSError:
                        pass
            for path in folder.glob(f"*{PARTIAL_SUFFIX}"):
                if time.time() - path.lstat().st_mtime > _PARTIAL_SECONDS:
                    path.unlink()
        finally:
            os.close(at)
        folder.rmdir()
