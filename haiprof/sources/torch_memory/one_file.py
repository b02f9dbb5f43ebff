"""Imports a memory timeline of torch.profiler: the allocator's events, or each category's curve.

torch writes the bytes of each event with their sign, and a change of category as two events that
cancel each other. What was allocated before the profiler began has no time: it stands at the first.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl

from haiprof.errors import HaiprofError
from haiprof.sources import peek
from haiprof.sources.imports.imported import Imported
from haiprof.sources.imports.segments import Segments
from haiprof.sources.kineto.columns import FAR
from haiprof.sources.torch_memory.find import form_of

#: torch's numbers of categories, in this order; the last is of what it cannot classify.
CATEGORIES: Final = (
    "parameter", "optimizer_state", "input", "temporary", "activation", "gradient",
    "autograd_detail", "unknown",
)  # fmt: skip
_RECATEGORIZED: Final = 3
_NS_PER_US: Final = 1_000
#: More bytes than any device has; sums of many of them still fit an int64.
_MOST: Final = 1 << 50
#: Whose memory it is, in the table ``allocations``.
KIND: Final = "device"

_ONLY_MEMORY: Final = (
    "a memory timeline contains only the allocator's events: export_chrome_trace() has the rest"
)
LACKS: Final = {
    "spans": _ONLY_MEMORY,
    "kernels": _ONLY_MEMORY,
    "collectives": _ONLY_MEMORY,
    "flows": _ONLY_MEMORY,
    "allocations.device": "a memory timeline does not say of which device it is",
    "allocations.address": "a memory timeline does not say which block is freed",
    "allocations.total_reserved": "a memory timeline has no bytes reserved",
}


def read(imported: Imported, segments: Segments, on_bytes: Callable[[int], None]) -> None:
    """Read one memory timeline; see :data:`haiprof.sources.imports.formats.Read`.

    Raises:
        HaiprofError: it is damaged, too large, or has no events.
        OSError: it cannot be read.
    """
    path = imported.source.path
    content = peek.text(Path(path)).encode().translate(None, b" \t\r\n")
    if not content.endswith(b"]]"):
        raise HaiprofError(f"{path}: is cut off: copy it again from where it was written")
    form = form_of(content[: peek.HEAD])
    events, lost = _events(content) if form == "events" else _curve(content, path)
    if not events.height:
        raise HaiprofError(f"{path}: has no event of an allocator: record with profile_memory=True")
    imported.lacks = dict(LACKS)
    if lost:
        imported.problems.append(
            f"{path}: {lost} rows that are not numbers, or out of range: left out; copy it again"
        )
    total = pl.col("bytes").cum_sum()
    segments.write_frame(
        "allocations",
        events.filter(~pl.col("recategorized")).select(
            "time",
            pl.lit(KIND).alias("kind"),
            pl.lit(0, pl.UInt64()).alias("address"),
            "bytes",
            total.alias("total_allocated"),
        ),
    )
    segments.write_frame(
        "samples",
        events.select(
            "time",
            pl.format("memory.{}.bytes", "category").alias("metric"),
            total.over("category").cast(pl.Float64).alias("value"),
            pl.lit(0, pl.UInt32()).alias("flags"),
        ).unique(["time", "metric"], keep="last", maintain_order=True),
    )
    on_bytes(imported.source.bytes)


def _events(content: bytes) -> tuple[pl.DataFrame, int]:
    """Return ``time``, ``bytes``, ``category``, ``recategorized`` by time; how many are lost."""
    rows = _table(content.strip(b"[]"), ("time", "action", "bytes", "category"))
    known = rows.filter(
        pl.col("action").is_between(1, 4)
        & pl.col("category").is_between(0, len(CATEGORIES) - 1)
        & _in_range("bytes", _MOST)
        & _in_range("time", FAR)
    )
    first = known.filter(pl.col("time") >= 0)["time"].min()
    return known.select(
        pl.when(pl.col("time") >= 0).then("time").otherwise(pl.lit(first or 0, pl.Int64())),
        "bytes",
        _named("category"),
        (pl.col("action") == _RECATEGORIZED).alias("recategorized"),
    ).sort("time", maintain_order=True), rows.height - known.height


def _curve(content: bytes, path: str) -> tuple[pl.DataFrame, int]:
    """Return the same of a curve: its changes, at a resolution of microseconds."""
    times, found, sizes = content.strip(b"[]").partition(b"],[[")
    # A column of zeros, below the first category, comes before them.
    columns = ("below", *(str(number) for number in range(len(CATEGORIES))))
    levels = _table(sizes, columns) if found else pl.DataFrame()
    at = _table(times.replace(b",", b"\n"), ("time",))
    if at.height != levels.height:
        raise HaiprofError(
            f"{path}: has {at.height} times for {levels.height} sizes: "
            "copy it again from where it was written"
        )
    rows = pl.concat((at, levels), how="horizontal")
    numbers = columns[1:]
    known = rows.filter(
        pl.col("time").is_between(0, FAR // _NS_PER_US),
        *(_in_range(number, _MOST) for number in numbers),
    ).sort("time", maintain_order=True)
    changes = known.with_columns(
        pl.col("time") * _NS_PER_US,
        *(pl.col(number).diff().fill_null(pl.col(number)) for number in numbers),
    )
    events = changes.unpivot(
        numbers, index="time", variable_name="category", value_name="bytes"
    ).filter(pl.col("bytes") != 0)
    return events.select(
        "time",
        "bytes",
        _named("category"),
        pl.lit(False).alias("recategorized"),
    ).sort("time", maintain_order=True), rows.height - known.height


def _table(content: bytes, columns: tuple[str, ...]) -> pl.DataFrame:
    """Read lists of integers, without the outer brackets; what is no integer is null."""
    lines = content.replace(b"],[", b"\n")
    if not lines:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64()))
    return pl.read_csv(
        io.BytesIO(lines),
        has_header=False,
        schema=dict.fromkeys(columns, pl.Int64()),
        ignore_errors=True,
        missing_columns="insert",
        extra_columns="ignore",
        truncate_ragged_lines=True,
        quote_char=None,
    )


def _in_range(name: str, most: int) -> pl.Expr:
    return pl.col(name).is_between(-most, most).fill_null(False)


def _named(name: str) -> pl.Expr:
    return (
        pl.col(name)
        .cast(pl.Int64)
        .replace_strict(list(range(len(CATEGORIES))), list(CATEGORIES), return_dtype=pl.String())
        .alias("category")
    )
