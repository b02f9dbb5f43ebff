"""Whether a process is alive: that very one, not another with its pid.

Tests: tests/recorder/test_ended.py.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from pathlib import Path

from haiprof.common.owned_files import Folder
from haiprof.common.wait_status import noted_status, shown_to_us, status_in_stat, status_of_pidfd


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


def tracer_of(pid: int) -> int:
    """Return the process that traces one, as a debugger does; 0: none, or not known."""
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        for line in status.splitlines():
            if line.startswith("TracerPid:"):
                return int(line.split()[1])
    return 0


def _stat(pid: int) -> list[str] | None:
    """Return ``/proc/<pid>/stat`` from field 3 on; the name before may hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 19 else None


class Life:
    """Detects the end of a process: by pidfd, else by /proc."""

    def __init__(self, pid: int, start_time: int) -> None:
        """Watch the process ``pid`` that started at ``start_time`` (field 22 of its stat)."""
        self.pid = pid
        self.start_time = start_time
        self.fd: int | None = None
        self._poll = select.poll()
        #: How it ended, as of wait(2); None: it lives, or unknown.
        self.status: int | None = None
        #: When it was seen to end (CLOCK_MONOTONIC, ns); None: it lives, or had ended before.
        self.ended_at: int | None = None
        self._shown = shown_to_us(_stat(pid))
        self._ended = not process_is_alive(pid, start_time)
        if not self._ended:
            with contextlib.suppress(OSError, AttributeError):
                self.fd = os.pidfd_open(pid)
                self._poll.register(self.fd, select.POLLIN)
            # The pid may have been reused between the check and the open.
            self._ended = not process_is_alive(pid, start_time)
        if self._ended:
            self._look_for_status()

    def ended(self) -> bool:
        """Return whether the process has ended."""
        if not self._ended:
            if self.fd is not None:
                self._ended = bool(self._poll.poll(0))
            else:
                self._ended = not process_is_alive(self.pid, self.start_time)
            if self._ended:
                self.ended_at = time.monotonic_ns()
                self._look_for_status()
        return self._ended

    def ask_parent(self, rings: Folder, seconds: float = 0.0) -> int:
        """Look for a note of `haiprof run`, as the parent, on how the process ended.

        Args:
            rings: where its notes are.
            seconds: how long to wait for one at most, while the parent has not taken the status.

        Returns:
            The signal by which the process had been asked to end; 0: none, or unknown.
        """
        noted = noted_status(rings, self.pid, self.start_time)
        # It is written before the status is taken.
        until = time.monotonic() + seconds
        while noted is None and _stat(self.pid) is not None and time.monotonic() < until:
            time.sleep(0.01)
            noted = noted_status(rings, self.pid, self.start_time)
        noted = noted or noted_status(rings, self.pid, self.start_time)
        if noted is None:
            return 0
        if self.status is None:
            self.status = noted.status
        return noted.asked

    @property
    def killed(self) -> bool:
        """Whether it is known that SIGKILL ended it."""
        status = self.status
        return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == 9

    def _look_for_status(self) -> None:
        # The parent may collect it between two reads; then only the third place has it.
        self.status = status_of_pidfd(self.fd)
        if self.status is None:
            stat = _stat(self.pid)
            self.status = status_in_stat(stat, self.start_time, shown=self._shown)
        if self.status is None:
            self.status = status_of_pidfd(self.fd)

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
