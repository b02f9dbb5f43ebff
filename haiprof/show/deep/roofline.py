"""Operators against what the device can do: roofline, multiplications by shape, collectives.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from haiprof.common.numbers import percent
from haiprof.show.deep.section import (
    Columns,
    OneTrace,
    Section,
    durations,
    lacking,
    readable,
    table,
)

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.show.grid import Grid

_TERA: Final = 1e12
_GIGA: Final = 1e9


def section(analyzer: Analyzer, one: OneTrace) -> Section:
    """Describe what operators of one trace reach of what the device can do."""
    operators, gemms, collectives = (one.of(frame) for frame in analyzer.roofline(one.rank))
    known = operators.filter(pl.col("flops").is_not_null() | pl.col("bytes").is_not_null())
    return Section(
        "Operators and what the device can do",
        [*_roofline(known, one), *_gemms(gemms, one), *_collectives(collectives, one)],
        _covered(operators, known),
        lacking({"FLOPs and bytes of operators": known}),
    )


def _covered(operators: pl.DataFrame, known: pl.DataFrame) -> list[str]:
    whole, part = (int(frame["device_time"].sum()) for frame in (operators, known))
    if not part:
        return []
    share = percent(part / whole)
    line = f"What operators compute and move is known for {share} of the device's time."
    lost = int(operators.filter(pl.col("graph"), pl.col("kind").is_null())["device_time"].sum())
    if lost:
        line += (
            f" {percent(lost / whole)} is in CUDA graphs whose captures the trace does not have: "
            "which operators it belongs to is not known."
        )
    if not known["efficiency"].count():
        line += " The peak of the device is not known, so their efficiency is not either."
    return [line]


def _roofline(known: pl.DataFrame, one: OneTrace) -> list[Grid]:
    columns: Columns = [
        "operator",
        "kind",
        "shapes",
        "calls",
        *durations("device_time"),
        pl.col("share").alias("share_ratio"),
        "intensity",
        (pl.col("flops_per_s") / _TERA).alias("TFLOP/s"),
        pl.col("flops_share").alias("of the peak_ratio"),
        (pl.col("bytes_per_s") / _GIGA).alias("bandwidth_gb_per_s"),
        pl.col("bytes_share").alias("of the bandwidth_ratio"),
        pl.col("bound").alias("bound by"),
        pl.col("efficiency").alias("efficiency_ratio"),
    ]
    note = (
        "What bounds each operator with these inputs, and the least time that it needs by the "
        "time that it took, the longest on the device first. Intensity is in FLOP/B."
    )
    return table(f"Roofline{one.label}", known, columns, note)


def _gemms(gemms: pl.DataFrame, one: OneTrace) -> list[Grid]:
    columns: Columns = [
        *("operator", "batch", "m", "n", "k", "type", "calls"),
        *durations("device_time"),
        (pl.col("flops_per_s") / _TERA).alias("TFLOP/s"),
        pl.col("flops_share").alias("of the peak_ratio"),
        pl.col("bytes_share").alias("of the bandwidth_ratio"),
        pl.col("bound").alias("bound by"),
        pl.col("efficiency").alias("efficiency_ratio"),
        pl.when(pl.col("tile_m").is_not_null())
        .then(pl.concat_str(["tile_m", "tile_n"], separator="\N{MULTIPLICATION SIGN}"))
        .alias("tile"),
        "blocks",
        "waves",
        readable("kernel"),
    ]
    note = (
        "By shape. Waves are how often the blocks fill the multiprocessors: much less than one "
        "leaves most of the device idle."
    )
    return table(f"Multiplications of matrices{one.label}", gemms, columns, note)


def _collectives(collectives: pl.DataFrame, one: OneTrace) -> list[Grid]:
    columns: Columns = [
        *("op", "group", "group_size", "type"),
        pl.col("size").alias("size_bytes"),
        "calls",
        *durations("device_time", "shortest"),
        (pl.col("algorithm_bandwidth") / _GIGA).alias("algorithm_bandwidth_gb_per_s"),
        (pl.col("bus_bandwidth") / _GIGA).alias("bus_bandwidth_gb_per_s"),
        (pl.col("best_bus_bandwidth") / _GIGA).alias("best_bus_bandwidth_gb_per_s"),
    ]
    note = (
        "By size, as NCCL's tests define it and bandwidth. Times include waiting for other ranks; "
        "the shortest waited least."
    )
    return table(f"Collectives by size{one.label}", collectives, columns, note)
