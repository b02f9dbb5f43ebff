"""What rocprofv3 records about a process, whatever the format: as rows of haiprof's tables.

Tests: tests/sources/rocprof/test_one_process.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from haiprof.sources.imports import marked_steps
from haiprof.sources.imports.imported import Imported, gpu
from haiprof.sources.imports.segments import Segments
from haiprof.sources.kineto.columns import FAR
from haiprof.sources.nsys import nccl

_TIMES: Final = {"start": pl.Int64(), "end": pl.Int64()}
_XYZ: Final = ("x", "y", "z")
#: Columns of a dispatch; sizes of a grid are in work items.
DISPATCHES: Final = {
    **_TIMES,
    "name": pl.String(),
    "agent": pl.Int64(),
    "queue": pl.Int64(),
    "stream": pl.Int64(),
    "correlation": pl.Int64(),
    **{f"grid_{axis}": pl.Int64() for axis in _XYZ},
    **{f"group_{axis}": pl.Int64() for axis in _XYZ},
    "registers": pl.Int64(),
    "shared_memory": pl.Int64(),
}
#: ``kind``: ``hip``, ``hsa``, ``rccl`` or ``marker``.
CALLS: Final = {
    **_TIMES,
    "kind": pl.String(),
    "name": pl.String(),
    "thread": pl.Int64(),
    "correlation": pl.Int64(),
}
COPIES: Final = {
    **_TIMES,
    "direction": pl.String(),
    "source": pl.Int64(),
    "target": pl.Int64(),
    "bytes": pl.Int64(),
    "stream": pl.Int64(),
    "correlation": pl.Int64(),
}
#: GPUs only; ``ordinal`` is their place among them.
AGENTS: Final = {
    "agent": pl.Int64(),
    "ordinal": pl.Int64(),
    "name": pl.String(),
    "units": pl.Int64(),
}
#: The end of rocprofv3's words for the direction of a copy -> ``kernels.copy_kind``.
_DIRECTIONS: Final = {
    "HOST_TO_HOST": "HtoH",
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
}
_U32: Final = (1 << 32) - 1
_NOT_ASKED: Final = "rocprofv3 was not asked for it: record with {}"
_NO_TORCH: Final = "rocprofv3 does not know torch: trace with torch.profiler"
_NEVER: Final = {
    "kernels.start": "rocprofv3 counts from the machine's start, and records no time of day",
    "kernels.occupancy": "rocprofv3 does not estimate it",
    "spans[op]": _NO_TORCH,
    "spans[python]": _NO_TORCH,
    "spans[counters]": _NO_TORCH,
    "spans[step]": 'no steps are marked: put roctxRangePush("step 7") around each, and record '
    "with --marker-trace",
    "spans.shapes": _NO_TORCH,
    "spans.stack": _NO_TORCH,
    "spans.module": _NO_TORCH,
    "allocations": _NO_TORCH,
    "flows": "rocprofv3 numbers launches, and draws no arrows",
    "collectives.group": "rocprofv3 does not record it",
    "collectives.bytes": "rocprofv3 does not record it",
}


@dataclass(frozen=True, slots=True)
class Trace:
    """Frames of :data:`DISPATCHES`, :data:`CALLS`, :data:`COPIES` and :data:`AGENTS`."""

    dispatches: pl.DataFrame
    calls: pl.DataFrame
    copies: pl.DataFrame
    agents: pl.DataFrame


def write(trace: Trace, imported: Imported, segments: Segments) -> None:
    """Write the tables, and say which GPUs were used and what is lacking."""
    agents = _with_others(trace)
    dispatches, copies, calls = map(_sound, (trace.dispatches, trace.copies, trace.calls))
    lost = sum(
        before.height - after.height
        for before, after in (
            (trace.dispatches, dispatches),
            (trace.copies, copies),
            (trace.calls, calls),
        )
    )
    if lost:
        imported.problems.append(
            f"{imported.source.path}: {lost} records without a time, or that end before they "
            "begin: left out; see whether rocprofv3 came to its end"
        )
    ran = pl.concat((_kernels(dispatches, agents), _copied(copies, agents)), how="diagonal")
    segments.write_frame("kernels", ran)
    segments.write_frame("spans", _spans(calls))
    segments.write_frame("collectives", _collectives(calls))
    used = ran["device"].drop_nulls().unique().to_list()
    imported.gpus = [
        gpu(number, name or "", multiprocessors=units)
        for number, name, units in agents.sort("ordinal").select("ordinal", "name", "units").rows()
        if number in used
    ]
    imported.lacks = dict(_NEVER)
    for missing, key, option in (
        (not dispatches.height, "kernels", "--kernel-trace"),
        (not copies.height, "kernels.bytes", "--memory-copy-trace"),
        (not (calls["kind"] == "hip").any(), "spans[runtime]", "--hip-trace"),
        (not (calls["kind"] == "rccl").any(), "collectives", "--rccl-trace"),
    ):
        if missing:
            imported.lacks[key] = _NOT_ASKED.format(option)


def _sound(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(
        pl.col("start").is_between(0, FAR) & pl.col("end").is_between(pl.col("start"), FAR)
    )


def _with_others(trace: Trace) -> pl.DataFrame:
    """Return the GPUs, and number those that only dispatches name after them."""
    known = trace.agents.drop_nulls("agent").unique("agent", keep="first", maintain_order=True)
    others = (
        trace.dispatches.select("agent")
        .drop_nulls()
        .unique()
        .join(known, "agent", how="anti")
        .sort("agent")
    )
    numbers = pl.int_range(pl.len(), dtype=pl.Int64) + known.height
    return pl.concat((known, others.with_columns(numbers.alias("ordinal"))), how="diagonal")


def _kernels(rows: pl.DataFrame, agents: pl.DataFrame) -> pl.DataFrame:
    placed = rows.join(agents.rename({"name": "gpu"}), "agent", how="left", maintain_order="left")
    # Without streams, which older versions do not record, kernels of one queue run in order.
    streams = rows["stream"] if rows["stream"].drop_nulls().max() else rows["queue"]
    blocks = [
        pl.when(pl.col(f"group_{axis}") > 0)
        .then(-(-pl.col(f"grid_{axis}") // pl.col(f"group_{axis}")))
        .alias(f"blocks_{axis}")
        for axis in _XYZ
    ]
    return (
        placed.with_columns(*blocks, _small(streams))
        .with_columns(
            pl.when(pl.col("units") > 0)
            .then(pl.col("blocks_x").cast(pl.Float64) * pl.col("blocks_y") * pl.col("blocks_z")
                  / pl.col("units"))
            .alias("blocks_per_sm")
        )
        .select(
            "start",
            (pl.col("end") - pl.col("start")).alias("duration"),
            pl.lit("kernel").alias("kind"),
            pl.col("name").fill_null(""),
            _unsigned("ordinal", pl.UInt16).alias("device"),
            _unsigned("stream", pl.UInt32),
            _correlation(),
            *(_unsigned(f"blocks_{axis}", pl.UInt32).alias(f"grid_{axis}") for axis in _XYZ),
            *(_unsigned(f"group_{axis}", pl.UInt16).alias(f"block_{axis}") for axis in _XYZ),
            _unsigned("registers", pl.UInt16),
            _unsigned("shared_memory", pl.UInt32),
            "blocks_per_sm",
        )
    )  # fmt: skip


def _copied(rows: pl.DataFrame, agents: pl.DataFrame) -> pl.DataFrame:
    ordinals = agents.select("agent", "ordinal")
    ends = rows.join(
        ordinals.rename({"ordinal": "to"}), left_on="target", right_on="agent", how="left"
    ).join(ordinals.rename({"ordinal": "from"}), left_on="source", right_on="agent", how="left")
    way = (
        pl.col("direction").str.to_uppercase().str.extract(r"((?:HOST|DEVICE)_TO_(?:HOST|DEVICE))$")
    )
    which = way.replace_strict(_DIRECTIONS, default=None, return_dtype=pl.String())
    return ends.select(
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        pl.lit("memcpy").alias("kind"),
        pl.concat_str(pl.lit("Memcpy"), which, separator=" ", ignore_nulls=True).alias("name"),
        _unsigned("device", pl.UInt16, pl.coalesce("to", "from")),
        _unsigned("stream", pl.UInt32),
        _correlation(),
        _unsigned("bytes", pl.UInt64),
        which.alias("copy_kind"),
    )


def _spans(calls: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("kind")
    marks = calls.filter((kind == "marker") & pl.col("name").str.contains(marked_steps.MAY_BE))
    found = marked_steps.marked(marks.select("start", "end", "name").iter_rows())
    known = pl.DataFrame(
        [(start, text, number) for (start, text), number in found.items()],
        {"start": pl.Int64(), "name": pl.String(), "step": pl.UInt32()},
        orient="row",
    ).with_columns(pl.lit("marker").alias("kind"))
    return calls.join(known, ["kind", "start", "name"], how="left", maintain_order="left").select(
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        pl.when(pl.col("step").is_not_null())
        .then(pl.lit("step"))
        .when(kind.is_in(["hip", "hsa"]))
        .then(pl.lit("runtime"))
        .otherwise(pl.lit("user"))
        .alias("category"),
        pl.col("name").fill_null(""),
        pl.col("thread").fill_null(0).clip(0, _U32).cast(pl.UInt32).alias("thread"),
        "step",
        # Calls of HSA have numbers of their own.
        pl.when(kind == "hip").then(_correlation()).alias("correlation"),
    )


def _collectives(calls: pl.DataFrame) -> pl.DataFrame:
    op = pl.col("name").replace_strict(nccl.OPS, default=None, return_dtype=pl.String())
    return (
        calls.filter(pl.col("kind") == "rccl")
        .select(
            "start",
            (pl.col("end") - pl.col("start")).alias("duration"),
            pl.lit("host").alias("side"),
            op.alias("op"),
            pl.col("thread").fill_null(0).clip(0, _U32).cast(pl.UInt32).alias("thread"),
        )
        .drop_nulls("op")
    )


def _small(numbers: pl.Series) -> pl.Series:
    """Return streams or queues by small numbers: a queue may be named by its address."""
    large = bool((numbers > _U32).any())
    small = numbers.rank("dense").cast(pl.Int64) - 1 if large else numbers
    return small.alias("stream")


def _correlation() -> pl.Expr:
    number = pl.col("correlation")
    return pl.when(number > 0).then(number).cast(pl.UInt64).alias("correlation")


def _unsigned(name: str, kind: type[pl.DataType], of: pl.Expr | None = None) -> pl.Expr:
    number = pl.col(name) if of is None else of
    return pl.when(number >= 0).then(number).cast(kind, strict=False).alias(name)
