"""A file of ours in a folder of a process, to exchange data with it.

The process, and whoever else runs in its container, can do to the folder what they like. So the
file is opened once, when it is created, and never again by its name.

Tests: tests/control/test_attach_container.py.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from haiprof.common.owned_files import Folder
from haiprof.control.container_folder import acting_as_user_of


class SharedFile:
    """One, until the end of its ``with``.

    Attributes:
        seen_at: its path, as the process sees it.
    """

    def __init__(self, pid: int, folder: Folder, seen_in: str) -> None:
        """Create it, owned by the user of the process, mode 0600.

        Raises:
            OSError: it cannot be created.
        """
        self._pid = pid
        self._folder = folder
        self._name = f"haiprof-{os.getpid()}-{time.monotonic_ns()}"
        self.seen_at = f"/{seen_in}/{self._name}"
        with acting_as_user_of(pid):
            self._fd = folder.create(self._name)

    def write(self, content: bytes) -> None:
        """Write from its beginning.

        Raises:
            OSError: there is no room.
        """
        view = memoryview(content)
        done = 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], done)

    def read(self, most: int) -> bytes:
        """Return its content from the beginning, at most ``most`` bytes."""
        return os.pread(self._fd, most, 0)

    def reachable(self) -> bool:
        """Say whether the process can still write it: both exist."""
        try:
            Path(f"/proc/{self._pid}/root").stat()
            return os.fstat(self._fd).st_nlink > 0
        except OSError:
            return False

    def remove(self) -> None:
        """Remove it. Never raises."""
        with contextlib.suppress(OSError):
            self._folder.remove(self._name)
        os.close(self._fd)

    def __enter__(self) -> SharedFile:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Remove it."""
        self.remove()


def shared_file(pid: int, folders: Sequence[str], content: bytes) -> SharedFile | None:
    """Make a file in the first possible of these folders of a process; None: nowhere."""
    for seen_in in folders:
        with contextlib.suppress(OSError):
            folder = Folder.at(Path(f"/proc/{pid}/root/{seen_in}"))
            file = SharedFile(pid, folder, seen_in)
            try:
                file.write(content)
                return file
            except OSError:  # it is full
                file.remove()
    return None
