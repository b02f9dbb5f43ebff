"""Where a rank's time goes by line: a table of lines for each phase, and a flame graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import plotly.graph_objects as go
import polars as pl

from haiprof.common.frame_texts import frame_text, short_file
from haiprof.common.numbers import percent
from haiprof.runs import Process
from haiprof.show import flames
from haiprof.show.grid import NOTHING, Grid
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
_WORKERS: Final = "workers"
#: Of a phase with fewer samples shares say little.
_SAMPLES: Final = 10


class Sampled(NamedTuple):
    """The sampled stacks of one rank: tables, flame graphs by title, and why there are none."""

    grids: list[Grid]
    flames: dict[str, pl.DataFrame]
    notes: list[str]


def sampled(analyzer: Analyzer, processes: Sequence[Process]) -> Sampled:
    """Return what the sampled stacks of one rank say."""
    rank = processes[0].rank
    if rank is None or not any(p.stacks is not None for p in processes):
        return Sampled([], {}, [])
    found: dict[str, pl.DataFrame] = {}
    parts: list[_Part] = []
    for threads, title in _DRAWN.items():
        flame = analyzer.flame(rank, threads=threads, by_phase=threads == "training")
        # Of several attempts the last one is shown: paths count anew for each.
        flame = flame.filter(pl.col("pid") == processes[-1].pid)
        parts += _phases(flame) if threads == "training" else [_Part(_WORKERS, flame)]
        found[title] = flame
    problems = {p.stacks.problem for p in processes if p.stacks is not None and p.stacks.problem}
    notes = [f"Python stacks: {problem}." for problem in sorted(problems)]
    return Sampled(lines(parts), found, notes)


def graphs(
    analyzer: Analyzer, processes: Sequence[Process]
) -> tuple[list[Grid], list[go.Figure], list[str]]:
    """Return tables and flame graphs of the stacks of one rank, and why there are none."""
    found = sampled(analyzer, processes)
    figures = [
        figure
        for title, flame in found.flames.items()
        for figure in flames.figure(_named(flame), title, "samples itself")
    ]
    return found.grids, figures, found.notes


class _Part(NamedTuple):
    """A phase of the training thread, or the workers: its name, and its rows of a flame graph."""

    name: str
    flame: pl.DataFrame

    @property
    def total(self) -> int:
        return int(self.flame["self"].sum())


def _phases(flame: pl.DataFrame) -> list[_Part]:
    """Return what lies under each of the outermost rows."""
    roots = flame.with_row_index("row").filter(pl.col("parent").is_null())
    begins = roots["row"].to_list()
    ends = [*begins, flame.height][1:]
    return [
        _Part(name, flame[begin + 1 : end])
        for name, begin, end in zip(roots["function"], begins, ends, strict=True)
    ]


def lines(parts: Sequence[_Part]) -> list[Grid]:
    """Return the table of the lines with most time of their own, part by part."""
    rows = []
    whole = sum(part.total for part in parts if part.name != _WORKERS)
    for part in parts:
        own = part.flame.with_columns(_called_from(part.flame)).filter(pl.col("self") > 0)
        if own["samples"].sum() < _SAMPLES:
            continue
        of_lines = (
            own.group_by("function", "file", "line", "called_from")
            .agg(pl.col("self", "running", "samples").sum())
            .sort("self", "function", "line", descending=[True, False, False])
        )
        for function, file, line, caller, ns, running, samples in of_lines.head(_LINES).iter_rows():
            if ns < _LEAST * part.total:
                break
            of_all = percent(part.total / whole) if part.name != _WORKERS else NOTHING
            rows.append((
                part.name,
                of_all,
                frame_text(function, file, line),
                caller or NOTHING,
                percent(ns / part.total),
                percent(running / ns),
                f"{samples:,}",
            ))  # fmt: skip
    if not rows:
        return []
    heads = ("phase", "of the time", "line", "called from", "of the phase", "running", "samples")
    note = (
        "Lines of Python at which the training thread was, itself or in C code called from there, "
        "and of a library the line of the job that led to it. Running: the part of that in which "
        "it ran; else it waited. Workers: the main threads of the processes that it forked."
    )
    return [Grid("Lines with most time", heads, rows, frozenset((1, 4, 5, 6)), note)]


def _called_from(flame: pl.DataFrame) -> pl.Series:
    """Return for each row of a library the line of the job that led to it; null for the job's."""
    found: dict[int, str | None] = {}
    texts: list[str | None] = []
    columns = flame.select("path", "parent", "file", "line").iter_rows()
    for path, parent, file, line in columns:  # callers come first
        is_jobs = short_file(file) == file and not file.startswith("<")
        found[path] = f"{Path(file).name}:{line}" if is_jobs else found.get(parent)
        texts.append(None if is_jobs else found[path])
    return pl.Series("called_from", texts, dtype=pl.String())


def _named(flame: pl.DataFrame) -> pl.DataFrame:
    """Return a flame graph with the names and the counts that are drawn."""
    frames = flame.select("function", "file", "line").iter_rows()
    names = [frame_text(*frame) for frame in frames]
    return flame.with_columns(
        pl.Series("name", names, dtype=pl.String()), pl.col("samples").alias("count")
    )
