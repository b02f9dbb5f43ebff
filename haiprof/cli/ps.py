"""``haiprof ps``: the jobs that are recorded on this node, and their ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Final

from haiprof.control.jobs import IDLE, SILENT, Process, processes
from haiprof.printable import printable

_HEADINGS: Final = ("RUN", "RANK", "PID", "STATE", "SINCE", "RECORDER", "FOLDER")


def list_jobs(*, as_json: bool) -> None:
    """Print a line for each process, or all of them as JSON; then why one does not answer."""
    found = processes()
    if as_json:
        print(json.dumps([process.told() for process in found], indent=1))
        return
    if not found:
        print("nothing is recorded on this node; start something with: haiprof run train.py")
        return
    others = os.getuid() == 0 and len({process.user for process in found}) > 1
    rows = [(*_HEADINGS, "USER")] + [(*_row(process), process.user) for process in found]
    for line in _aligned([row if others else row[:-1] for row in rows]):
        print(printable(line))
    for process in found:
        if process.state == SILENT:
            print(printable(process.why))


def _row(process: Process) -> tuple[str, ...]:
    idle = process.state == IDLE
    return (
        process.run or (f"({process.script})" if process.script else "-"),
        "-" if idle else process.name,
        str(process.pid),
        process.state,
        _since(process.since_ns),
        "-" if process.recorder is None else str(process.recorder),
        process.run_dir or "-",
    )


def _since(since_ns: int | None) -> str:
    """Return a time of day, with the date when it was not today."""
    if since_ns is None:
        return "-"
    then = time.localtime(since_ns / 1e9)
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines
