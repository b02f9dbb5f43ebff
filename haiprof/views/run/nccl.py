"""What NCCL says of its operations, one row each: the host's part and the network's together.

Tests: tests/nccl/test_views.py.
"""

from __future__ import annotations

from typing import Final

import polars as pl

NCCL_SCHEMA: Final = {
    "communicator": pl.String(),
    "name": pl.String(),
    "place": pl.UInt32(),
    "ranks": pl.UInt32(),
    "nodes": pl.UInt32(),
    "op": pl.String(),
    "sequence": pl.UInt64(),
    "step": pl.UInt32(),
    "type": pl.String(),
    "elements": pl.Int64(),
    "bytes": pl.Int64(),
    "algorithm": pl.String(),
    "protocol": pl.String(),
    "channels": pl.UInt16(),
    "peer": pl.UInt32(),
    "start": pl.Int64(),
    "enqueued": pl.Int64(),
    "network_start": pl.Int64(),
    "network_end": pl.Int64(),
    "transfers": pl.UInt32(),
    "cut_off": pl.Boolean(),
}


def operations(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the operations of one process, in the order in which NCCL began to enqueue them.

    Columns: those of the table, with ``enqueued`` (when the host was done with it),
    ``network_start`` and ``network_end`` (when NCCL's proxy took up the first transfer, and when
    the last one had ended), ``transfers`` (how many; these three are null where there were none),
    ``cut_off`` (its communicator ended before it). Times are ns.

    Args:
        rows: table ``nccl`` of the process.
    """
    end = pl.col("start") + pl.col("duration")
    is_cut = (pl.col("cut_off") == 1).fill_null(value=False)
    rows = rows.with_columns(pl.col(pl.Categorical).cast(pl.String))
    # Each row of the network covers all that was before it.
    network = (
        rows.filter(pl.col("side") == "network")
        .group_by("id")
        .agg(
            pl.col("start").min().alias("network_start"),
            end.max().alias("network_end"),
            pl.col("transfers").max(),
            is_cut.any().alias("network_cut"),
        )
    )
    host = rows.filter(pl.col("side") == "host").drop("transfers")
    return (
        host.join(network, on="id", how="left")
        .with_columns(
            end.alias("enqueued"),
            (is_cut | pl.col("network_cut").fill_null(value=False)).alias("cut_off"),
        )
        .sort("start", "id")
        .select(pl.col(name).cast(kind) for name, kind in NCCL_SCHEMA.items())
    )
