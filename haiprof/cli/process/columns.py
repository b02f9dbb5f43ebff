"""Tables of text: columns side by side, times of day, durations.

Tests: tests/cli/test_ls.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with its cells below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def local_time(utc_ns: int | None) -> str:
    """Return a time of day, with the date when it was not today; ``-`` for None."""
    if utc_ns is None:
        return "-"
    then = time.localtime(utc_ns / 1e9)
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def clock(seconds: float) -> str:
    """Return a duration as ``0:12:43``."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
