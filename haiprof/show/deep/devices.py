"""Where the GPUs' time goes: how busy they were, with what, and why they were not.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from haiprof.show.colours import WORK_COLOURS
from haiprof.show.deep.figure import Bars, Curve, Curves, Part
from haiprof.show.deep.section import (
    NS_PER_S,
    TRACES,
    Columns,
    OneTrace,
    Section,
    durations,
    labels,
    lacking,
    readable,
    spread,
    table,
    who,
)
from haiprof.show.grid import Grid
from haiprof.views.trace.idle import CATEGORIES

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.answers.deep import OverviewFrames

#: Columns of the parts of a device's time, and their titles.
_PARTS = {
    "compute": ("computing", WORK_COLOURS["kernel"]),
    "communication": ("communication alone", WORK_COLOURS["communication"]),
    "memory": ("copies and sets alone", WORK_COLOURS["memcpy"]),
    "idle": ("idle", WORK_COLOURS["idle"]),
}
_DRAWN_DEVICES = 8


def section(analyzer: Analyzer, overview: OverviewFrames, one: OneTrace) -> Section:
    """Describe how all GPUs were used, and what one trace's were busy with and waited for."""
    temporal = analyzer.temporal()
    timeline = one.of(overview.timeline)
    kinds = one.of(analyzer.kernel_kinds(one.rank))
    idle = one.of(analyzer.idle(one.rank))
    causes = one.of(analyzer.idle(one.rank, by="device"))
    steps = one.of(analyzer.step_trace(one.rank)).filter(pl.col("device_end").is_not_null())
    return Section(
        "Where the GPUs' time goes",
        [
            *_devices(overview.devices),
            *_division(temporal),
            *_temporal(temporal),
            *_busy(timeline, one),
            *_kinds(kinds, one),
            *_causes(causes, one),
            *_idle(idle, one),
            *_step_trace(steps, one),
        ],
        missing=lacking(
            {
                "work on a GPU": temporal,
                "which GPU it was": overview.devices,
                "kinds of work": kinds,
                "gaps of GPUs": causes,
                "gaps of streams": idle,
                "steps on a GPU": steps,
            }
        ),
    )


def _devices(devices: pl.DataFrame) -> list[Grid]:
    if not devices.height:
        return []
    chosen = spread(devices, "utilization", TRACES)
    columns: Columns = [
        *who(devices),
        "device",
        "kernels",
        pl.col("utilization").alias("busy_ratio"),
        pl.col("sm_efficiency").alias("sm_efficiency_ratio"),
        pl.col("occupancy").alias("occupancy_ratio"),
        pl.col("tensor_core").alias("tensor_core_ratio"),
    ]
    note = (
        "How well each GPU was used: busy with kernels, of the time of the recorded steps; SM "
        "efficiency and occupancy are estimated from each kernel's launch."
    )
    if chosen.height < devices.height:
        note += f" Of {devices.height}, {chosen.height} from the busiest to the least busy."
    return table("GPUs", chosen, columns, note, TRACES)


def _division(temporal: pl.DataFrame) -> list[Bars]:
    if not temporal.height:
        return []
    shown = spread(temporal, "idle_ratio", TRACES)
    parts = [
        Part(name, (shown[part] / shown["span"]).to_list(), colour)
        for part, (name, colour) in _PARTS.items()
    ]
    return [Bars("What each GPU did", "ratio", labels(shown), parts)]


def _temporal(temporal: pl.DataFrame) -> list[Grid]:
    if not temporal.height:
        return []
    chosen = spread(temporal, "idle_ratio", TRACES)
    columns: Columns = [
        *who(temporal),
        "device",
        *durations("span"),
        *(pl.col(f"{name}_ratio") for name in ("idle", "compute", "non_compute")),
        *durations("communication", "memory"),
    ]
    note = (
        "From each GPU's first activity to its last one; not computing: communication and copies "
        "that no computation hides."
    )
    if chosen.height < temporal.height:
        note += f" Of {temporal.height}, {chosen.height} from the most idle to the least."
    return table("Busy and idle", chosen, columns, note, TRACES)


def _busy(timeline: pl.DataFrame, one: OneTrace) -> list[Curves]:
    if not timeline.height:
        return []
    origin = int(timeline["start"].to_numpy().min())
    curves = [
        Curve(
            f"GPU {part['device'][0]}",
            (part["start"].to_numpy() - origin) / NS_PER_S,
            part["utilization"].to_numpy(),
        )
        for part in timeline.partition_by("device", maintain_order=True)[:_DRAWN_DEVICES]
    ]
    return [Curves(f"GPU busy with kernels over time{one.label}", "ratio", curves)]


def _kinds(kinds: pl.DataFrame, one: OneTrace) -> list[Grid]:
    columns: Columns = ["device", "kind", *durations("time"), pl.col("ratio").alias("share_ratio")]
    note = "What the busy time of a GPU went to, alone and at the same time; rows add up to it."
    return table(f"Kinds of work{one.label}", kinds, columns, note)


def _causes(causes: pl.DataFrame, one: OneTrace) -> list[Grid]:
    """One row per cause, the longest first."""
    columns: Columns = [
        "device",
        pl.col("cause").str.replace_all("_", " "),
        *durations("idle"),
        "ratio",
        pl.col("count").alias("times"),
        *durations("max"),
        readable("mostly"),
        *durations("in_steps"),
    ]
    note = (
        "Why no stream of a GPU had work, from its first activity to its last one. Until the next "
        "activity was launched, it is what the host did; from then on, what its stream waited for."
    )
    return table(f"Why GPUs were idle{one.label}", causes, columns, note)


def _idle(idle: pl.DataFrame, one: OneTrace) -> list[Grid]:
    """One row per stream, the longest idle first."""
    if not idle.height:
        return []
    of = pl.col("category")
    streams = (
        idle.group_by("device", "stream", maintain_order=True)
        .agg(
            pl.col("idle").sum(),
            pl.col("count").sum().alias("gaps"),
            *(
                pl.col("ratio").filter(of == name).first().alias(f"{name}_ratio")
                for name in CATEGORIES
            ),
            pl.col("max").max().alias("longest"),
        )
        .sort("idle", descending=True, maintain_order=True)
    )
    columns: Columns = [
        "device",
        "stream",
        *durations("idle"),
        "gaps",
        *(f"{name}_ratio" for name in CATEGORIES),
        *durations("longest"),
    ]
    note = (
        "Why streams were idle between two activities: the host launched late (host wait), "
        "the next one took a moment to begin (kernel wait), or something else, as an event."
    )
    return table(f"Why streams were idle{one.label}", streams, columns, note)


def _step_trace(trace: pl.DataFrame, one: OneTrace) -> list[Grid]:
    parts = ("computing", "communication", "overlapped", "exposed", "copying", "free")
    times = ("preparing", "forward_backward", "refresh", "interval")
    columns: Columns = ["step", *durations("duration", *parts, *times)]
    note = (
        "Each step on the GPU: preparing until its first kernel; forward and backward; the refresh "
        "of parameters after it; the interval since the step before. Computing, exposed "
        "communication, copying and free time add up to the step."
    )
    return table(f"Steps on the GPU{one.label}", trace, columns, note)
