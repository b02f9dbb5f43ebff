"""Samples a process tree and its node with psutil, as a monitor in Python would.

``python psutil_sampler.py PID HZ FILE`` appends a line of JSON for each sample to FILE, until it is
killed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import psutil


def psutil_tick(pid: int) -> Callable[[], list[object]]:
    """Return what reads the node, its disks and networks, and one process tree."""
    root = psutil.Process(pid)

    def tick() -> list[object]:
        read: list[object] = [
            psutil.cpu_times(percpu=True),
            psutil.virtual_memory(),
            psutil.disk_io_counters(perdisk=True),
            psutil.net_io_counters(pernic=True),
        ]
        for process in [root, *root.children(recursive=True)]:
            with process.oneshot():
                read += [process.cpu_times(), process.memory_info()]
                read += [process.io_counters(), process.num_threads()]
        return read

    return tick


def main(pid: int, hz: float, path: str) -> None:
    """Sample at that rate."""
    tick = psutil_tick(pid)
    due = time.monotonic()
    with open(path, "a", buffering=1, encoding="utf-8") as file:  # noqa: PTH123
        while True:
            file.write(json.dumps([time.time(), tick()]) + "\n")
            due += 1 / hz
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
