"""Whether a process lives: that very one, not another that got its pid."""

from __future__ import annotations

import contextlib
import os
import select
import time
from pathlib import Path


def process_is_alive(pid: int, start_time: int) -> bool:
    """Return whether that very process runs: a reused pid has another start time."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in "ZX" and int(fields[19]) == start_time


def start_time_of(pid: int) -> int | None:
    """Return when a process started, clock ticks since boot; None when there is no such process."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def started_at(start_time: int) -> int:
    """Return when a process of this boot started, ns UTC to a clock tick, by its start time."""
    booted = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return booted + start_time * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def parent_of(pid: int) -> int:
    """Return a process's parent; 0 when there is no such process."""
    fields = _stat(pid)
    return 0 if fields is None else int(fields[1])


def _stat(pid: int) -> list[str] | None:
    """Return ``/proc/<pid>/stat`` from field 3 on; the name before may hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 19 else None


class Life:
    """Tells when a process has ended: by pidfd, else by looking into /proc."""

    def __init__(self, pid: int, start_time: int) -> None:
        """Watch the process ``pid`` that started at ``start_time`` (field 22 of its stat)."""
        self.pid = pid
        self._start_time = start_time
        self.fd: int | None = None
        self._ended = not process_is_alive(pid, start_time)
        if not self._ended:
            with contextlib.suppress(OSError, AttributeError):
                self.fd = os.pidfd_open(pid)
            # The pid may have been reused between the look and the open.
            self._ended = not process_is_alive(pid, start_time)

    def ended(self) -> bool:
        """Return whether the process is gone."""
        if not self._ended:
            if self.fd is not None:
                poll = select.poll()
                poll.register(self.fd, select.POLLIN)
                self._ended = bool(poll.poll(0))
            else:
                self._ended = not process_is_alive(self.pid, self._start_time)
        return self._ended

    def close(self) -> None:
        """Give the descriptor back."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
