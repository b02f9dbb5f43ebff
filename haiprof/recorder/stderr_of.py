"""One line on the stderr of another process, where that cannot harm what it writes there itself."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def say_on_stderr_of(pid: int, line: bytes) -> bool:
    """Write a line to where the stderr of a process leads, or to nowhere.

    Written to are a terminal, a pipe, and a file to which the process appends: elsewhere its next
    write would overwrite ours. Nobody is waited for, and nothing is written for another user, who
    could have us write where only we may.

    Args:
        pid: of the process.
        line: with its end, at most as long as a pipe takes in one piece (``PIPE_BUF``).

    Returns:
        Whether it was written.
    """
    with contextlib.suppress(OSError, ValueError):
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return False
        about, its = os.stat(f"/proc/{pid}/fd/2"), _flags(pid)
        if its & os.O_ACCMODE == os.O_RDONLY:
            return False
        appends = its & os.O_APPEND if stat.S_ISREG(about.st_mode) else 0
        if not (appends or stat.S_ISFIFO(about.st_mode) or stat.S_ISCHR(about.st_mode)):
            return False
        # A description of our own: the process's stays as it is. A terminal does not become ours.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | appends
        fd = os.open(f"/proc/{pid}/fd/2", flags)
        try:
            if stat.S_ISCHR(about.st_mode) and not os.isatty(fd):
                return False
            return os.write(fd, line) == len(line)
        finally:
            os.close(fd)
    return False


def _flags(pid: int) -> int:
    """Return the flags that the stderr of a process was opened with.

    Raises:
        OSError: it has none, or has ended.
    """
    text = Path(f"/proc/{pid}/fdinfo/2").read_text(encoding="ascii")
    return next(int(line.split()[1], 8) for line in text.splitlines() if line.startswith("flags:"))
