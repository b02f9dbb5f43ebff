"""What the hours of runs were lost to, in words, for the terminal and the page.

Tests: tests/cli/test_runs.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from haiprof.common.numbers import hours
from haiprof.show.grid import NOTHING

if TYPE_CHECKING:
    import polars as pl

#: Causes that the sentence names, and the share of what was lost from which on it names one.
_NAMED: Final = 4
_LEAST: Final = 0.01


def total(found: pl.DataFrame) -> str:
    """Return in a sentence how many runs there are, and what their hours were lost to."""
    count, users = found.height, found["user"].n_unique()
    line = f"{count} {'run' if count == 1 else 'runs'}"
    line += f" of {users} users" if users > 1 else ""
    of_cpu = found.filter(found["gpu_hours"].is_null())
    parts = []
    for unit, word, of in (("gpu", "GPU", found), ("rank", "rank", of_cpu)):
        had, lost = (float(of[f"{unit}_hours{which}"].sum()) for which in ("", "_lost"))
        if had:
            parts.append(f"{hours(had)} {word} h, {hours(lost)} of them lost")
    line += f": {'; '.join(parts)}" if parts else ""
    causes = found["lost_to"].struct.unnest().sum().row(0, named=True)
    least = _LEAST * sum(lost or 0.0 for lost in causes.values())
    most = [(lost, cause) for cause, lost in causes.items() if lost and lost >= least]
    most.sort(reverse=True)
    named = ", ".join(f"{words(cause)} {hours(lost)}" for lost, cause in most[:_NAMED])
    return f"{line} (GPU h: {named})" if named else line


def words(cause: str) -> str:
    """Return a cause as a table has it."""
    return cause.removeprefix("exposed_").replace("_", " ")


def main_cause(row: Mapping[str, Any]) -> str:
    """Return what most hours of a run were lost to."""
    shares = [(share, cause) for cause, share in (row["lost_shares"] or {}).items() if share]
    return words(max(shares)[1]) if shares else NOTHING
