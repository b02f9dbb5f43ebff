"""What one rank did on its GPUs: device phases, graphs, how busy, one step in lanes, kernels.

Tests: tests/show/test_gpu.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import plotly.graph_objects as go
import polars as pl

from haiprof.common.numbers import milliseconds
from haiprof.show.bands import add_bands, closed
from haiprof.show.colours import COLOURS, WORK_COLOURS, phase_colour
from haiprof.show.figures import finish, safe, seconds_since, unit_axis, utc_clock
from haiprof.show.grid import Grid, frame_grid
from haiprof.views.kernel_names import short_name
from haiprof.views.run import busy as busy_views
from haiprof.views.run import device_steps as device_views
from haiprof.views.run import gpu_use as use_views
from haiprof.views.run import graphs as graph_views
from haiprof.views.run import kernels as kernel_views
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run import steps as step_views
from haiprof.views.run.overview import BETWEEN, Summary, device_phase_names, phase_table
from haiprof.views.run.series import decimate
from haiprof.views.run.timeline import PHASES, Timeline, typical_step

if TYPE_CHECKING:
    from haiprof.answers.gpu import GpuTables

_KERNELS = 20
_GRAPHS = 20
_GRAPH_SERIES = 8
#: Panels of device phases and of busy shares: a process with more devices is seldom.
_DEVICES = 8
_ACTIVITIES = ("kernel", "communication", "memcpy", "memset")


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one process recorded of its GPUs; ``origin`` is when the run began, ns UTC.

    ``recorded_steps`` are those in which kernels were recorded.
    """

    label: str
    origin: int
    tables: GpuTables
    recorded_steps: pl.DataFrame


def gpu(label: str, origin: int, tables: GpuTables) -> Gpu:
    """Make what the functions here draw."""
    on_host = recorded_views.host_steps(tables.spans)
    found = recorded_views.all_windows(tables.typical, tables.phases, on_host, tables.kernels)
    return Gpu(label, origin, tables, found)


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the rank's figure; ``add`` draws it into a row."""

    title: str
    height: int
    add: Callable[[go.Figure, int], None]


def grids(own: list[Summary], gpus: list[Gpu]) -> list[Grid]:
    """Return the tables of device phases, graphs and kernels; the last two of each process."""
    grids = []
    uses = [s.gpu for s in own if s.gpu is not None]
    phases = phase_table(use_views.added(uses))
    if phases.height:
        note = "On the main stream, idle time included."
        if "busy_share" in phases.columns:
            note += " Busy and idle are parts of the phase in the steps with kernels recorded."
        grids.append(frame_grid("Device phases, a step", phases, note))
    for gpu in gpus:
        of = f" ({gpu.label})" if len(gpus) > 1 else ""
        if gpu.tables.replays.height:
            grids.append(_graphs(gpu.tables, f"CUDA graphs{of}"))
        totals = kernel_views.totals(gpu.tables.kernels, gpu.tables.phases)
        if totals.height:
            grids.append(_kernels(totals, gpu.tables, f"Kernels and copies{of}"))
    return grids


def _graphs(tables: GpuTables, title: str) -> Grid:
    found = graph_views.replays(tables.replays, recorded_views.host_steps(tables.spans))
    shown = found.head(_GRAPHS)
    note = (
        "Each replay from its begin to its end on its stream; a share is one of the steps with it."
    )
    if found.height > shown.height:
        note = f"The {shown.height} of {found.height} graphs with most time. {note}"
    if tables.graphs:
        note += " Kernels in graphs were not recorded: --graphs kernels records them."
    table = pl.DataFrame(
        {
            "graph": shown["name"].cast(pl.String),
            "GPU": shown["device"] if found["device"].n_unique() > 1 else [None] * shown.height,
            "replays": shown["replays"],
            "total_ms": shown["total"] / 1e6,
            "step_share": shown["share"],
            "mean_ms": shown["mean"] / 1e6,
            "p50_ms": shown["p50"] / 1e6,
            "p95_ms": shown["p95"] / 1e6,
            "max_ms": shown["max"] / 1e6,
        }
    )
    return frame_grid(title, table, note)


