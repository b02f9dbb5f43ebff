"""Memory: blocks that operators took from torch_npu's allocator, and totals per component.

Tests: tests/sources/ascend/test_text.py.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.sources.ascend.csv_files import ns, size

#: Columns of ``operator_memory``: torch_npu gives totals in MB, msprof in KB.
OPERATORS: Final = {
    "Name": "name",
    "Size(KB)": "size",
    "Allocation Time(us)": "allocated",
    "Release Time(us)": "released",
    "Duration(us)": "lasted",
    "Allocation Total Allocated(MB)": "after_mb",
    "Allocation Total Reserved(MB)": "held_mb",
    "Release Total Allocated(MB)": "left_mb",
    "Release Total Reserved(MB)": "kept_mb",
    "Allocation Total Allocated(KB)": "after_kb",
    "Allocation Total Reserved(KB)": "held_kb",
    "Release Total Allocated(KB)": "left_kb",
    "Release Total Reserved(KB)": "kept_kb",
    "Device Type": "device",
    "Device": "device",
}
RECORDS: Final = {
    "Component": "component",
    "Timestamp(us)": "time",
    "Total Allocated(MB)": "allocated_mb",
    "Total Reserved(MB)": "reserved_mb",
    "Total Active(MB)": "active_mb",
    "Total Allocated(KB)": "allocated_kb",
    "Total Reserved(KB)": "reserved_kb",
    "Device Type": "device",
    "Device": "device",
}
#: Blocks: times in ns, sizes in bytes; ``size`` is negative where only the release was recorded.
BLOCKS: Final = {
    "name": pl.String(),
    "size": pl.Int64(),
    "allocated": pl.Int64(),
    "released": pl.Int64(),
    "after": pl.Int64(),
    "held": pl.Int64(),
    "left": pl.Int64(),
    "kept": pl.Int64(),
    "device": pl.UInt16(),
}
_KB: Final = 1 << 10
_MB: Final = 1 << 20


def blocks(operators: pl.DataFrame) -> pl.DataFrame:
    """Return columns of :data:`BLOCKS` from the text of ``operator_memory``."""
    at = ns("allocated")
    return operators.select(
        "name",
        size("size", _KB),
        at,
        pl.coalesce(ns("released"), at + ns("lasted")).alias("released"),
        *(
            pl.coalesce(size(f"{name}_mb", _MB), size(f"{name}_kb", _KB)).alias(name)
            for name in ("after", "held", "left", "kept")
        ),
        ordinal(),
    )


def ordinal() -> pl.Expr:
    """Return the ordinal of ``NPU:0``."""
    return pl.col("device").str.extract(r"(\d+)$").cast(pl.UInt16, strict=False).alias("device")


def allocations(blocks: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return rows of the table ``allocations``: the beginning and end of each block.

    Args:
        blocks: columns of :data:`BLOCKS`.
        ops: :attr:`haiprof.sources.ascend.timeline.Timeline.ops`: a block is attributed to the
            last operator of its name that runs then, and to that operator's thread.
    """
    numbered = blocks.with_row_index("address", 1).cast({"address": pl.UInt64()})
    asked = (
        numbered.filter(pl.col("allocated").is_not_null())
        .sort("allocated")
        .join_asof(
            ops.select("name", "thread", "start", "end"),
            left_on="allocated",
            right_on="start",
            by="name",
            check_sortedness=False,
        )
        .with_columns(pl.when(pl.col("allocated") <= pl.col("end")).then("thread").alias("thread"))
    )
    begun = asked.filter(pl.col("size") > 0).select(
        pl.col("allocated").alias("time"),
        "device",
        "address",
        pl.col("size").alias("bytes"),
        pl.col("after").alias("total_allocated"),
        pl.col("held").alias("total_reserved"),
        "thread",
    )
    ended = numbered.filter(pl.col("released").is_not_null() & pl.col("size").is_not_null()).select(
        pl.col("released").alias("time"),
        "device",
        "address",
        (-pl.col("size").abs()).alias("bytes"),
        pl.col("left").alias("total_allocated"),
        pl.col("kept").alias("total_reserved"),
    )
    return pl.concat((begun, ended), how="diagonal").with_columns(pl.lit("npu").alias("kind"))


def samples(records: pl.DataFrame) -> pl.DataFrame:
    """Return rows of the table ``samples`` from the text of ``memory_record``."""
    totals = records.select(
        ns("time"),
        pl.concat_str("device", "component", separator=" ", ignore_nulls=True).alias("instance"),
        *(
            pl.coalesce(size(f"{name}_mb", _MB), size(f"{name}_kb", _KB)).alias(
                f"memory.{name}.bytes"
            )
            for name in ("allocated", "reserved")
        ),
        size("active_mb", _MB).alias("memory.active.bytes"),
    ).filter(pl.col("time").is_not_null())
    return unpivoted(totals)


def unpivoted(records: pl.DataFrame) -> pl.DataFrame:
    """Return rows of ``samples``, one per metric column, beside ``time``, ``instance``."""
    return (
        records.unpivot(index=("time", "instance"), variable_name="metric", value_name="value")
        .filter(pl.col("value").is_not_null())
        .with_columns(pl.col("value").cast(pl.Float64), pl.lit(0, pl.UInt32()).alias("flags"))
    )
