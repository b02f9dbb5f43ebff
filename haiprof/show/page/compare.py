"""Two runs side by side: the page of the later one, and first what differs, with its chance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from haiprof.common.frame_texts import frame_text
from haiprof.common.numbers import milliseconds, percent, utc
from haiprof.errors import HaiprofError
from haiprof.show.grid import NOTHING, Grid, cell, cut
from haiprof.show.page import document
from haiprof.show.page.build import Built, build, duration
from haiprof.show.page.context import context, table
from haiprof.show.page.earlier import earlier
from haiprof.views.run import run_changes, stack_changes
from haiprof.views.trace import compare as of_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from haiprof.analyzer import Analyzer
    from haiprof.answers.run_changes import RunChanges
    from haiprof.views.trace.compare import Comparison

#: Rows of a table: those that differ most.
_ROWS: Final = 100
#: Ranks whose kernels are compared: the first.
_RANKS: Final = 4
#: A smaller chance is not written out.
_SMALLEST: Final = 1e-4
_UNSURE: Final = (run_changes.NO_DIFFERENCE, run_changes.TOO_FEW, of_traces.TOO_FEW)
_WORK: Final = {
    "operators": "Operators: their own time on the host, a step",
    "launches": "Operators: time of what they launched, a step",
    "kernels": "Kernels, copies and sets, a step",
}
_CHANCE: Final = (
    "Chance: how likely at least this difference is if nothing had changed; ±: half of the "
    "interval that contains the true difference with 95 %."
)


def compare(before: Analyzer, after: Analyzer) -> Built:
    """Return the page of two recorded runs, or of the traces of two.

    Raises:
        HaiprofError: only one of them is of traces; they have no rank in common, or no steps.
    """
    if before.traced != after.traced:
        traced, recorded = (before, after) if before.traced else (after, before)
        raise HaiprofError(
            f"{cut(traced.run.name)} is of traces, {cut(recorded.run.name)} was recorded: "
            "give two of a kind"
        )
    sections = _of_traces(before, after) if after.traced else _of_runs(before, after)
    first = context(before)
    later = build(after, earlier(first))
    tab: document.Tab = {
        "id": "changes",
        "title": "What changed",
        "sections": sections,
    }
    later.document["tabs"].insert(0, tab)
    run = before.run
    later.document["before"] = {
        "name": cut(run.name),
        "facts": [cut(fact) for fact in (run.host, f"{utc(run.created_ns)} UTC") if fact],
        "origin_ns": str(run.created_ns),
        "duration": duration(first),
    }
    name = f"{later.document['name']} compared with {run.name}"
    later.document["title"] = cut(f"haiprof: {name}")
    return later


def _of_runs(before: Analyzer, after: Analyzer) -> list[document.Section]:
    changes = before.changes(after)
    grids = {
        "changes-phases": _times("Phases: their time, a step of a rank", changes.phases),
        "changes-waits": _waits(changes.waits),
        "changes-stacks": _stacks(before.stack_changes(after)),
        "changes-series": _series(changes.series),
        "changes-findings": _findings(changes.findings),
    }
    for label, comparison in list(before.compare(after).items())[:_RANKS]:
        grids |= _of_work(label, comparison)
    return [_summary(changes), *_tables(grids)]


def _of_traces(before: Analyzer, after: Analyzer) -> list[document.Section]:
    found = before.compare(after)
    steps = {label: each.steps.row(0, named=True) for label, each in found.items()}
    text: document.Text = {
        "kind": "text",
        "id": "changes",
        "title": "What changed",
        "lines": [cut(f"{label}: {_step(row)}") for label, row in steps.items()][:_ROWS],
    }
    grids: dict[str, Grid] = {}
    for label, comparison in list(found.items())[:_RANKS]:
        grids |= _of_work(label, comparison)
    if len(found) > _RANKS:
        text["note"] = f"Tables are of the first {_RANKS} of {len(found)} ranks."
    return [text, *_tables(grids)]


def _tables(grids: dict[str, Grid]) -> list[document.Section]:
    sections: list[document.Section] = []
    for name, grid in grids.items():
        section = table(grid, name)
        if not grid.rows:
            section["empty"] = "Nothing to compare: neither run recorded any."
        sections.append(section)
    return sections


def _summary(changes: RunChanges) -> document.Text:
    first = _step(changes.phases.filter(pl.col("name") == "step").row(0, named=True))
    count = changes.phases.filter(pl.col("verdict").is_in(_UNSURE).not_()).height
    parts = changes.phases.height
    lines = [first, f"{count} of {parts} parts of a step differ by more than chance"]
    return {"kind": "text", "id": "changes", "title": "What changed", "lines": lines}


def _step(row: dict[str, Any]) -> str:
    """Say how a step, or a trace without any, differs."""
    name, before, verdict = row["name"], row["before"], row["verdict"]
    times = f"{milliseconds(before)} before, {milliseconds(row['after'])} after"
    if verdict in (run_changes.TOO_FEW, of_traces.TOO_FEW):
        return f"A {name} took {times}: too few steps to tell that from chance"
    if verdict in _UNSURE:
        return f"A {name} takes as long, as far as chance allows to say: {times}"
    change = percent(abs(row["after"] / before - 1)) if before else NOTHING
    return f"A {name} is {change} {verdict}: {times}"


def _times(title: str, frame: pl.DataFrame) -> Grid:
    """Lay out judged times in ns."""
    columns = ("name", "verdict", "before", "after", "difference", "uncertainty", "chance")
    return _judged(title, frame, columns, lambda _, ns: milliseconds(ns), _CHANCE)


def _series(frame: pl.DataFrame) -> Grid:
    columns = ("metric", "verdict", "before", "after", "difference", "uncertainty", "chance")
    note = f"Means of all processes while the job made steps. {_CHANCE}"
    return _judged("Series while the job made steps", frame, columns, cell, note)


def _judged(
    title: str,
    frame: pl.DataFrame,
    columns: Sequence[str],
    write: Callable[[str, float], str],
    note: str,
) -> Grid:
    # What is more than chance comes first; within either the order is that of the frame.
    surest = frame.with_columns(pl.col("verdict").is_in(_UNSURE).alias("unsure"))
    shown = surest.sort("unsure", maintain_order=True).head(_ROWS)
    rows = []
    for row in shown.select(columns).iter_rows():
        name, verdict, *figures, chance = row
        texts = [NOTHING if value is None else write(str(name), value) for value in figures]
        texts[-1] = NOTHING if figures[-1] is None else f"± {texts[-1]}"
        rows.append((cut(str(name)), str(verdict), *texts, _chance(chance)))
    if shown.height < frame.height:
        note = f"{shown.height} of {frame.height} rows. {note}"
    heads = (columns[0], "verdict", "before", "after", "difference", "±", "chance")
    order = {
        place: shown[name].cast(pl.Float64).to_list()
        for place, name in enumerate(columns)
        if place > 1
    }
    return Grid(title, heads, rows, frozenset(range(2, 7)), note, order)


def _chance(chance: float | None) -> str:
    if chance is None or not math.isfinite(chance):
        return NOTHING
    return percent(chance) if chance >= _SMALLEST else f"under {percent(_SMALLEST)}"


def _waits(frame: pl.DataFrame) -> Grid:
    shown = frame.head(_ROWS)
    rows = [
        (f"rank {rank}", str(op), *(NOTHING if ns is None else milliseconds(ns) for ns in times))
        for rank, op, *times in shown.select(
            "late_rank", "op", "before", "after", "difference"
        ).iter_rows()
    ]
    order = {
        place: shown[name].cast(pl.Float64).to_list()
        for place, name in enumerate(("before", "after", "difference"), 2)
    }
    note = "The sum over all that waited; chance is not judged."
    heads = ("late rank", "op", "before", "after", "difference")
    title = "Waits: for whom the others waited, a step"
    return Grid(title, heads, rows, frozenset((2, 3, 4)), note, order)


def _stacks(frame: pl.DataFrame) -> Grid:
    unsure = pl.col("verdict") == stack_changes.NO_DIFFERENCE
    shown = (
        frame.with_columns(unsure.alias("unsure"), pl.col("difference").abs().alias("size"))
        .sort("unsure", "size", descending=[False, True], maintain_order=True, nulls_last=True)
        .head(_ROWS)
    )
    figures = ("before", "after", "difference", "error")
    rows = []
    for rank, function, file, line, verdict, *times in shown.select(
        "rank", "function", "file", "line", "verdict", *figures
    ).iter_rows():
        texts = [NOTHING if ns is None else milliseconds(ns) for ns in times]
        who = NOTHING if rank is None else str(rank)
        rows.append((who, cut(frame_text(function, file, line)), str(verdict), *texts))
    order = {place: shown[name].cast(pl.Float64).to_list() for place, name in enumerate(figures, 3)}
    note = (
        "Own time on the training thread by sampled stacks, a step; a difference is three times "
        "its standard error, or more, else it may be chance."
    )
    heads = ("rank", "function", "verdict", "before", "after", "difference", "standard error")
    return Grid("Functions", heads, rows, frozenset((3, 4, 5, 6)), note, order)


def _findings(frame: pl.DataFrame) -> Grid:
    rows = [
        (verdict, cut(problem), *(NOTHING if share is None else percent(share) for share in shares))
        for verdict, problem, *shares in frame.select(
            "verdict", "problem", "before", "after"
        ).iter_rows()
    ]
    note = "With their share of the time."
    heads = ("verdict", "finding", "before", "after")
    return Grid("Findings", heads, rows, frozenset((2, 3)), note)


def _of_work(label: str, comparison: Comparison) -> dict[str, Grid]:
    frames = {name: getattr(comparison, name) for name in _WORK}
    return {
        f"changes-{name}-{label.replace(' ', '-')}": _times(f"{_WORK[name]}: {label}", frame)
        for name, frame in frames.items()
        if frame.height
    }
