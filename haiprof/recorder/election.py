"""Elects one recorder per node and run: the process that holds the flock of the lock file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from haiprof.common.owned_files import Folder
from haiprof.common.places import LOCK_NAME, open_rings

#: More digits than a pid has.
_PID_BYTES: Final = 20


def recorder_running(ring_dir: Path) -> bool:
    """Return whether some process holds the recorder's lock of this run."""
    return _ask(ring_dir)[0]


def recorder_pid(ring_dir: Path) -> int | None:
    """Return the process that holds the recorder's lock of this run; None: nobody does."""
    running, content = _ask(ring_dir)
    return int(content) if running and content.isdigit() else None  # no pid yet: just locked


def _ask(ring_dir: Path) -> tuple[bool, bytes]:
    """Return whether some process holds the lock, and what the file says.

    The folder may be another user's: nothing in it can block us.
    """
    try:
        file = Folder.at(ring_dir).open(LOCK_NAME)
    except OSError:
        return False, b""
    with file:
        try:
            # Shared, so that two askers never take each other for a recorder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # Unlocked explicitly: a child that another thread forks now has the descriptor too.
            fcntl.flock(file, fcntl.LOCK_UN)
        except OSError:
            return True, os.pread(file.fileno(), _PID_BYTES, 0)
    return False, b""


def _write_pid(fd: int) -> None:
    with contextlib.suppress(OSError):  # nobody needs it
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)


class Election:
    """The recorder's lock of one run. The kernel drops it with the process, however that ends."""

    def __init__(self, ring_dir: Path) -> None:
        """Prepare to stand for the run whose rings lie in ``ring_dir``."""
        self._path = ring_dir
        self._fd: int | None = None
        self._folder: Folder | None = None

    @property
    def folder(self) -> Folder:
        """The folder of rings in which the lock lies that was won last."""
        assert self._folder is not None
        return self._folder

    def win(self, patience: float = 0.5) -> bool:
        """Try to become the recorder. Waits a little: somebody may only be asking."""
        fd = self._open()
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= until:
                    os.close(fd)
                    return False
                time.sleep(0.02)
            else:
                if self._is_the_file(fd):
                    self._fd = fd
                    _write_pid(fd)
                    return True
                # The last recorder removed the file between our open and our lock.
                os.close(fd)
                fd = self._open()

    def _open(self) -> int:
        # A recorder that leaves removes the empty folder.
        self._folder = open_rings(self._path, make=True)
        return self._folder.update(LOCK_NAME)

    def _is_the_file(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self.folder.stat(LOCK_NAME))
        except OSError:
            return False

    def resign(self) -> None:
        """Let somebody else be the recorder."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Election:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Resign."""
        self.resign()
