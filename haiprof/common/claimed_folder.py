"""Folders of unfinished things: held by their process, so that what a killed one left can be told.

A lock says that a folder is held. It goes with the process, however that ends; children that it
forked share it. A lock is of one machine, also on a file system that several see, so a folder's
name has that of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from haiprof.common.places import safe_name


class Held:
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
            self._let_go()

    def _make(self, parent: Path, prefix: str) -> bool:
        """Return whether it is ours: before it was locked, it may have been taken for left."""
        self.path = Path(tempfile.mkdtemp(prefix=_of_here(prefix), dir=parent))
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except (FileNotFoundError, BlockingIOError):
            return False
        except OSError:  # no locks here: then nobody takes it for left either
            return True

    def remove(self) -> None:
        """Remove it with all that is in it. Idempotent; never raises."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._let_go()

    def _let_go(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def remove_abandoned(parent: Path, prefix: str) -> int:
    """Remove this user's folders whose process on this machine is gone; return how many."""
    removed = 0
    with contextlib.suppress(OSError):
        for folder in list(parent.iterdir()):
            own, of_here, rest = folder.name.partition(_of_here(prefix))
            # The name of another machine may begin as ours does.
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
