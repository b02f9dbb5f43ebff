"""What ran on the NPUs of a process: the tools' tables of kernels, completed from a timeline.

The tables have each kernel with its type and unit, and its duration as the tools sum it up; the
timeline has its stream and its launch, and the copies, waits and marks that no table has.

Tests: tests/sources/ascend/test_text.py.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.sources.ascend import words
from haiprof.sources.ascend.csv_files import ns, number

#: Two files of the tools print the same instant with different rounding.
_APART_NS: Final = 2
#: Columns of a table of kernels, as text.
TABLE: Final = dict.fromkeys(
    ("name", "op_type", "unit", "start", "duration", "stream", "task", "grid_x", "device"),
    pl.String(),
)
#: A table without kernels, as :func:`typed` returns it.
NONE: Final = pl.DataFrame(
    schema={
        "name": pl.String(),
        "op_type": pl.String(),
        "unit": pl.String(),
        "start": pl.Int64(),
        "duration": pl.Int64(),
        "stream": pl.UInt32(),
        "task": pl.UInt64(),
        "grid_x": pl.UInt32(),
        "device": pl.UInt16(),
    }
)


def typed(table: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Convert a table of kernels from text to numbers; also return how many rows have no time.

    Args:
        table: columns of :data:`TABLE`; missing ones are null.
    """
    lacking = [pl.lit(None, pl.String()).alias(c) for c in TABLE if c not in table.columns]
    typed_table = table.with_columns(lacking).select(
        pl.coalesce("name", "unit", pl.lit("")).alias("name"),
        "op_type",
        "unit",
        ns("start"),
        ns("duration"),
        number("stream", pl.UInt32),
        number("task", pl.UInt64),
        number("grid_x", pl.UInt32),
        number("device", pl.UInt16),
    )
    whole = typed_table.filter(pl.col("start").is_not_null() & (pl.col("duration") >= 0))
    return whole, typed_table.height - whole.height


def kernels(table: pl.DataFrame, tasks: pl.DataFrame, device: int | None) -> pl.DataFrame:
    """Return rows of the table ``kernels``, and ``data_type``, ``algorithm``, ``elements``.

    Args:
        table: what :func:`typed` returned.
        tasks: :meth:`haiprof.sources.ascend.timeline.Timeline.tasks`.
        device: where they ran, unless a row says otherwise.
    """
    tasks = _without_parts(tasks).with_row_index("row")
    on_time = tasks.select("name", "start", "row").sort("start")
    found = (
        table.sort("start")
        .join_asof(
            on_time,
            on="start",
            by="name",
            strategy="nearest",
            tolerance=_APART_NS,
            check_sortedness=False,
        )
        .join(tasks.drop("name", "start", "duration"), "row", how="left", suffix="_of_task")
        .with_columns(
            pl.coalesce(name, f"{name}_of_task").alias(name)
            for name in ("unit", "stream", "device")
        )
    )
    rest = tasks.join(found.select("row").drop_nulls(), "row", how="anti")
    complete = pl.concat((found, rest), how="diagonal")
    kinds = _kinds(complete["name"], complete["unit"])
    return complete.with_columns(
        kinds.alias("kind"), pl.coalesce("device", pl.lit(device, pl.UInt16())).alias("device")
    )


def _without_parts(tasks: pl.DataFrame) -> pl.DataFrame:
    """Leave out the tasks that make up a communication, and take its stream from them."""
    whole = tasks.filter(pl.col("communication") & ~pl.col("part"))
    made_of = tasks.filter(~pl.col("communication")).join(
        whole.select("connection").drop_nulls().unique(), "connection"
    )
    streams = (
        made_of.sort("start")
        .unique("connection", keep="first")
        .select("connection", pl.col("stream").alias("main"))
    )
    of_parts = made_of.select("connection").unique()
    single = tasks.filter(~pl.col("communication")).join(
        of_parts, "connection", how="anti", nulls_equal=False
    )
    named = whole.join(streams, "connection", how="left").with_columns(
        pl.coalesce("stream", "main").alias("stream")
    )
    unit = pl.coalesce("unit", pl.lit("HCCL"))
    return pl.concat((single, named.drop("main").with_columns(unit.alias("unit"))))


def _kinds(names: pl.Series, units: pl.Series) -> pl.Series:
    both = pl.DataFrame({"name": names, "unit": units.fill_null("")})
    known = both.unique()
    kinds = [words.kind_of(name, unit) for name, unit in known.iter_rows()]
    found = both.join(
        known.with_columns(pl.Series("kind", kinds, pl.String())),
        ["name", "unit"],
        how="left",
        maintain_order="left",
    )
    return found["kind"]


def with_ai_cpu(table: pl.DataFrame, from_table: pl.DataFrame) -> pl.DataFrame:
    """Append the tasks of the AI CPU that no table of kernels has.

    Args:
        table: what :func:`typed` returned.
        from_table: the same for the tool's table of the AI CPU.
    """
    new = from_table.with_columns(
        pl.lit("AI_CPU").alias("unit"), pl.coalesce("op_type", "name").alias("op_type")
    ).join(table.select("stream", "task"), ["stream", "task"], how="anti", nulls_equal=False)
    by_time = new.filter(pl.col("task").is_null()).join(table, ["name", "start"], how="anti")
    return pl.concat((table, new.filter(pl.col("task").is_not_null()), by_time))
