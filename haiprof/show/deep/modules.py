"""What each part of the model costs: its modules, and a flame graph of who calls whom.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from haiprof.show.deep.figure import Flames
from haiprof.show.deep.section import (
    Columns,
    OneTrace,
    Section,
    durations,
    lacking,
    table,
)

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.show.grid import Grid

_MODULES = 60


def section(analyzer: Analyzer, one: OneTrace) -> Section:
    """Describe the modules and the calls of one trace."""
    modules = one.of(analyzer.modules(one.rank))
    title = "Python functions"
    flames = one.of(analyzer.flames(one.rank))
    missing = lacking({"modules": modules, "Python functions": flames})
    if not flames.height:
        title = "operators, ranges and calls of the runtime"
        flames = one.of(analyzer.flames(one.rank, of="calls"))
    return Section(
        "Modules and calls",
        [
            *_modules(modules, one),
            *(
                [Flames(f"Flame graph of {title}{one.label}", flames)]
                if flames["self"].sum()
                else []
            ),
        ],
        missing=missing,
    )


def _modules(modules: pl.DataFrame, one: OneTrace) -> list[Grid]:
    indent = pl.lit("\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}").repeat_by("depth").list.join("")
    on_device = modules["device"].sum() or modules["backward_device"].sum()
    columns: Columns = [
        (indent + pl.col("name").cast(pl.String)).alias("module"),
        "occurrences",
        "operators",
        *durations("host", "self_host", *(("device", "self_device") if on_device else ())),
        *durations("backward_host", *(("backward_device",) if on_device else ())),
    ]
    note = "What each module of the model costs, with what lies in it and alone."
    return table(f"Modules{one.label}", modules, columns, note, _MODULES)
