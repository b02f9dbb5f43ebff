"""One rank over time: phases, then every sampled metric, on one time axis, with events as marks.

Tests: tests/show/test_shown.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import polars as pl

from haiprof import schema
from haiprof.findings import gpus as gpu_findings
from haiprof.runs import ROLE_NODE, Process
from haiprof.show import hardware, one_gpu, stacks
from haiprof.show.bands import add_bands, closed
from haiprof.show.figures import (
    COLOURS,
    message,
    panel_legends,
    safe,
    seconds_since,
    stacked,
    unit_axis,
    utc,
    utc_clock,
)
from haiprof.show.one_gpu import Gpu
from haiprof.show.overview import known_phases, rank_grids
from haiprof.show.shown import Shown
from haiprof.views.intervals import Times
from haiprof.views.run import steps as step_views
from haiprof.views.run.gpus import parent
from haiprof.views.run.overview import SMALLER, Summary, phase_names
from haiprof.views.run.series import decimate, usable

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

POINTS = 2_000
_SERIES_PER_PANEL = 12
#: What a hundred percent is, where that differs.
_WHOLE = {"CPU of the job": "% of one core", "CPU of the node": "% of all cores"}
_EVENTS = 2_000
#: Which panel a metric belongs to, by how its name begins; the longest that fits. In drawing order.
_FAMILIES = (
    ("CPU of the job", ("proc.cpu.",)),
    ("CPU of the node", ("cpu.",)),
    ("Memory of the job", ("proc.rss.", "proc.mem")),
    ("Memory of the node", ("mem.",)),
    ("IO of the job", ("io.", "cgroup.io_")),
    ("NFS", ("io.nfs_",)),
    ("Disks of the node", ("disk.",)),
    ("Network", ("net.", "tcp.")),
    ("InfiniBand", ("ib.",)),
    ("Allocator of torch", ("torch.",)),
    ("GPU", ("gpu.",)),
    ("Pressure", ("psi.",)),
    ("Control group", ("cgroup.",)),
    ("Memory traffic", ("dram.", "pcie.")),
    ("NUMA", ("numa.", "proc.cpu_node.", "cgroup.memory_node.", "proc.far_fills.")),
    ("Memory traffic of the job", ("proc.mbm_",)),
    ("Power", ("cpu.power.", "dram.power.", "node.power.")),
)


@dataclass(frozen=True, slots=True)
class _Series:
    name: str
    time: Times
    value: npt.NDArray[np.float64]

    @property
    def greatest(self) -> float:
        return float(np.abs(self.value).max())


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    unit: str
    series: list[_Series]
    mode: str = "lines"


def show(analyzer: Analyzer, processes: list[Process], points: int = POINTS) -> Shown:
    """Show one rank: its attempts, if it had several, follow each other on the time axis."""
    own = analyzer.summaries_of(processes)
    label = processes[0].label
    title = label[:1].upper() + label[1:] if len(processes) == 1 else f"Rank {processes[0].rank}"
    where = sorted({f"{p.node}, pid {p.pid}" for p in processes})
    lines = [f"{'; '.join(where)}; began {utc(analyzer.run.created_ns)} UTC"]
    if not analyzer.traced:  # of a deep trace another section tells
        lines += gpu_findings.lines(own, analyzer.run.kernels)
    origin = analyzer.run.created_ns
    on_gpu = [s.process for s in own if s.gpu is not None]
    gpus = [one_gpu.gpu(p.label, origin, analyzer.read_gpu(p)) for p in on_gpu]
    of_stacks, flame_graphs, notes = stacks.graphs(analyzer, processes)
    grids = [*rank_grids(own), *one_gpu.grids(own, gpus), *hardware.phase_grids(analyzer, own)]
    return Shown(
        title,
        [*lines, *notes],
        [*grids, *of_stacks],
        figure(analyzer, processes, own, gpus, points),
        [*flame_graphs, *one_gpu.details(gpus, points)],
    )


def figure(
    analyzer: Analyzer, processes: list[Process], own: list[Summary], gpus: list[Gpu], points: int
) -> go.Figure:
    """Draw the panels of one rank, each series thinned to at most ``points`` points."""
    origin = analyzer.run.created_ns
    events = _events(analyzer, processes)
    panels = [*_pauses(analyzer, processes), *_panels(_samples(analyzer, processes))]
    has_phases = bool(known_phases(own))
    of_gpus = one_gpu.panels(gpus, points)
    titles = [
        *(["Phases of each step" + (" (host)" if of_gpus else "")] if has_phases else []),
        *(panel.title for panel in of_gpus),
        *([_events_title(events)] if events.height else []),
        *(panel.title for panel in panels),
    ]
    heights = [
        *([260] if has_phases else []),
        *(panel.height for panel in of_gpus),
        *([60 + 14 * events["kind"].n_unique()] if events.height else []),
    ]
    heights += [150] * len(panels)
    if not titles:
        return message("No phases, samples or events were recorded for this rank")
    drawing = stacked(titles, heights, gap=56, shared_x=True)
    row = 1
    if has_phases:
        _add_phases(drawing, row, analyzer, own, points)
        row += 1
    for of_gpu in of_gpus:
        of_gpu.add(drawing, row)
        row += 1
    if events.height:
        _add_events(drawing, row, events, origin)
        row += 1
    for panel in panels:
        _add_panel(drawing, row, panel, origin, points)
        row += 1
    drawing.update_xaxes(title_text="seconds since the run began", row=len(titles), col=1)
    drawing.update_xaxes(showticklabels=True)
    drawing.update_layout(hovermode="x unified")
    panel_legends(drawing, len(titles))
    return drawing


def _add_phases(
    drawing: go.Figure,
    row: int,
    analyzer: Analyzer,
    own: list[Summary],
    points: int,
) -> None:
    names = phase_names(own)
    stepped = [s.process for s in own if s.steps]
    bands = [_bands(analyzer, p, names, max(points // len(stepped), 1)) for p in stepped]
    found = pl.concat(bands).sort("start", maintain_order=True)
    add_bands(drawing, row, found, names, analyzer.run.created_ns)


def _bands(analyzer: Analyzer, process: Process, names: list[str], points: int) -> pl.DataFrame:
    """Return the bands of one process; where its last step ends they fall to 0."""
    spans = analyzer.read(process, schema.SPANS, step_views.COLUMNS)
    steps = step_views.steps(spans)
    parts = step_views.parts(spans, steps).with_columns(
        pl.when(pl.col("name").is_in(names)).then("name").otherwise(pl.lit(SMALLER)).alias("name")
    )
    return closed(step_views.bands(parts, steps, names, points), steps)


def _events_title(events: pl.DataFrame) -> str:
    more = sum(max(count - _EVENTS, 0) for count in events["kind"].value_counts()["count"])
    if not more:
        return "Events"
    return f"Events, the first {_EVENTS:,} of each kind ({more:,} more are not drawn)"


def _add_events(drawing: go.Figure, row: int, events: pl.DataFrame, origin: int) -> None:
    for position, kind in enumerate(sorted(events["kind"].unique())):
        some = events.filter(pl.col("kind") == kind).head(_EVENTS)
        times = some["time"].to_numpy()
        texts = [
            f"{clock} UTC {safe(text or '')}"
            for clock, text in zip(utc_clock(times), some["text"], strict=True)
        ]
        drawing.add_trace(
            go.Scatter(
                x=seconds_since(times, origin),
                y=[safe(kind)] * some.height,
                name=safe(kind),
                mode="markers",
                marker={"size": 9, "symbol": "diamond", "color": COLOURS[position % len(COLOURS)]},
                customdata=texts,
                hovertemplate="%{customdata}",
                showlegend=False,
            ),
            row=row,
            col=1,
        )
    drawing.update_yaxes(type="category", row=row, col=1)


def _add_panel(drawing: go.Figure, row: int, panel: _Panel, origin: int, points: int) -> None:
    axis, divisor = unit_axis(panel.unit, max(series.greatest for series in panel.series))
    for position, series in enumerate(panel.series):
        keep = decimate(series.time, series.value, points)
        first = position == 0
        drawing.add_trace(
            go.Scatter(
                x=seconds_since(series.time[keep], origin),
                y=(series.value[keep] / divisor).astype(np.float32),
                name=safe(series.name),
                mode=panel.mode if len(keep) > 1 else "markers",
                line={"width": 1.3, "color": COLOURS[position % len(COLOURS)]},
                customdata=utc_clock(series.time[keep]) if first else None,
                hovertemplate="%{y}" + (" (%{customdata} UTC)" if first else ""),
            ),
            row=row,
            col=1,
        )
    drawing.update_yaxes(axis, row=row, col=1)


def _samples(analyzer: Analyzer, processes: list[Process]) -> pl.DataFrame:
    columns = ("time", "metric", "instance", "value", "flags")
    nodes = {p.node for p in processes}
    folders = [
        *processes,
        *(p for p in analyzer.run.processes if p.role == ROLE_NODE and p.node in nodes),
    ]
    own = analyzer.gpu_instances(processes)
    frames = []
    for p in folders:
        of_node = p.role == ROLE_NODE
        read = analyzer.read(p, schema.SAMPLES, columns).with_columns(
            pl.lit(of_node).alias("of_node"), pl.col("metric", "instance").cast(pl.String)
        )
        # Each node folder names its GPUs itself: gpu0 of another container is another one.
        frames.append(_of_gpus(read, own.get(p.folder.name, [])) if of_node and own else read)
    found = usable(pl.concat(frames))
    # The node's folder has these of the launched command, of which the rank is a part itself.
    mine = found.filter(pl.col("of_node").not_())["metric"].unique()
    return found.filter((pl.col("of_node") & pl.col("metric").is_in(mine.implode())).not_())


def _of_gpus(samples: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Keep, of what a node sampled of GPUs, that of those with these names."""
    # A part of a GPU has no power or temperature of its own: those of the whole are shown.
    own = pl.col("instance").is_in(names)
    sampled = samples.filter(own, pl.col("value").is_finite())["metric"].unique()
    whole = pl.col("instance").is_in([parent(name) for name in names]) & ~pl.col("metric").is_in(
        sampled.implode()
    )
    return samples.filter(pl.col("metric").str.starts_with("gpu.").not_() | own | whole)


