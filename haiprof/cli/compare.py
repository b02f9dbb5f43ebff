"""``haiprof compare``: says what became slower from one run to another, and what is new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl
from rich.console import Console

from haiprof.cli.process.console import spinner
from haiprof.cli.report import open_run, say_problems
from haiprof.common.frame_texts import short_file
from haiprof.common.numbers import milliseconds, percent
from haiprof.common.printable import printable
from haiprof.show import run_changes
from haiprof.show.grid import frame_grid
from haiprof.views.run.stack_changes import NO_DIFFERENCE
from haiprof.views.trace.compare import TOO_FEW

if TYPE_CHECKING:
    from haiprof.views.trace.compare import Comparison

#: Ranks that are described one by one; of more, those that differ most.
_DETAILED = 4
#: Rows of each table.
_ROWS = 12
_A_STEP = ", a step"
_TABLES = {
    "operators": "Operators: their own time on the host, a step",
    "launches": "Operators: time of what they launched, a step",
    "kernels": "Kernels, copies and sets, a step",
}
_STACKS = "Functions: their own time on the training thread, a step"
_STACKS_NOTE = "By sampled stacks; a difference is three times its standard error, or more."
_SAME = ("no difference shown", TOO_FEW)


def compare(before: str, after: str, rank: int | None) -> None:
    """Compare two runs, rank by rank, and print what differs by more than chance.

    Args:
        before: a run folder, a log directory with one run, or traces.
        after: another.
        rank: this one only.

    Raises:
        HaiprofError: a run cannot be read, or they have no rank in common.
    """
    earlier, later = open_run(before), open_run(after)
    with spinner("comparing the runs"):
        comparisons = earlier.compare(later, rank)
        recorded = not (earlier.traced or later.traced)
        stacks = earlier.stack_changes(later, rank) if recorded else None
        changes = earlier.changes(later, rank) if recorded and _have_steps(comparisons) else None
    for opened in (earlier, later):
        say_problems(opened)
    console = Console(highlight=False)
    for line in summary(comparisons):
        console.print(printable(line), markup=False)
    for label, comparison in most_different(comparisons).items():
        for line in sentences(label, comparison):
            console.print(printable(line), markup=False)
        whole = comparison.steps["name"].to_list() == ["trace"]
        for name, title in _TABLES.items():
            table = _differing(getattr(comparison, name))
            if table.height:
                of_what = title.removesuffix(_A_STEP) if whole else title
                console.print(frame_grid(of_what, table).to_rich())
        changed = None if stacks is None else _of_stacks(stacks, label)
        if changed is not None and changed.height:
            console.print(frame_grid(_STACKS, changed, _STACKS_NOTE).to_rich())
    for grid in [] if changes is None else run_changes.grids(changes):
        console.print(grid.to_rich())


def summary(comparisons: Mapping[str, Comparison]) -> list[str]:
    """Say how many of many ranks became slower, faster, or neither."""
    if len(comparisons) <= _DETAILED:
        return []
    steps = pl.concat([comparison.steps for comparison in comparisons.values()])
    known = steps.filter(pl.col("before") > 0, pl.col("after").is_not_null())
    lines = []
    if known.height < len(comparisons):
        count = len(comparisons) - known.height
        lines.append(f"{count} of {len(comparisons)} ranks: no steps to compare in one of the runs")
    change = (pl.col("after") / pl.col("before") - 1).abs()
    counted = known.group_by("verdict").agg(
        pl.len(),
        pl.col("before", "after").median(),
        change.min().alias("least"),
        change.median().alias("median"),
        change.max().alias("most"),
    )
    for row in counted.sort("len", "verdict", descending=[True, False]).iter_rows(named=True):
        line = f"{row['len']} of {len(comparisons)} ranks: {row['verdict']}"
        if row["verdict"] not in _SAME:
            least, median, most = (percent(row[name]) for name in ("least", "median", "most"))
            line += f" by {least} to {most}, {median} at the median"
        before, after = milliseconds(row["before"]), milliseconds(row["after"])
        lines.append(f"{line} (a step took {before} before, {after} after, medians)")
    return [*lines, f"The {_DETAILED} ranks that differ most follow; --rank N shows another:"]


def most_different(comparisons: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """Return all of a few ranks; of many those whose steps differ most, sure differences first."""

    def difference(label: str) -> tuple[bool, float]:
        row = comparisons[label].steps.row(0, named=True)
        return row["verdict"] in _SAME, -abs(row["difference"] or 0.0)

    order = (
        sorted(comparisons, key=difference) if len(comparisons) > _DETAILED else list(comparisons)
    )
    return {label: comparisons[label] for label in order[:_DETAILED]}


def sentences(label: str, comparison: Comparison) -> list[str]:
    """Say how the steps compare."""
    lines = []
    for row in comparison.steps.iter_rows(named=True):
        if row["before"] is None or row["after"] is None:
            lines.append(f"{label}: one of the runs has no steps to compare")
            continue
        change = row["after"] / row["before"] - 1 if row["before"] else 0.0
        durations = f"{milliseconds(row['before'])} before, {milliseconds(row['after'])} after"
        samples = f"{row['before_steps']} and {row['after_steps']} steps"
        verdict = row["verdict"]
        if row["name"] == "trace":
            lines.append(
                f"{label}: the trace is {percent(abs(change))} {_direction(change)}: {durations}. "
                "Neither has steps: if they cover the same work, the differences below are of "
                "the whole, and may be chance; mark steps with step() of the profiler"
            )
        elif verdict == TOO_FEW:
            lines.append(
                f"{label}: a step is {percent(abs(change))} {_direction(change)}: {durations} "
                f"({samples}). One step of a run does not show how much steps vary: the "
                "differences below may be chance; trace at least two steps of each"
            )
        elif verdict in _SAME:
            lines.append(f"{label}: a step took {durations} ({samples}): {verdict}")
        else:
            sure = milliseconds(abs(row["uncertainty"] or 0))
            lines.append(
                f"{label}: a step is {percent(abs(change))} {verdict}: {durations} ({samples}, the "
                f"difference is known to ± {sure})"
            )
    return lines


def _direction(change: float) -> str:
    return "longer" if change > 0 else "shorter"


def _have_steps(comparisons: Mapping[str, Comparison]) -> bool:
    rows = (comparison.steps.row(0, named=True) for comparison in comparisons.values())
    return any(row["before_steps"] and row["after_steps"] for row in rows)


def _of_stacks(changes: pl.DataFrame, label: str) -> pl.DataFrame:
    """Return the functions of one rank that differ by more than chance, in ms."""
    shown = (
        changes.filter(pl.format("rank {}", "rank") == label, pl.col("verdict") != NO_DIFFERENCE)
        .sort(pl.col("difference").abs(), descending=True)
        .head(_ROWS)
    )
    files = pl.Series("file", [short_file(file) for file in shown["file"]], dtype=pl.String())
    return shown.with_columns(files).select(
        pl.format("{} ({})", "function", "file").alias("function"),
        "verdict",
        *(
            (pl.col(column) / 1e6).alias(f"{column}_ms")
            for column in ("before", "after", "difference", "error")
        ),
    )


def _differing(frame: pl.DataFrame) -> pl.DataFrame:
    """Return what differs by more than chance, or at all where chance cannot be judged."""
    per_ms = 1e6
    unjudged = (pl.col("verdict") == TOO_FEW) & (pl.col("difference") != 0).fill_null(False)
    return (
        frame.filter(pl.col("verdict").is_in(_SAME).not_() | unjudged)
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
