"""Multiplications of matrices by shape: how fast, of what peak, and by how many blocks.

Tests: tests/views/trace/roofline/test_operators.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from haiprof.runs import Gpu
from haiprof.views.trace.roofline.device import Peaks, device_peaks
from haiprof.views.trace.roofline.formulas import gemm, known
from haiprof.views.trace.roofline.operators import call_of
from haiprof.views.trace.roofline.tiles import blocks, tile

SCHEMA: Final = {
    "operator": pl.String(),
    "device": pl.UInt16(),
    "graph": pl.Boolean(),
    "batch": pl.Int64(),
    "m": pl.Int64(),
    "n": pl.Int64(),
    "k": pl.Int64(),
    "type": pl.String(),
    "calls": pl.UInt32(),
    "device_time": pl.Int64(),
    "share": pl.Float64(),
    "flops_per_s": pl.Float64(),
    "flops_share": pl.Float64(),
    "bytes_share": pl.Float64(),
    "intensity": pl.Float64(),
    "bound": pl.String(),
    "efficiency": pl.Float64(),
    "kernel": pl.String(),
    "tile_m": pl.Int64(),
    "tile_n": pl.Int64(),
    "splits": pl.Int64(),
    "blocks": pl.Int64(),
    "waves": pl.Float64(),
}


def gemms(operators: pl.DataFrame, gpus: Sequence[Gpu] = ()) -> pl.DataFrame:
    """Return the multiplications among operators, the longest on the device first.

    Columns: those of :func:`haiprof.views.trace.roofline.operators.operators` of the same names;
    ``batch``, ``m``, ``n``, ``k`` (the result is ``batch`` matrices of ``m`` by ``n``, each element
    a sum of ``k`` products); ``type`` (of the operands); of the longest kernel ``tile_m``,
    ``tile_n`` and ``splits`` (the part of the result that one of its blocks computes, and how many
    share one part's sum; null if its name does not say), ``blocks`` (of its grid, or else by its
    tiles) and ``waves`` (blocks by multiprocessors: how often the device is filled).

    Args:
        operators: the result of that function.
        gpus: of the process.
    """
    found = operators.filter(pl.col("kind") == gemm.KIND)
    rows = [_row(row, device_peaks(gpus, row["device"])) for row in found.iter_rows(named=True)]
    return pl.DataFrame(rows, SCHEMA, orient="row")


def _row(row: dict[str, Any], peaks: Peaks) -> dict[str, Any]:
    cost = known.cost(call_of(row))
    assert cost is not None, "it has a kind"
    count, name = row["blocks"], row["kernel"]
    stated = tile(None if name is None else str(name))
    if stated is not None and count is None:
        count = blocks(stated, cost.sizes["batch"], cost.sizes["m"], cost.sizes["n"])
    filled = peaks.multiprocessors
    return {
        **{name: row[name] for name in SCHEMA if name in row},
        **{name: cost.sizes[name] for name in ("batch", "m", "n", "k")},
        "type": cost.type,
        "tile_m": stated and stated.m,
        "tile_n": stated and stated.n,
        "splits": stated and stated.splits,
        "blocks": count,
        "waves": count / filled if filled and isinstance(count, int) else None,
    }
