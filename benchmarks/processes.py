"""CPU time and memory of other processes, from /proc; and a recorder to measure."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from recording import recorders, wait_for, wait_recorded

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used, s, to 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss_mib(pid: int) -> float:
    """Resident memory, MiB, shared pages and all."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def own_mib(pid: int) -> float:
    """Resident memory, MiB, but for pages of files, which come and go as the kernel likes."""
    words = Path(f"/proc/{pid}/status").read_text().split()
    kib = (int(words[words.index(name) + 1]) for name in ("RssAnon:", "RssShmem:"))
    return sum(kib) / 2**10


def recorder_of(shm: Path) -> int:
    """Wait for the recorder of ``shm`` and return its pid."""
    found: list[int] = wait_for(lambda: recorders(shm), what="a recorder")
    return found[0]


class KeptRecorder:
    """A recorder of the run ``bench`` that stays until :meth:`release`."""

    def __init__(self, shm: Path, run_dir: Path, **options: Any) -> None:
        """Start it with these options."""
        from haiprof.common.places import make_private, ring_dir, ring_root
        from haiprof.common.process_life import start_time_of
        from haiprof.options import Options
        from haiprof.recorder.command import Command, write_note
        from haiprof.recorder.launch import start_recorder

        self.rings = ring_dir(run_dir)
        make_private(ring_root())
        make_private(self.rings)
        self._keeper = subprocess.Popen(["sleep", "3600"])
        started = start_time_of(self._keeper.pid)
        assert started is not None
        write_note(self.rings, Command(self._keeper.pid, started))
        self.pid = start_recorder(self.rings, run_dir, Options(**options))
        self._shm = shm
        time.sleep(1.5)  # its imports are not what is measured

    def release(self) -> None:
        """Let it leave and wait until it has."""
        self._keeper.kill()
        self._keeper.wait()
        wait_recorded(self._shm, 120)