def _kernels(totals: pl.DataFrame, tables: GpuTables, title: str) -> Grid:
    shown = totals.head(_KERNELS)
    steps = int(tables.intervals["steps"].fill_null(0).sum())
    note = f"Of the time in which kernels were recorded: {steps} whole steps."
    if tables.graphs:
        note += (
            " It ended when the job began to replay CUDA graphs: the steps after it are unlike it."
        )
    if totals.height > shown.height:
        note = f"The {shown.height} of {totals.height} names with most time. {note}"
    table = pl.DataFrame(
        {
            "name": [None if n is None else short_name(n) for n in shown["demangled"]],
            "calls": shown["calls"],
            "total_ms": shown["total"] / 1e6,
            "of the time_share": shown["share"],
            "mean_ms": shown["mean"] / 1e6,
            "min_ms": shown["min"] / 1e6,
            "max_ms": shown["max"] / 1e6,
            "phases": [", ".join(phases) or None for phases in shown["phases"]],
        }
    )
    return frame_grid(title, table, note)


def panels(gpus: list[Gpu], points: int) -> list[Panel]:
    """Return the panels over time: device phases, replays, how busy it was in recorded steps."""
    panels = [
        _phases_panel(bands, of, gpus[0].origin) for of, bands in device_bands(gpus, points).items()
    ]
    if any(gpu.tables.replays.height for gpu in gpus):
        panels.append(_replays_panel(gpus, points))
    busy = [
        busy_views.busy_by_step(gpu.tables.kernels, gpu.recorded_steps)
        for gpu in gpus
        if gpu.tables.intervals.height
    ]
    intervals = pl.concat(busy).filter(pl.col("duration") > 0) if busy else None
    if intervals is not None and intervals.height:
        panels.append(_busy_panel(intervals.sort("start"), gpus[0].origin, points))
    return panels


