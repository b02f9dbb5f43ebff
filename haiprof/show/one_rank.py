"""One rank over time: phases, then every sampled metric, on one time axis, with events as marks.

Tests: tests/show/test_shown.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
import polars as pl

from haiprof.common.numbers import utc
from haiprof.findings import gpus as gpu_findings
from haiprof.runs import Process
from haiprof.show import hardware, one_gpu, stacks
from haiprof.show import panels as panels_of
from haiprof.show.bands import add_bands, closed
from haiprof.show.colours import COLOURS
from haiprof.show.figures import (
    message,
    panel_legends,
    safe,
    seconds_since,
    stacked,
    unit_axis,
    utc_clock,
)
from haiprof.show.one_gpu import Gpu
from haiprof.show.overview import known_phases, rank_grids
from haiprof.show.panels import Panel
from haiprof.show.shown import Shown
from haiprof.views.run.overview import Summary, phase_names
from haiprof.views.run.series import decimate

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

POINTS = 2_000
_EVENTS = 2_000


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
    events = panels_of.events(analyzer, processes)
    panels = [
        *panels_of.pauses(analyzer, processes),
        *panels_of.panels(panels_of.samples(analyzer, processes)),
    ]
    has_phases = bool(known_phases(own))
    of_gpus = one_gpu.panels(gpus, points)
    titles = [
        *(["Phases of each step" + (" (host)" if of_gpus else "")] if has_phases else []),
        *(panel.title for panel in of_gpus),
        *([_events_title(events)] if events.height else []),
        *(safe(panel.title) for panel in panels),
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
    share = max(points // len(stepped), 1)
    bands = [closed(*panels_of.step_bands(analyzer, p, names, share)) for p in stepped]
    found = pl.concat(bands).sort("start", maintain_order=True)
    add_bands(drawing, row, found, names, analyzer.run.created_ns)


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


def _add_panel(drawing: go.Figure, row: int, panel: Panel, origin: int, points: int) -> None:
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
