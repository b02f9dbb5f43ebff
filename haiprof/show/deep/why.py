"""Why the steps take so long: what would shorten them, and where their time went.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

import polars as pl

from haiprof.show.colours import WORK_COLOURS
from haiprof.show.deep.figure import Bars, Part
from haiprof.show.deep.section import (
    NS_PER_MS,
    NS_PER_S,
    Columns,
    OneTrace,
    Section,
    durations,
    readable,
    readable_name,
    table,
    who,
)
from haiprof.show.grid import Grid
from haiprof.views.trace.overview import OTHER, PARTS

#: Number of findings in words, and of bars in the figure.
_FINDINGS = 5
_STEPS = 64


def section(found: pl.DataFrame, steps: pl.DataFrame, one: OneTrace) -> Section:
    """Describe the findings of all traces, and the steps of one."""
    mine = one.of(steps)
    return Section(
        "Deep trace: why the steps take as long as they do",
        [*_found(found), *_division(mine, one), *_steps(mine, one)],
        sentences(found),
        [] if mine["step"].n_unique() > 1 else ["several steps"],
    )


def sentences(found: pl.DataFrame) -> list[str]:
    """Describe each kind of finding where it is worst, those that save most first."""
    lines = []
    for row in _worst(found).head(_FINDINGS).iter_rows(named=True):
        where = f" ({row['stack']})" if row["stack"] else ""
        name = f", mostly in {readable_name(row['operator'])}" if row["operator"] else ""
        of = f"Rank {row['rank']}: " if row["rank"] is not None else ""
        others = f" The same applies to {row['others']} more." if row["others"] else ""
        line = f"{of}{row['problem']}{name}{where}: {row['advice']}.{others}"
        lines.append(line[0].upper() + line[1:])
    return lines or ["Nothing was found that would make the recorded steps shorter"]


def _worst(found: pl.DataFrame) -> pl.DataFrame:
    """The first finding of each kind, and how many ``others`` there are."""
    if not found.height:
        return found
    return found.with_columns((pl.len().over("kind") - 1).alias("others")).unique(
        "kind", keep="first", maintain_order=True
    )


def _found(found: pl.DataFrame) -> list[Grid]:
    columns: Columns = [
        *who(found),
        pl.col("kind").str.replace_all("_", " ").alias("finding"),
        (pl.col("saves_ns") / NS_PER_MS).alias("max_saving_ms"),
        "step",
        (pl.col("step_saves_ns") / NS_PER_MS).alias("step_saving_ms"),
        readable("operator"),
        pl.col("stack").alias("code"),
        "evidence",
    ]
    note = (
        "The most that each change could save of the recorded steps, the largest first; and how "
        "much shorter the step is in a replay without it: less where something else is as slow."
    )
    return table("What would save time", found, columns, note)


def _division(mine: pl.DataFrame, one: OneTrace) -> list[Bars]:
    if not mine.height:
        return []
    shown = mine.head(_STEPS)
    first = f" (the first {_STEPS} of {mine.height:,})" if mine.height > _STEPS else ""
    parts = [
        Part(part, (shown[part] / NS_PER_S).to_list(), WORK_COLOURS[part])
        for part in (*PARTS, OTHER)
        if shown[part].sum()
    ]
    steps = [f"step {step}" for step in shown["step"]]
    return [Bars(f"Where the steps' time went{one.label}{first}", "s", steps, parts)]


def _steps(mine: pl.DataFrame, one: OneTrace) -> list[Grid]:
    some = [part for part in (*PARTS, OTHER) if mine[part].sum()]
    longest = mine.sort("duration", descending=True, maintain_order=True)
    note = (
        "The longest steps and what they spent; of what happens at the same time the first of "
        f"{', '.join(PARTS)} counts."
    )
    return table(f"Steps{one.label}", longest, ["step", *durations("duration", *some)], note)
