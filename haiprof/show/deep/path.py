"""What the longest step waited for: kinds of work on its critical path, and the longest items.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from haiprof.common.numbers import milliseconds, percent
from haiprof.show.deep.section import (
    NS_PER_MS,
    Columns,
    OneTrace,
    Section,
    durations,
    readable,
    table,
)

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.views.trace.critical_path.path import CriticalPath


def section(analyzer: Analyzer, one: OneTrace) -> Section:
    """Describe the critical path of one trace's longest step, or of the trace if it has none."""
    paths = analyzer.critical_path(one.rank)
    label = next(
        process.label
        for process in analyzer.run.processes
        if process.trace is not None
        and (process.node, process.rank, process.pid, process.trace.span)
        == (one.node, one.rank, one.pid, one.session)
    )
    found = paths.get(label)
    if found is None or not found.path.height:
        return Section("", [], missing=["a critical path"])
    share = pl.col("share").alias("of the step_ratio")
    kinds: Columns = ["kind", "elements", *durations("duration"), share]
    names: Columns = ["kind", readable("name"), "elements", *durations("duration"), share]
    longest = found.path.sort("duration", descending=True, maintain_order=True)
    items: Columns = [
        ((pl.col("start") - found.start) / NS_PER_MS).alias("at_ms"),
        "kind",
        readable("name"),
        readable("operator"),
        *durations("duration"),
        share,
        "thread",
        "device",
        "stream",
    ]
    less = _less(analyzer, one)
    return Section(
        f"Critical path{one.label}",
        [
            *table("What it consists of", found.summary, kinds, "Each kind of work on the path."),
            *table("By name", found.names, names, "The calls and activities on it, all together."),
            *table(
                "Longest items", longest, items, "Single ones, and when they began in the step."
            ),
            *table("What less work would save", less, _LESS, _ABOUT_LESS),
        ],
        _sentences(found),
    )


_LESS: Columns = [
    "what",
    readable("name"),
    *durations("saved_by_half", "saved_by_all"),
    (pl.col("saved_by_half") / pl.col("before")).alias("by half, of the step_ratio"),
]
_ABOUT_LESS = (
    "How much shorter the step would be if this took half of its time, or none, and all else began "
    "as soon as it can."
)


def _less(analyzer: Analyzer, one: OneTrace) -> pl.DataFrame:
    """What half or none of each kind of work, operator and kernel on the path would save."""
    mine = one.of(analyzer.what_if(one.rank))
    saved = [
        pl.col("saving").filter(pl.col("factor") == factor).first().alias(f"saved_by_{name}")
        for factor, name in ((0.5, "half"), (0.0, "all"))
    ]
    return (
        mine.group_by("what", "name", "before", maintain_order=True)
        .agg(saved)
        .filter(pl.col("saved_by_half") > 0)
        .sort("saved_by_half", descending=True, maintain_order=True)
    )


def _sentences(found: CriticalPath) -> list[str]:
    kinds = [
        f"{percent(share)} {kind}"
        for kind, share in found.summary.select("kind", "share").head(4).iter_rows()
    ]
    line = (
        "Of the longest step, or of all of a trace that marks none: only what becomes faster on "
        f"this path makes its {milliseconds(found.end - found.start)} shorter. "
        f"It is {', '.join(kinds)}."
    )
    if found.skewed:
        line += f" {found.skewed:,} launches stand after their kernels: the clocks disagree there."
    return [line]
