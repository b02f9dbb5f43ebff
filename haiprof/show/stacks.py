"""Where a rank's time goes by line: a table of lines for each phase, and a flame graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import plotly.graph_objects as go
import polars as pl

from haiprof.common.frame_texts import frame_text
from haiprof.common.numbers import percent
from haiprof.runs import Process
from haiprof.show import flames
from haiprof.show.grid import Grid
from haiprof.views.run.stacks import Threads

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Lines of each phase: those with most time; and what a line must have of its phase.
_LINES: Final = 6
_LEAST: Final = 0.02
_DRAWN: Final[dict[Threads, str]] = {
    "training": "Where the time of the training thread goes, by phase and line",
    "workers": "Where the time of the processes that it forked goes, by line",
}
#: Of a phase with fewer samples shares say little.
_SAMPLES: Final = 10


def graphs(
    analyzer: Analyzer, processes: Sequence[Process]
) -> tuple[list[Grid], list[go.Figure], list[str]]:
    """Return tables and flame graphs of the stacks of one rank, and why there are none."""
    rank = processes[0].rank
    if rank is None or not any(p.stacks is not None for p in processes):
        return [], [], []
    grids: list[Grid] = []
    figures: list[go.Figure] = []
    for threads, title in _DRAWN.items():
        flame = analyzer.flame(rank, threads=threads, by_phase=threads == "training")
        # Of several attempts the last one is shown: paths count anew for each.
        flame = flame.filter(pl.col("pid") == processes[-1].pid)
        if threads == "training":
            grids = lines(flame)
        figures += flames.figure(
            flame.with_columns(_name(), pl.col("samples").alias("count")), title, "samples itself"
        )
    problems = {p.stacks.problem for p in processes if p.stacks is not None and p.stacks.problem}
    notes = [f"Python stacks: {problem}." for problem in sorted(problems)]
    return grids, figures, notes


def lines(flame: pl.DataFrame) -> list[Grid]:
    """Return the table of the lines with most time of their own, by phase.

    Args:
        flame: of one process, with the phases outermost.
    """
    rows = []
    whole = int(flame.filter(pl.col("parent").is_null())["total"].sum())
    for (first, last), phase in _phases(flame):
        own = flame[first:last].filter(pl.col("self") > 0)
        if own["samples"].sum() < _SAMPLES:
            continue
        of_lines = (
            own.group_by("function", "file", "line")
            .agg(pl.col("self", "running", "samples").sum())
            .sort("self", "function", "line", descending=[True, False, False])
        )
        for function, file, line, ns, running, samples in of_lines.head(_LINES).iter_rows():
            if ns < _LEAST * phase["total"]:
                break
            rows.append((
                phase["function"],
                percent(phase["total"] / whole),
                frame_text(function, file, line),
                percent(ns / phase["total"]),
                percent(running / ns),
                f"{samples:,}",
            ))  # fmt: skip
    if not rows:
        return []
    heads = ("phase", "of the time", "line", "of the phase", "running", "samples")
    note = (
        "Lines of Python at which the training thread was, itself or in C code called from there. "
        "Running: the part of that in which it ran; else it waited."
    )
    return [Grid("Lines with most time", heads, rows, frozenset((1, 3, 4, 5)), note)]


def _phases(flame: pl.DataFrame) -> list[tuple[tuple[int, int], dict[str, Any]]]:
    """Return the outermost rows, and of each where what it called begins and ends."""
    roots = flame.with_row_index("row").filter(pl.col("parent").is_null())
    begins = roots["row"].to_list()
    ends = [*begins, flame.height][1:]
    return [
        ((begin + 1, end), row)
        for begin, end, row in zip(begins, ends, roots.to_dicts(), strict=True)
    ]


def _name() -> pl.Expr:
    file = pl.col("file").str.replace(r"^.*/(?:site|dist)-packages/|^.*/lib/python3\.\d+t?/", "")
    place = pl.concat_str(file, pl.lit(":"), pl.col("line").cast(pl.String))
    named = pl.concat_str(pl.col("function"), pl.lit(" ("), pl.coalesce(place, file), pl.lit(")"))
    return pl.when(pl.col("file") == "").then(pl.col("function")).otherwise(named).alias("name")
