"""Each GPU activity's step, phase and readable name; activities by name, and by device phase.

Times are int64 ns UTC, durations int64 ns.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from haiprof.views.intervals import covered
from haiprof.views.kernel_names import demangled, short_name
from haiprof.views.run.busy import BUSY_KINDS, busy_times, devices
from haiprof.views.run.device_steps import place

#: Columns of kernels that these views need.
COLUMNS = ("start", "duration", "kind", "name", "device")
PHASES_SCHEMA = {
    "step": pl.UInt32(),
    "name": pl.Categorical(),
    "device": pl.UInt16(),
    "stream": pl.UInt32(),
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "busy": pl.Int64(),
    "idle": pl.Int64(),
    "kernels": pl.UInt32(),
}
TOTALS_SCHEMA = {
    "kind": pl.Categorical(),
    "demangled": pl.Categorical(),
    "calls": pl.UInt32(),
    "total": pl.Int64(),
    "mean": pl.Float64(),
    "min": pl.Int64(),
    "max": pl.Int64(),
    "share": pl.Float64(),
    "phases": pl.List(pl.String()),
}
#: Columns that :func:`described` adds to kernels.
DESCRIBED_SCHEMA = {
    "step": pl.UInt32(),
    "phase": pl.Categorical(),
    "demangled": pl.Categorical(),
    "short": pl.Categorical(),
}


def described(kernels: pl.DataFrame, phases: pl.DataFrame) -> pl.DataFrame:
    """Add ``step``, ``phase``, ``demangled`` and ``short`` (readable names) to kernels.

    An activity belongs to the device phase of its device within which it starts, on any stream.
    One that starts between two phases of a step has that step and no phase; one outside of both,
    or on a device without phases, has neither.
    """
    names = kernels["name"].unique().drop_nulls().cast(pl.String).to_list()
    readable = demangled(names)
    table = pl.DataFrame(
        {
            "name": pl.Series(names, dtype=pl.Categorical()),
            "demangled": pl.Series([readable[n] for n in names], dtype=pl.Categorical()),
            "short": pl.Series([short_name(readable[n]) for n in names], dtype=pl.Categorical()),
        }
    )
    step, phase = _attributed(kernels, phases)
    return kernels.with_columns(step, phase).join(
        table, on="name", how="left", maintain_order="left"
    )


def _attributed(kernels: pl.DataFrame, phases: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    at, within = place(devices(kernels), kernels["start"].to_numpy(), phases)
    rows = pl.DataFrame({"at": at, "within": within}).select(
        pl.when(pl.col("at") >= 0).then("at").alias("at"),
        pl.when(pl.col("within")).then("at").alias("inside"),
    )
    return (
        phases["step"].gather(rows["at"]).alias("step"),
        phases["name"].gather(rows["inside"]).alias("phase"),
    )


def totals(kernels: pl.DataFrame, phases: pl.DataFrame) -> pl.DataFrame:
    """Sum activities by name, the longest total first.

    Columns: ``kind``, ``demangled``, ``calls``, ``total``, ``mean``, ``min`` and ``max`` (ns),
    ``share`` (of the time of all activities, overlap counted twice), ``phases`` (the device phases
    in which it ran, in the order of their time in it).
    """
    found = kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)))
    if not found.height:
        return pl.DataFrame(schema=TOTALS_SCHEMA)
    _, phase = _attributed(found, phases)
    duration = pl.col("duration")
    by_phase = (
        found.select("kind", "name", duration.clip(lower_bound=0))
        .with_columns(phase)
        .group_by("kind", "name", "phase")
        .agg(
            pl.len().alias("calls"),
            duration.sum().alias("total"),
            duration.min().alias("min"),
            duration.max().alias("max"),
        )
        .with_columns(pl.col("name").cast(pl.String))
    )
    readable = demangled(by_phase["name"].drop_nulls().unique())
    by_name = by_phase.with_columns(
        pl.col("name").replace(readable).alias("demangled"), pl.col("phase").cast(pl.String)
    ).sort("total", "phase", descending=[True, False])
    totals_by_name = by_name.group_by("kind", "demangled").agg(
        pl.col("calls").sum(),
        pl.col("total").sum(),
        pl.col("min").min(),
        pl.col("max").max(),
        pl.col("phase").drop_nulls().unique(maintain_order=True).alias("phases"),
    )
    return (
        totals_by_name.with_columns(
            (pl.col("total") / pl.col("calls")).alias("mean"),
            pl.when(pl.col("total").sum() > 0)
            .then(pl.col("total") / pl.col("total").sum())
            .alias("share"),
        )
        .sort("total", "demangled", descending=[True, False])
        .select(pl.col(name).cast(kind) for name, kind in TOTALS_SCHEMA.items())
    )


def device_phases(
    kernels: pl.DataFrame, phases: pl.DataFrame, recorded_steps: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per step and device phase.

    Columns: ``step``, ``name``, ``device``, ``stream``, ``start``, ``duration`` (on the main
    stream, idle time included; phases of one name in one step are added), ``busy`` (how much of it
    some activity of the device ran, on any stream), ``idle`` (the rest) and ``kernels`` (kernels
    that start in it). The last three are null in steps in which kernels were not recorded, or whose
    times are not sure.

    Args:
        kernels: activities with the columns :data:`COLUMNS`.
        phases: what :func:`haiprof.views.run.device_steps.segments` returns.
        recorded_steps: what :func:`haiprof.views.run.recorded.windows` returns for steps of
            devices.
    """
    stepped = phases.with_row_index("row").filter(pl.col("step").is_not_null())
    in_recorded = stepped["group"].is_in(recorded_steps["group"].implode())
    known = (in_recorded & stepped["sure"]).to_numpy()
    busy = np.zeros(phases.height, np.int64)
    low, high = phases["start"].to_numpy(), phases["end"].to_numpy()
    of = phases["device"].to_numpy()
    for device, (start, end) in busy_times(kernels).items():
        rows = np.flatnonzero(of == device)
        busy[rows] = covered(start, end, low[rows], high[rows])
    only = kernels.filter(pl.col("kind") == "kernel")
    at, within = place(devices(only), only["start"].to_numpy(), phases)
    count = np.bincount(at[within], minlength=phases.height)
    rows = stepped["row"].to_numpy()
    duration = pl.col("end") - pl.col("start")

    def where_known(column: str) -> pl.Expr:
        return pl.when(pl.col("known")).then(pl.col(column))

    return (
        stepped.with_columns(
            pl.Series("known", known),
            pl.Series("busy", busy[rows]),
            pl.Series("kernels", count[rows]),
            duration.alias("duration"),
        )
        .group_by("group", "device", "step", "name", "known", maintain_order=True)
        .agg(
            pl.col("stream").first(),
            pl.col("start").min(),
            pl.col("duration", "busy", "kernels").sum(),
        )
        .with_columns(
            where_known("busy"),
            where_known("kernels"),
            pl.when(pl.col("known")).then(pl.col("duration") - pl.col("busy")).alias("idle"),
        )
        .sort("start", "device", maintain_order=True)
        .select(pl.col(name).cast(kind) for name, kind in PHASES_SCHEMA.items())
    )
