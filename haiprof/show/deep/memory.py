"""Where memory goes: over time, by operator, and what uses it at its peak.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from haiprof.show.deep.figure import Curve, Curves
from haiprof.show.deep.section import (
    NS_PER_MS,
    NS_PER_S,
    Columns,
    OneTrace,
    Section,
    durations,
    lacking,
    table,
)
from haiprof.show.grid import Grid

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

_POINTS = 1_000


def section(analyzer: Analyzer, one: OneTrace) -> Section:
    """Describe the memory of one trace."""
    found = analyzer.memory(one.rank, points=_POINTS)
    curve = one.of(found.curve)
    if not curve.height:
        return Section("", [], missing=["memory"])
    origin = int(curve["time"].to_numpy().min())
    holders, blocks, by_operator = map(one.of, (found.holders, found.blocks, found.operators))
    return Section(
        "Memory",
        [
            *_in_use(curve, origin, one),
            *_peaks(one.of(found.peaks), origin, one),
            *_holders(holders, one),
            *_operators(by_operator, one),
            *_blocks(blocks, origin, one),
        ],
        missing=lacking(
            {
                "what uses the memory at its peak": holders,
                "memory by operator": by_operator,
                "single allocations": blocks,
            }
        ),
    )


def _in_use(curve: pl.DataFrame, origin: int, one: OneTrace) -> list[Curves]:
    columns = [name for name in ("allocated", "reserved") if (curve[name].fill_null(0) != 0).any()]
    # Traces without totals show by how much they change.
    columns = columns or ["increase"]
    curves = []
    for (kind, device), part in curve.partition_by("kind", "device", as_dict=True).items():
        name = f"{kind}" if device is None else f"{kind} {device}"
        for column in columns:
            if not part[column].count():
                continue
            said = "since the trace began" if column == "increase" else column
            times = (part["time"].to_numpy() - origin) / NS_PER_S
            values = part[column].cast(pl.Float64).to_numpy()
            curves.append(Curve(f"{name}, {said}", times, values))
    return [Curves(f"Memory in use{one.label}", "bytes", curves)] if curves else []


def _peaks(peaks: pl.DataFrame, origin: int, one: OneTrace) -> list[Grid]:
    columns: Columns = [
        "kind",
        "device",
        ((pl.col("time") - origin) / NS_PER_MS).alias("at_ms"),
        "step",
        pl.col("allocated").alias("allocated_bytes"),
        # torch reserves none of the host's: that it is 0 says nothing.
        pl.when(pl.col("reserved") > 0).then("reserved").alias("reserved_bytes"),
        pl.col("told").alias("known_blocks_bytes"),
        pl.col("before").alias("allocated_before_bytes"),
    ]
    note = (
        "When most memory was in use, and how much of it the trace saw being allocated; the rest "
        "was allocated before it began."
    )
    return table(f"Peaks{one.label}", peaks, columns, note)


def _holders(holders: pl.DataFrame, one: OneTrace) -> list[Grid]:
    columns: Columns = ["kind", "device", "operator", "phase", "step", "blocks", "bytes"]
    note = "Who allocated what was in use at the peak, the most first."
    return table(f"Memory at its peak{one.label}", holders, columns, note)


def _operators(operators: pl.DataFrame, one: OneTrace) -> list[Grid]:
    most = operators.sort("self_allocated", descending=True, maintain_order=True)
    columns: Columns = [
        "kind",
        "device",
        "operator",
        "calls",
        "self_allocations",
        pl.col("self_allocated").alias("self_allocated_bytes"),
        pl.col("self_increase").alias("self_increase_bytes"),
        pl.col("allocated").alias("allocated_bytes"),
        pl.col("increase").alias("increase_bytes"),
    ]
    note = (
        "What operators allocate themselves, and with what they call; increase: less what they "
        "free."
    )
    return table(f"Memory by operator{one.label}", most, columns, note)


def _blocks(blocks: pl.DataFrame, origin: int, one: OneTrace) -> list[Grid]:
    largest = blocks.sort("bytes", descending=True, nulls_last=True, maintain_order=True)
    columns: Columns = [
        "kind",
        "device",
        "bytes",
        ((pl.col("allocated") - origin) / NS_PER_MS).alias("at_ms"),
        *durations("lifetime"),
        "state",
        "step",
        "operator",
        "caller",
    ]
    note = "Single allocations: when, for how long, and by whom."
    return table(f"Largest blocks{one.label}", largest, columns, note)
