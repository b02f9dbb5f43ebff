"""Folders of unfinished things, claimed by their process: those of killed ones can be recognised.

The claim is a lock. It ends with the process, however that ends; its forked children share it. A
lock is local to one machine, even on a shared file system, so a folder's name contains that of the
machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from haiprof.common.places import safe_name


class ClaimedFolder:
    """A folder of this process, until :meth:`remove` or the process's end."""

    def __init__(self, parent: Path, prefix: str) -> None:
        """Make it.

        Args:
            parent: where.
            prefix: what its name begins with.

        Raises:
            OSError: it cannot be made.
        """
        self._fd = -1
        while not self._make(parent, prefix):
            self._close()

    def _make(self, parent: Path, prefix: str) -> bool:
        """Return whether it is ours: before we locked it, it may have been removed as abandoned."""
        self.path = Path(tempfile.mkdtemp(prefix=_of_here(prefix), dir=parent))
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except (FileNotFoundError, BlockingIOError):
            return False
        except OSError:  # no locks here: then nobody removes it as abandoned, either
            return True

    def remove(self) -> None:
        """Remove it with all its content. Idempotent; never raises."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def remove_abandoned(parent: Path, prefix: str) -> int:
    """Remove this user's folders whose process on this machine has ended; return how many."""
    removed = 0
    with contextlib.suppress(OSError):
        for folder in list(parent.iterdir()):
            own, of_here, rest = folder.name.partition(_of_here(prefix))
            # Another machine's name may begin with ours.
            if not own and of_here and "-" not in rest:
                with contextlib.suppress(OSError):
                    removed += _remove_abandoned(folder)
    return removed


def _remove_abandoned(folder: Path) -> bool:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid != os.getuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    finally:
        os.close(fd)


def _of_here(prefix: str) -> str:
    return f"{prefix}{safe_name(os.uname().nodename)}-"
