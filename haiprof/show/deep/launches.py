"""How the host keeps the device busy: delays of launches, queues, and the bandwidth of copies.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from haiprof.common.numbers import milliseconds
from haiprof.show.colours import WORK_COLOURS
from haiprof.show.deep.figure import Bars, Curve, Curves, Part
from haiprof.show.deep.section import (
    NS_PER_S,
    Columns,
    OneTrace,
    Section,
    durations,
    lacking,
    table,
)
from haiprof.show.grid import Grid
from haiprof.views.run.series import decimate
from haiprof.views.trace import bandwidth as bandwidth_view
from haiprof.views.trace import launches as launch_view
from haiprof.views.trace import queue_length as queue_view

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Points per curve, and curves per figure: those with the highest maximum.
_POINTS = 1_000
_CURVES = 8
#: Kinds of activities by their delay, and their colours.
_KINDS = {
    "kernel": WORK_COLOURS["kernel"],
    "memory": WORK_COLOURS["memcpy"],
    "graph": WORK_COLOURS["graph"],
}


def section(analyzer: Analyzer, one: OneTrace) -> Section:
    """Describe the launches and the copies of one trace."""
    launched = one.of(analyzer.launches(one.rank))
    queue = one.of(analyzer.queue_length(one.rank))
    copies = one.of(analyzer.bandwidth(one.rank))
    full = one.of(analyzer.full_queue(one.rank))
    sequences = one.of(analyzer.operator_kernels(one.rank))
    return Section(
        "Launches, queues and copies",
        [
            *_delays(launched, one),
            *_launched(launched, one),
            *_queue(queue, one),
            *_full(full, one),
            *_of_operators(sequences, one),
            *_bandwidth(copies, one),
        ],
        missing=lacking(
            {
                "launches": launched,
                "lengths of queues": queue,
                "kernels of operators": sequences,
                "bandwidth of copies": copies,
            }
        ),
    )


def _delays(launched: pl.DataFrame, one: OneTrace) -> list[Bars]:
    """Return how many activities began how long after their launch, in steps of 1, 2, 5."""
    if not launched.height:
        return []
    delay = launched["delay"].to_numpy()
    edges = [0, *(digit * 10**power for power in range(3, 12) for digit in (1, 2, 5))]
    edges = edges[: int(np.searchsorted(edges, delay.max(), side="right")) + 1]
    parts = []
    for kind, colour in _KINDS.items():
        counts, _ = np.histogram(delay[(launched["kind"] == kind).to_numpy()], edges)
        if counts.any():
            name = {"memory": "copies and sets"}.get(kind, f"{kind}s")
            parts.append(Part(name, counts.tolist(), colour))
    title = f"How long after its launch work began{one.label}"
    note = "Activities by their delay: at least so long, and less than in the next row."
    return [Bars(title, "count", [milliseconds(edge) for edge in edges[:-1]], parts, note)]


def _launched(launched: pl.DataFrame, one: OneTrace) -> list[Grid]:
    if not launched.height:
        return []
    columns: Columns = [
        pl.col("kind").replace({"memory": "copies and sets"}),
        pl.col("count").alias("activities"),
        "calls",
        *durations("cpu_duration_mean", "cpu_duration_max"),
        *durations("gpu_duration_mean", "delay_p50", "delay_mean", "delay_max"),
        "short",
        "slow_calls",
        "long_delays",
    ]
    note = (
        "How long launching takes, and how long what was launched waits. Short: activities shorter "
        "than their call; slow calls: above 50 µs; long delays: above 100 µs."
    )
    return table(f"Launches{one.label}", launch_view.summary(launched), columns, note)


def _queue(queue: pl.DataFrame, one: OneTrace) -> list[Grid | Curves]:
    if not queue.height:
        return []
    queues = queue_view.summary(queue).sort("max", descending=True, maintain_order=True)
    grid = table(
        f"Queue length by stream{one.label}",
        queues,
        ["device", "stream", pl.col("time_mean").alias("mean"), "p50", "p75", "max"],
        "Launches that wait on a stream; where the mean is near 0 the device waits for the host.",
    )
    title = f"Launches that wait on each stream{one.label}"
    return [_curves(title, "", queue, ["device", "stream"], queue["length"]), *grid]


def _full(full: pl.DataFrame, one: OneTrace) -> list[Grid]:
    columns: Columns = ["device", "stream", *durations("full", "blocked"), "calls", "ratio"]
    note = (
        "How long so many launches waited that further ones block, and how long calls that launch "
        "onto the stream ran meanwhile; the ratio is of the trace."
    )
    return table(f"Full queues{one.label}", full, columns, note)


def _of_operators(sequences: pl.DataFrame, one: OneTrace) -> list[Grid]:
    columns: Columns = [
        "operator",
        "kernels",
        "count",
        *durations("call_delay", "call_delay_max", "launch_delay", "launch_delay_max", "device"),
    ]
    note = (
        "What each operator launches itself, most frequent first; from its begin to its first "
        "launch, and from there to the begin of what it launched."
    )
    return table(f"Kernels of operators{one.label}", sequences, columns, note)


def _bandwidth(copies: pl.DataFrame, one: OneTrace) -> list[Grid | Curves]:
    if not copies.height:
        return []
    copied = bandwidth_view.summary(copies)
    grid = table(
        f"Bandwidth of copies{one.label}",
        copied,
        [
            "device",
            "kind",
            *(pl.col(name).alias(f"{name}_gb_per_s") for name in ("mean", "min", "p50", "max")),
        ],
        "How fast copies and sets were while they ran, by direction.",
    )
    title = f"Bandwidth of copies{one.label}"
    # In GB/s, bytes in a ns.
    return [
        _curves(title, "bytes_per_s", copies, ["device", "kind"], copies["bandwidth"] * 1e9),
        *grid,
    ]


def _curves(title: str, unit: str, frame: pl.DataFrame, by: list[str], values: pl.Series) -> Curves:
    """Return a thinned curve for each group, at most :data:`_CURVES`: those that reach highest."""
    of_group = frame.select(*by, "time", values.cast(pl.Float64).alias("value"))
    groups = of_group.partition_by(by, maintain_order=True)
    highest = sorted(groups, key=lambda group: -float(group["value"].to_numpy().max()))[:_CURVES]
    if len(highest) < len(groups):
        title += f" (the {_CURVES} highest of {len(groups)})"
    origin = int(frame["time"].to_numpy().min())
    several = frame["device"].n_unique() > 1
    curves = []
    for group in highest:
        time, value = group["time"].to_numpy(), group["value"].to_numpy()
        keep = decimate(time, value, _POINTS)
        device, other = group.select(by).row(0)
        name = f"stream {other}" if by[1] == "stream" else str(other)
        name = f"GPU {device}, {name}" if several else name
        curves.append(Curve(name, (time[keep] - origin) / NS_PER_S, value[keep]))
    return Curves(title, unit, curves)
