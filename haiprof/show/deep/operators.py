"""The cost of operators: by name, by the shapes of their inputs, by caller.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from haiprof.show.deep.section import (
    Columns,
    OneTrace,
    Section,
    durations,
    lacking,
    readable,
    table,
    yes,
)

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.show.grid import Grid

_ON_HOST: Final = ("host_self", "host_total")
_ON_DEVICE: Final = ("device_self", "device_total")


def section(analyzer: Analyzer, one: OneTrace) -> Section:
    """Describe the operators of one trace."""
    by_name = one.of(analyzer.operators(one.rank))
    by_shapes = _grouped(one.of(analyzer.operators(one.rank, by="shapes")), "shapes")
    by_stack = _grouped(one.of(analyzer.operators(one.rank, by="stack")), "stack")
    statistics = one.of(analyzer.op_statistics(one.rank))
    ranges = one.of(analyzer.annotations(one.rank))
    of_ranges = one.of(analyzer.annotations(one.rank, by="kernel")).drop_nulls("name")
    own = "Own time and time with what they call, on the host"
    own += (
        " and of what they launched, what takes longest on the device first."
        if by_name["device_total"].sum()
        else ", the longest first."
    )
    shapes = "The same, by the shapes of the inputs: which of the sizes is worth a change."
    stacks = "The same, by who called: which lines of the code the time belongs to."
    return Section(
        "Operators",
        [
            *_grid("Operators" + one.label, by_name, ["name"], own),
            *_grid("Operators by shapes" + one.label, by_shapes, ["name", "shapes"], shapes),
            *_grid("Operators by call stack" + one.label, by_stack, ["name", "stack"], stacks),
            *_statistics(statistics, one),
            *_ranges(ranges, of_ranges, one),
        ],
        missing=lacking(
            {
                "operators": by_name,
                "shapes": by_shapes,
                "call stacks of operators": by_stack,
                "units that operators ran on": statistics,
                "ranges of the user": ranges,
                "kernels of ranges": of_ranges,
            }
        ),
    )


def _ranges(ranges: pl.DataFrame, kernels: pl.DataFrame, one: OneTrace) -> list[Grid]:
    times = durations("host", "host_mean", "host_max", "kernel_time", "busy")
    cost = "Ranges of the user, and steps: on the host, and what was launched within them."
    innermost = "What ran longest of that, by the innermost range around its launch."
    columns: Columns = ["name", "count", *times[:3]]
    if ranges["kernels"].sum():
        columns += ["kernels", *times[3:]]
    by_kernel: Columns = ["name", readable("kernel"), "calls", *durations("total", "mean", "max")]
    return [
        *table(f"Ranges{one.label}", ranges, columns, cost),
        *table(f"Kernels by range{one.label}", kernels, by_kernel, innermost),
    ]


def _grouped(operators: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the operators; none if the trace lacks the column that they are grouped by."""
    return operators if operators[by].count() else operators.clear()


def _grid(title: str, operators: pl.DataFrame, by: list[str], note: str) -> list[Grid]:
    columns: Columns = [*by, "calls", *durations(*_ON_HOST)]
    if operators["device_total"].sum():
        columns += durations(*_ON_DEVICE)
        if operators["tensor_core_eligible"].any():
            columns.append(yes("tensor_core_eligible"))
    if operators["tensor_core_total"].sum():
        columns.append(pl.col("tensor_core_self_share").alias("tensor_core_ratio"))
    return table(title, operators, columns, note)


def _statistics(statistics: pl.DataFrame, one: OneTrace) -> list[Grid]:
    columns: Columns = [
        pl.col("op").alias("operator"),
        pl.col("unit").cast(pl.String).str.replace("_", " "),
        "count",
        *durations("total", "min", "mean", "max"),
        pl.col("share").alias("of the device's time_ratio"),
    ]
    note = "The device's time by the operator that launched it and the unit that it ran on."
    return table(f"Units that operators ran on{one.label}", statistics, columns, note)
