"""CPU time and memory of other processes, from /proc; and a recorder to measure."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used, s, to 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss_mib(pid: int) -> float:
    """Resident memory, MiB, shared pages and all."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def start_time(pid: int) -> str:
    """Field 22 of a process's stat."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def recorders(shm: Path) -> list[int]:
    """The recorders whose rings lie below ``shm``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"haiprof.recorder" in command and os.fsencode(shm) in command:
                found.append(int(entry.name))
    return found


def recorder_of(shm: Path) -> int:
    """Wait for the recorder of ``shm`` and return its pid."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        found = recorders(shm)
        if found:
            return found[0]
        time.sleep(0.01)
    raise TimeoutError("no recorder within 20 s")


def wait_gone(shm: Path, seconds: float = 120) -> None:
    """Wait until no recorder of ``shm`` is left."""
    until = time.monotonic() + seconds
    while recorders(shm):
        if time.monotonic() > until:
            raise TimeoutError("the recorder stayed")
        time.sleep(0.02)


class KeptRecorder:
    """A recorder of the run ``bench`` that stays until :meth:`release`."""

    def __init__(self, shm: Path, run_dir: Path) -> None:
        """Start it."""
        from haiprof.options import Options
        from haiprof.places import make_private, ring_dir, ring_root
        from haiprof.recorder.launch import start_recorder

        self.rings = ring_dir("bench")
        make_private(ring_root())
        make_private(self.rings)
        self._keeper = subprocess.Popen(["sleep", "3600"])
        watch = f"{self._keeper.pid}:{start_time(self._keeper.pid)}"
        self.pid = start_recorder(self.rings, run_dir, Options(), watch)
        self._shm = shm
        time.sleep(1.5)  # its imports are not what is measured

    def release(self) -> None:
        """Let it leave and wait until it has."""
        self._keeper.kill()
        self._keeper.wait()
        wait_gone(self._shm)
