"""``haiprof compare``: says what became slower from one run to another, and what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from rich.console import Console

from haiprof.cli.console import spinner
from haiprof.cli.report import open_run
from haiprof.printable import printable
from haiprof.show.grid import frame_grid
from haiprof.views.words import milliseconds, percent

if TYPE_CHECKING:
    from haiprof.views.trace.compare import Comparison

#: Rows of each table.
_ROWS = 12
_TABLES = {
    "operators": "Operators: their own time on the host, a step",
    "launches": "Operators: time of what they launched, a step",
    "kernels": "Kernels, copies and sets, a step",
}
_SAME = ("no difference shown", "too few steps")


def compare(before: str, after: str, rank: int | None) -> None:
    """Compare two runs, rank by rank, and print what differs by more than chance.

    Args:
        before: a run folder, a log directory with one run, or traces.
        after: another.
        rank: this one only.

    Raises:
        HaiprofError: a run cannot be read, or they have no rank in common.
    """
    with spinner("reading the runs"):
        earlier, later = open_run(before), open_run(after)
        made = earlier.compare(later, rank)
    console = Console(highlight=False)
    for label, comparison in made.items():
        for line in sentences(label, comparison):
            console.print(printable(line), markup=False)
        for name, title in _TABLES.items():
            table = _differing(getattr(comparison, name))
            if table.height:
                console.print(frame_grid(title, table).to_rich())


def sentences(label: str, comparison: Comparison) -> list[str]:
    """Say how the steps compare, and of how many operators and kernels that can be said."""
    lines = []
    for row in comparison.steps.iter_rows(named=True):
        if row["before"] is None or row["after"] is None:
            lines.append(f"{label}: one of the runs has no steps to compare")
            continue
        change = row["after"] / row["before"] - 1 if row["before"] else 0.0
        told = f"{milliseconds(row['before'])} before, {milliseconds(row['after'])} after"
        samples = f"{row['before_steps']} and {row['after_steps']} steps"
        verdict = row["verdict"]
        if verdict in _SAME:
            lines.append(f"{label}: a step took {told} ({samples}): {verdict}")
        else:
            sure = milliseconds(abs(row["uncertainty"] or 0))
            lines.append(
                f"{label}: a step is {percent(abs(change))} {verdict}: {told} ({samples}, the "
                f"difference is known to ± {sure})"
            )
    return lines


def _differing(frame: pl.DataFrame) -> pl.DataFrame:
    per_ms = 1e6
    return (
        frame.filter(pl.col("verdict").is_in(_SAME).not_())
        .head(_ROWS)
        .select(
            "name",
            "verdict",
            *(
                (pl.col(name) / per_ms).alias(f"{name}_ms")
                for name in ("before", "after", "difference")
            ),
        )
    )