def _events(analyzer: Analyzer, processes: list[Process]) -> pl.DataFrame:
    columns = ("time", "kind", "text")
    events = pl.concat([analyzer.read(p, schema.EVENTS, columns) for p in processes])
    return events.with_columns(pl.col("kind").cast(pl.String)).sort("time")


def _pauses(analyzer: Analyzer, processes: list[Process]) -> list[_Panel]:
    """Return a panel of the pauses that Python's garbage collection drawing, if there are any."""
    columns, keep = ("start", "duration", "name"), {"category": ("gc",)}
    spans = [analyzer.read(p, schema.SPANS, columns, keep) for p in processes]
    found = pl.concat(spans).sort("start")
    if not found.height:
        return []
    series = [
        _Series(str(name), rows["start"].to_numpy(), rows["duration"].to_numpy() / 1e6)
        for (name,), rows in found.group_by("name", maintain_order=True)
    ]
    shown = sorted(series, key=lambda s: s.name)[:_SERIES_PER_PANEL]
    return [_Panel("Pauses for Python's garbage collection (ms)", "ms", shown, "markers")]


def _panels(samples: pl.DataFrame) -> list[_Panel]:
    """Group series by what they measure and in which unit."""
    groups: dict[tuple[int, str, bool, str], list[_Series]] = {}
    whole = set(samples.filter(pl.col("instance").is_null())["metric"].unique())
    for (metric, instance), frame in samples.group_by("metric", "instance", maintain_order=True):
        position, family = _family(str(metric))
        thing, _, unit = str(metric).rpartition(".")
        name = thing if instance is None else f"{thing} · {instance}"
        # Where a metric has a value for the whole, its parts (the cores of a CPU) would bury it.
        is_part = instance is not None and metric in whole
        ordered = frame.sort("time")
        series = _Series(name, ordered["time"].to_numpy(), ordered["value"].to_numpy())
        groups.setdefault((position, family, is_part, unit), []).append(series)
    panels = []
    order = sorted(groups, key=lambda key: (*key[:3], key[3] != "percent", key[3]))
    for key in order:
        (_, family, is_part, unit), found = key, groups[key]
        written = unit.replace("per_s", "/s").replace("_/s", "/s").replace("percent", "%")
        if unit == "percent":
            written = _WHOLE.get(family, written)
        greatest_first = sorted(found, key=lambda s: (-s.greatest, s.name))
        shown = sorted(greatest_first[:_SERIES_PER_PANEL], key=lambda s: s.name)
        title = f"{family}{', by part' if is_part else ''} ({written})"
        if len(shown) < len(found):
            title += f", the {len(shown)} greatest of {len(found)} series"
        panels.append(_Panel(safe(title), unit, shown))
    return panels


def _family(metric: str) -> tuple[int, str]:
    fits = [
        (len(beginning), position, family)
        for position, (family, beginnings) in enumerate(_FAMILIES)
        for beginning in beginnings
        if metric.startswith(beginning)
    ]
    if not fits:
        return len(_FAMILIES), metric.split(".")[0]
    _, position, family = max(fits)
    return position, family