def _replays_panel(gpus: list[Gpu], points: int) -> Panel:
    """Draw how long each replay took, of the graphs with most time."""
    replays = pl.concat([gpu.tables.replays for gpu in gpus]).sort("start")
    several = replays["device"].n_unique() > 1
    busiest = (
        replays.group_by("device", pl.col("name").cast(pl.String))
        .agg(pl.col("duration").sum())
        .sort("duration", "name", descending=[True, False])
        .head(_GRAPH_SERIES)
    )

    def add(drawing: go.Figure, row: int) -> None:
        for place, (device, name, _) in enumerate(busiest.iter_rows()):
            mine = replays.filter(
                pl.col("device") == device, pl.col("name").cast(pl.String) == name
            )
            start, lasted = mine["start"].to_numpy(), mine["duration"].to_numpy() / 1e6
            keep = decimate(start, lasted, max(points // busiest.height, 4))
            drawing.add_trace(
                go.Scatter(
                    x=seconds_since(start[keep], gpus[0].origin),
                    y=lasted[keep].astype(np.float32),
                    name=safe(f"{name} (GPU {device})" if several else name),
                    mode="markers",
                    marker={"size": 4, "color": COLOURS[place % len(COLOURS)]},
                    hovertemplate="%{y:.3g} ms",
                ),
                row=row,
                col=1,
            )
        axis, _ = unit_axis("ms")
        drawing.update_yaxes(axis, row=row, col=1)

    title = "Replays of CUDA graphs (ms)"
    total = replays.select("device", "name").n_unique()
    if total > busiest.height:
        title += f", the {busiest.height} graphs with most time of {total}"
    return Panel(title, 150, add)


class Bands(NamedTuple):
    """Device phases of each step over time: their names, and of each process rows and their end."""

    names: list[str]
    parts: list[tuple[pl.DataFrame, int]]


def device_bands(gpus: list[Gpu], points: int) -> dict[str, Bands]:
    """Return the device phases by device, as its title names it: nothing, or ``of GPU 1``."""
    steps = [(gpu, device_views.device_steps(gpu.tables.phases)) for gpu in gpus]
    devices = sorted({d for _, found in steps for d in found["device"].unique()})
    made = {}
    for device in devices[:_DEVICES]:
        of = f" of GPU {device}" if len(devices) > 1 else ""
        found = [(gpu, s.filter(pl.col("device") == device)) for gpu, s in steps]
        made[of] = _bands([(g, s) for g, s in found if s.height], points)
    return made


def _bands(found: list[tuple[Gpu, pl.DataFrame]], points: int) -> Bands:
    bands = []
    names: list[str] = []
    for gpu, steps in found:
        phases = gpu.tables.phases.filter(pl.col("group").is_in(steps["group"].implode()))
        use = use_views.Use()
        parts = _parts(phases, steps)
        for name, ns in parts.group_by("name").agg(pl.col("duration").sum()).iter_rows():
            use.phase_ns[name] = ns
        use.phase_ns.pop(BETWEEN, None)
        names += [name for name in device_phase_names([use]) if name not in names]
        timed = steps.with_columns((pl.col("end") - pl.col("start")).alias("duration"))
        shown = [*device_phase_names([use]), BETWEEN]
        share = max(points // len(found), 1)
        bands.append((step_views.bands(parts, timed, shown, share), int(timed["end"][-1])))
    return Bands([*names, BETWEEN], bands)


def _phases_panel(found: Bands, of: str, origin: int) -> Panel:
    parts = [closed(rows, end) for rows, end in found.parts]
    everything = pl.concat(parts).sort("start", maintain_order=True)

    def add(drawing: go.Figure, row: int) -> None:
        add_bands(drawing, row, everything, found.names, origin)

    return Panel(f"Device phases of each step{of} (main stream, idle time included)", 220, add)


def _parts(phases: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Split each step of a device into its phases and what lies between them."""
    rows = steps.with_row_index("row").select(
        "group", "row", (pl.col("end") - pl.col("start")).alias("whole")
    )
    named = phases.select(
        "group", pl.col("name").cast(pl.String), (pl.col("end") - pl.col("start")).alias("duration")
    ).join(rows, on="group")
    rest = rows.join(
        named.group_by("row").agg(pl.col("duration").sum()), on="row", how="left"
    ).select(
        "row",
        pl.lit(BETWEEN).alias("name"),
        (pl.col("whole") - pl.col("duration").fill_null(0)).alias("duration"),
    )
    return pl.concat([named.select("row", "name", "duration"), rest])


def _busy_panel(intervals: pl.DataFrame, origin: int, points: int) -> Panel:
    devices = intervals["device"].unique().sort().to_list()[:_DEVICES]

    def add(drawing: go.Figure, row: int) -> None:
        place = 0
        for device in devices:
            mine = intervals.filter(pl.col("device") == device)
            of = f" (GPU {device})" if len(devices) > 1 else ""
            for name, column in (("busy", "busy"), ("communication alone", "exposed")):
                if column == "exposed" and not mine["exposed"].sum():
                    continue
                _add_shares(drawing, row, mine, column, (name + of, place), origin, points)
                place += 1
        axis = {"tickformat": ".0%", "range": [0, 1.02]}
        drawing.update_yaxes(axis, row=row, col=1)

    return Panel("How busy the GPU was in the steps with kernels recorded", 150, add)


def _add_shares(
    drawing: go.Figure,
    row: int,
    steps: pl.DataFrame,
    column: str,
    look: tuple[str, int],
    origin: int,
    points: int,
) -> None:
    share = (steps[column] / steps["duration"]).to_numpy()
    start = steps["start"].to_numpy()
    keep = decimate(start, share, max(points, 4))
    labels = [
        f"step {step}, {clock} UTC"
        for step, clock in zip(steps["step"].to_numpy()[keep], utc_clock(start[keep]), strict=True)
    ]
    drawing.add_trace(
        go.Scatter(
            x=seconds_since(start[keep], origin),
            y=share[keep].astype(np.float32),
            name=safe(look[0]),
            mode="markers",
            marker={"size": 5, "color": COLOURS[look[1] % len(COLOURS)]},
            customdata=labels if look[1] == 0 else None,
            hovertemplate="%{y:.1%}" + (" (%{customdata})" if look[1] == 0 else ""),
        ),
        row=row,
        col=1,
    )


def details(gpus: list[Gpu], points: int) -> list[go.Figure]:
    """Return the lanes of one recorded step, of the last process that recorded any."""
    for gpu in reversed(gpus):
        if not gpu.tables.intervals.height:
            continue
        tables = gpu.tables
        sure = tables.phases.filter("sure")
        found = typical_step(tables.kernels, sure, gpu.recorded_steps, points)
        if found is not None and found.shapes.height:
            return [_lanes(found)]
    return []


def _lanes(found: Timeline) -> go.Figure:
    devices = found.shapes["device"].n_unique()
    lane = pl.col("lane")
    named = pl.format("GPU {}: {}", "device", lane) if devices > 1 else lane
    shapes = found.shapes.with_columns(named.alias("label"))
    order = (
        shapes.group_by("device", "label", (lane != PHASES).alias("below"))
        .agg((pl.col("end") - pl.col("start")).sum().alias("ns"))
        .sort("device", "below", "ns", "label", descending=[False, False, True, False])["label"]
        .to_list()
    )
    drawing = go.Figure()
    for (what, colour), rows in _coloured(shapes):
        start = rows["start"].to_numpy()
        length = (rows["end"] - rows["start"]).to_numpy()
        drawing.add_trace(
            go.Bar(
                base=np.round((start - found.start) / 1e6, 4),
                x=np.round(length / 1e6, 4),
                y=[safe(label) for label in rows["label"]],
                name=safe(what),
                orientation="h",
                marker_color=colour,
                marker_line_width=0,
                customdata=[_hover_text(row) for row in rows.iter_rows(named=True)],
                hovertemplate="%{customdata}",
            )
        )
    drawing.update_layout(
        title={
            "text": f"Step {found.step} on the GPU: {milliseconds(found.duration)}, the median of "
            "the steps with kernels recorded",
            "font": {"size": 13},
            "x": 0,
            "xref": "paper",
        },
        barmode="overlay",
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"},
    )
    axis, _ = unit_axis("ms")
    whole = {"range": [0, found.duration / 1e6]}
    drawing.update_xaxes(title_text="since the step began there", **axis, **whole)
    drawing.update_yaxes(
        type="category", categoryorder="array", categoryarray=[safe(o) for o in reversed(order)]
    )
    return finish(drawing, 170 + 34 * len(order))


def _coloured(shapes: pl.DataFrame) -> list[tuple[tuple[str, str], pl.DataFrame]]:
    """Return what is drawn in one colour: each device phase, and each kind of activity."""
    phases = shapes.filter(pl.col("what") == "phase")
    parts = [
        ((name, phase_colour(name, place)), rows)
        for place, ((name,), rows) in enumerate(phases.group_by("name", maintain_order=True))
    ]
    for what in _ACTIVITIES:
        rows = shapes.filter(pl.col("what") == what)
        if rows.height:
            parts.append(((what, WORK_COLOURS[what]), rows))
    return parts


def _hover_text(row: dict[str, object]) -> str:
    lasted = milliseconds(int(str(row["end"])) - int(str(row["start"])))
    name = safe(str(row["name"] or "unknown"))
    more = int(str(row["count"])) - 1
    return f"{name}: {lasted}" if not more else f"{name} and {more} more: {lasted}"
