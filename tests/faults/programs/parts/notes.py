"""What a program measures of itself: of each part of a step, the time, that on a core, and ready.

A line of JSON per step, written at once, so that a job that is killed leaves what it measured.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import time
from collections.abc import Iterator
from typing import Any

from parts.settings import Job

#: ns: by the clock, of it on a core, of it ready to run with no core free.
Reading = tuple[int, int, int]


class Notes:
    """Belongs to the thread that makes it."""

    def __init__(self, job: Job) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(f"{job.notes}-{job.rank}.jsonl", flags, 0o600)
        self._waiting = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._parts: dict[str, list[int]] = {}
        self._flags: dict[str, float] = {}
        self._in_kernel = 0.0
        self._write({"pid": os.getpid(), "rank": job.rank, "at": time.time_ns()})
        self._last = self._read()

    def _read(self) -> Reading:
        waited = int(os.pread(self._waiting, 64, 0).split()[1])
        return time.perf_counter_ns(), time.thread_time_ns(), waited

    def _write(self, line: object) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _add(self, name: str, since: Reading, now: Reading) -> None:
        sums = self._parts.setdefault(name, [0, 0, 0])
        for number in range(3):
            sums[number] += now[number] - since[number]

    def mark(self, name: str) -> None:
        """Say what the time since the last mark was spent on."""
        now = self._read()
        self._add(name, self._last, now)
        self._last = now

    @contextlib.contextmanager
    def spending(self, name: str = "tasks") -> Iterator[None]:
        """Measure something by itself, inside a part."""
        since = self._read()
        try:
            yield
        finally:
            self._add(name, since, self._read())

    def add(self, name: str, ns: int, on_core: int | None = None) -> None:
        """Add time that was measured elsewhere, inside a part; what was not on a core waited."""
        on_core = ns if on_core is None else min(ns, on_core)
        self._add(name, (0, 0, 0), (ns, on_core, ns - on_core))

    def flag(self, name: str, value: float = 1.0) -> None:
        """Say something of the step."""
        self._flags[name] = value

    def end(self, step: int) -> None:
        """Write the step; -1 is what came before the first."""
        in_kernel = resource.getrusage(resource.RUSAGE_THREAD).ru_stime
        self.flag("kernel_ns", round((in_kernel - self._in_kernel) * 1e9))
        self._in_kernel = in_kernel
        line = {"step": step, "at": time.time_ns(), **self._parts, **self._flags}
        self._write(line)
        self._parts.clear()
        self._flags.clear()


def watch(notes: Notes) -> None:
    """Note the pauses of the garbage collector."""
    begun = [0, 0]

    def callback(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            begun[:] = time.perf_counter_ns(), time.thread_time_ns()
        else:
            on_core = time.thread_time_ns() - begun[1]
            notes.add("pauses", time.perf_counter_ns() - begun[0], on_core)

    gc.callbacks.append(callback)
