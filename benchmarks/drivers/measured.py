"""What a driver measures of itself: the work between its imports and its report.

A driver is run by :func:`peers.drive` in a process of its own, maybe in another environment: this
module needs the standard library alone. The report is one JSON object:

- ``work_s``, ``cpu_s``: wall time of the work, and CPU time of it in this process and in those of
  its children that it waited for;
- ``opened_s``: wall time until the first view was there;
- ``peak_bytes``: the most memory that this process had resident, imports included;
- ``rows``: of each view, how many rows or values it has;
- ``tables``: what the caller asked to see.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Measured:
    """A clock that runs from its making to :meth:`report`."""

    def __init__(self) -> None:
        self._cpu = _cpu_seconds()
        self._wall = time.perf_counter()
        self._told: dict[str, Any] = {"rows": {}, "tables": {}}

    def opened(self) -> None:
        """The first view is there."""
        self._told["opened_s"] = time.perf_counter() - self._wall

    def view(self, name: str, rows: int) -> None:
        """A view is there; of several files, their rows add up."""
        self._told["rows"][name] = self._told["rows"].get(name, 0) + rows

    def done(self) -> None:
        """All views are there."""
        self._told["work_s"] = time.perf_counter() - self._wall
        self._told["cpu_s"] = _cpu_seconds() - self._cpu

    def show(self, name: str, table: Any) -> None:
        """Show the caller a table."""
        self._told["tables"][name] = table

    def report(self, file: Path) -> None:
        """Tell all of it."""
        status = Path("/proc/self/status").read_text()
        self._told["peak_bytes"] = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        file.write_text(json.dumps(self._told))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
