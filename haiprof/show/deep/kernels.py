"""What kernels cost: by name, by how they were launched, in sequences, and by hardware counters.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from haiprof.show.deep.section import (
    Columns,
    OneTrace,
    Section,
    durations,
    lacking,
    readable,
    readable_name,
    table,
    yes,
)

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.show.grid import Grid

#: Counters shown as columns.
_COUNTERS = 8
#: Number of kernels named in a sequence.
_NAMED = 6


def section(analyzer: Analyzer, one: OneTrace) -> Section:
    """Describe the kernels of one trace."""
    by_name = one.of(analyzer.kernels(one.rank, by="name"))
    by_launch = one.of(analyzer.kernels(one.rank, by="launch"))
    sequences = one.of(analyzer.sequences(one.rank))
    counters = one.of(analyzer.hardware_counters(one.rank))
    return Section(
        "Kernels",
        [
            *_by_name(by_name, one),
            *_by_launch(by_launch, one),
            *_sequences(sequences, one),
            *_counters(counters, one),
        ],
        missing=lacking(
            {
                "kernels": by_name,
                "sequences of kernels beneath operators": sequences,
                "hardware counters": counters,
            }
        ),
    )


def _by_name(kernels: pl.DataFrame, one: OneTrace) -> list[Grid]:
    columns: Columns = [
        readable("name"),
        "calls",
        pl.col("share").alias("time_ratio"),
        *durations("total", "mean", "min", "max"),
        "blocks_per_sm",
        pl.col("occupancy").alias("occupancy_ratio"),
    ]
    if kernels["tensor_core"].any():
        columns.append(yes("tensor_core"))
    return table(f"Kernels{one.label}", kernels, columns, "By name, the longest first.")


def _by_launch(kernels: pl.DataFrame, one: OneTrace) -> list[Grid]:
    def size(of: str) -> pl.Expr:
        return pl.concat_str(
            [pl.col(f"{of}_{axis}") for axis in "xyz"], separator="\N{MULTIPLICATION SIGN}"
        ).alias(of)

    columns: Columns = [
        readable("name"),
        readable("op").alias("operator"),
        size("grid"),
        size("block"),
        "registers",
        pl.col("shared_memory").alias("shared_memory_bytes"),
        "calls",
        *durations("total", "mean"),
        "blocks_per_sm",
        pl.col("occupancy").alias("occupancy_ratio"),
    ]
    note = "The same, by operator, grid, block, registers and shared memory: a kernel's variants."
    return table(f"Kernels by launch{one.label}", kernels, columns, note)


def _sequences(sequences: pl.DataFrame, one: OneTrace) -> list[Grid]:
    if not sequences.height:
        return []
    columns: Columns = [
        "operator",
        pl.col("sequence").list.len().alias("kernels"),
        "count",
        *durations("device", "host"),
        pl.col("sequence").map_elements(_written, return_dtype=pl.String),
    ]
    note = "What operators launch one after another, the most frequent first: candidates to fuse."
    return table(f"Sequences of kernels{one.label}", sequences, columns, note)


def _written(names: pl.Series) -> str:
    shortened = [readable_name(name) for name in names[:_NAMED]]
    more = f" → and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return " → ".join(name if len(name) <= 40 else f"{name[:39]}…" for name in shortened) + more


def _counters(counters: pl.DataFrame, one: OneTrace) -> list[Grid]:
    if not counters.height:
        return []
    own = ("start", "duration", "name", "op", "outer_op", "op_stack", "row", "flops")
    measured = [name for name in counters.columns if name not in own]
    # Counters that distinguish kernels, rather than those that are 0 throughout.
    telling = [name for name in measured if counters[name].sum()] or measured
    by = "flops" if counters["flops"].count() else telling[0] if telling else "duration"
    most = counters.sort(by, descending=True, nulls_last=True, maintain_order=True)
    columns: Columns = [
        readable("name"),
        pl.col("op").alias("operator"),
        "flops",
        # The part after a point would be taken for the unit of a metric.
        *(pl.col(name).alias(name.replace(".", " ")) for name in telling[:_COUNTERS]),
    ]
    note = (
        f"What the hardware counted in each kernel, those with most {by.replace('_', ' ')} first."
    )
    if len(telling) > _COUNTERS:
        note += f" {_COUNTERS} of {len(telling)} counters."
    return table(f"Hardware counters{one.label}", most, columns, note)
