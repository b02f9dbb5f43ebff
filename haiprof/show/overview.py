"""All ranks side by side: tables of ranks and nodes, step times, phase shares.

Tests: tests/show/test_shown.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
import polars as pl

from haiprof.findings import clock as clock_findings
from haiprof.findings import gpus as gpu_findings
from haiprof.findings import hardware as hardware_findings
from haiprof.findings import thinned as thinned_findings
from haiprof.show import collectives, efficiency, hardware
from haiprof.show.colours import COLOURS, phase_colour
from haiprof.show.figures import message, panel_legends, safe, seconds_since, stacked
from haiprof.show.grid import Grid, frame_grid
from haiprof.show.shown import Shown
from haiprof.views.run import imbalance
from haiprof.views.run.overview import (
    BETWEEN,
    Summary,
    device_phase_names,
    device_table,
    gpu_table,
    heat_map,
    is_pressure,
    node_table,
    phase_names,
    rank_table,
    slowest_first,
)
from haiprof.views.run.steps import OTHER

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: More ranks than this are not drawn individually: a heat map, and the extremes.
MANY_RANKS = 64
_HEAT_ROWS = 512
#: Half the thinned points of a series: fewer would leave holes where steps were.
_HEAT_BINS = 96
_SHARE_BARS = 24
_LEGEND_NAMES = 8
_MACHINE_UNITS = ("_percent", "_bytes", "_bytes_per_s", "_watts")


def show(analyzer: Analyzer) -> Shown:
    """Show all ranks and nodes of a run side by side."""
    ranks, nodes = analyzer.summaries()
    links = analyzer.events(kind=hardware_findings.LINK_EVENTS)
    # A deep trace has another section.
    recorded = [] if analyzer.traced else gpu_findings.lines(ranks, analyzer.run.kernels)
    sentences, used = efficiency.show(analyzer)
    return Shown(
        "Overview",
        [
            *sentences,
            *_looked_at(analyzer),
            *thinned_findings.lines(analyzer.run.processes),
            *recorded,
            *imbalance.lines(analyzer.imbalance()),
            *(
                clock_findings.lines(analyzer.clock())
                if len({s.process.node for s in ranks}) > 1
                else []
            ),
            *hardware_findings.lines(ranks, nodes, links),
        ],
        [
            *rank_grids(ranks),
            *used,
            *([] if analyzer.traced else collectives.grids(analyzer)),
            *node_grids(nodes),
            *hardware.grids(ranks, nodes),
            *hardware.phase_grids(analyzer, slowest_first([s for s in ranks if s.steps])[:1]),
        ],
        figure(ranks, analyzer.run.created_ns),
    )


def _looked_at(analyzer: Analyzer) -> list[str]:
    """Say which ranks findings rest on, where those are not all."""
    every, some = len(analyzer.ranks), len(analyzer.in_detail().ranks)
    if some == every:
        return []
    return [
        f"Findings and collectives are of {some} of the {every:,} ranks: those that failed first, "
        "those that are late, the slowest, the fastest, and others evenly spread"
    ]


def rank_grids(ranks: list[Summary]) -> list[Grid]:
    """Return the tables of ranks: their steps, and their process trees."""
    if not ranks:
        return []
    shown = ranks
    named = known_phases(ranks)
    notes = ["Shares are of the time of all steps."] if named else []
    if len(ranks) > MANY_RANKS:
        shown = _spread(ranks)
        notes.append(f"Of {len(ranks)} ranks, {len(shown)} from the slowest to the fastest.")
    table = rank_table(shown)
    if not named:
        table = table.drop(f"{OTHER}_share", strict=False)
    if _one_each(shown):
        table = table.drop("pid", "attempt")
    machine = [c for c in table.columns if c.endswith(_MACHINE_UNITS)]
    grids = [frame_grid("Steps", table.drop(machine), " ".join(notes))]
    if machine:
        who = [c for c in table.columns if c in ("node", "rank", "pid")]
        rows = table.select(who + machine)
        grids.append(frame_grid("Process tree", rows, "CPU: 100 % is one core."))
    return [*grids, *gpu_grids(shown)]


def known_phases(ranks: list[Summary]) -> list[str]:
    """Return the phases that occur; none if no part of any step is known."""
    names = phase_names(ranks)
    return names if names != [OTHER] else []


def gpu_grids(ranks: list[Summary]) -> list[Grid]:
    """Return the tables of ranks' GPUs: device times, and what was sampled of them."""
    grids = []
    times, sampled = device_table(ranks), gpu_table(ranks)
    if times.height:
        note = "On the GPU's main stream, idle time included; shares are of all steps there."
        if "busy_share" in times.columns:
            note += " Busy, and communication alone (exposed), are of the recorded steps."
        grids.append(frame_grid("Steps on the GPU", _named(times, ranks), note))
    if sampled.height:
        note = "Of several GPUs memory and power are added, percentages averaged."
        several = any(len(s.gpu_stats) > 1 for s in ranks)
        grids.append(frame_grid("GPUs", _named(sampled, ranks), note if several else ""))
    return grids


def _named(table: pl.DataFrame, ranks: list[Summary]) -> pl.DataFrame:
    return table.drop("pid", strict=False) if _one_each(ranks) else table


def node_grids(nodes: list[Summary]) -> list[Grid]:
    """Return the tables of nodes: their load, and how much their tasks were stalled."""
    shown = [node for node in nodes if node.stats]
    if not shown:
        return []
    note = ""
    if len(shown) > MANY_RANKS:
        note = f"Of {len(shown)} nodes, the {MANY_RANKS} with the busiest CPUs."
        shown = sorted(shown, key=_cpu_use, reverse=True)[:MANY_RANKS]
    table = node_table(shown)
    if any(c.startswith("net_busiest") for c in table.columns):
        note = f"{note} Net: the interface with the most traffic.".lstrip()
    held_up = [c for c in table.columns if is_pressure(c)]
    grids = [frame_grid("Nodes", table.drop(held_up), note)]
    if held_up:
        explanation = "How much of the time tasks were stalled, on average over the run."
        if any("throttled" in c and c.endswith("percent") for c in held_up):
            explanation += " Throttled is no share of it: 100 % is one core throttled all the time."
        grids.append(frame_grid("Nodes: pressure", table.select("node", *held_up), explanation))
    return grids


def figure(ranks: list[Summary], origin_ns: int) -> go.Figure:
    """Draw step times, and how each rank's steps divide into phases."""
    stepped = [s for s in ranks if s.steps]
    if not stepped:
        return message("No step was recorded")
    many = len(stepped) > MANY_RANKS
    bars = _spread(stepped) if many else stepped
    on_device = [s for s in bars if s.gpu is not None and s.gpu.step_ns]
    on_host = bool(known_phases(stepped))
    of_host = "Where the step time goes" + (" (host)" if on_device else "")
    titles = [
        "Step time",
        *(["Step time of all ranks over the run"] if many else []),
        *([of_host] if on_host else []),
        *(["Where the time of the GPU's main stream goes"] if on_device else []),
    ]
    heights = [300, *([380] if many else []), *([70 + 26 * len(bars)] if on_host else [])]
    heights += [70 + 26 * len(on_device)] if on_device else []
    drawing = stacked(titles, heights, gap=90)
    _step_times(drawing, _extremes(stepped) if many else {s.process.label: s for s in stepped})
    if many:
        _heat(drawing, stepped, origin_ns)
    if on_host:
        _shares(drawing, bars, 3 if many else 2)
    if on_device:
        _device_shares(drawing, on_device, len(titles))
    drawing.update_layout(barmode="stack")
    panel_legends(drawing, len(titles))
    return drawing


def _step_times(figure: go.Figure, lines: dict[str, Summary]) -> None:
    for position, (label, summary) in enumerate(lines.items()):
        figure.add_trace(
            go.Scatter(
                x=summary.trend_step.astype(np.int32),
                y=(summary.trend_ns / 1e6).astype(np.float32),
                name=safe(label),
                mode="lines",
                line={"width": 1.2, "color": COLOURS[position % len(COLOURS)]},
                hovertemplate="step %{x}: %{y:.4g} ms",
                showlegend=1 < len(lines) <= _LEGEND_NAMES,
            ),
            row=1,
            col=1,
        )
    figure.update_xaxes(title_text="step", row=1, col=1)
    figure.update_yaxes(rangemode="tozero", ticksuffix=" ms", row=1, col=1)


def _heat(figure: go.Figure, stepped: list[Summary], origin_ns: int) -> None:
    usual = sorted(len(s.trend_ns) for s in stepped)[len(stepped) // 2]
    bins = max(1, min(_HEAT_BINS, usual // 2))
    low, high = figure.get_subplot(2, 1).yaxis.domain
    labels, starts, values = heat_map(stepped, _HEAT_ROWS, bins)
    figure.add_trace(
        go.Heatmap(
            x=seconds_since(starts.astype(np.int64), origin_ns),
            y=[safe(label) for label in labels],
            z=values.astype(np.float32),
            colorscale="Viridis",
            colorbar={"title": "ms", "len": high - low, "y": low, "yanchor": "bottom"},
            hovertemplate="%{y}, %{x} s: %{z:.4g} ms<extra></extra>",
        ),
        row=2,
        col=1,
    )
    figure.update_xaxes(title_text="seconds since the run began", row=2, col=1)
    figure.update_yaxes(autorange="reversed", type="category", nticks=16, row=2, col=1)


def _shares(figure: go.Figure, bars: list[Summary], row: int) -> None:
    labels = [safe(s.process.label) for s in bars]
    parts = {
        name: [(s.phase_ns.get(name, 0), s.step_ns, s.steps) for s in bars]
        for name in phase_names(bars)
    }
    _stacked_bars(figure, labels, parts, row)


def _device_shares(figure: go.Figure, bars: list[Summary], row: int) -> None:
    labels = [safe(s.process.label) for s in bars]
    uses = [s.gpu for s in bars if s.gpu is not None]
    parts = {
        name: [(u.phase_ns.get(name, 0), u.step_ns, u.steps) for u in uses]
        for name in device_phase_names(uses)
    }
    parts[BETWEEN] = [(u.between_ns, u.step_ns, u.steps) for u in uses]
    _stacked_bars(figure, labels, parts, row)


def _stacked_bars(
    figure: go.Figure, labels: list[str], parts: dict[str, list[tuple[int, int, int]]], row: int
) -> None:
    """Draw shares; a part is (its time, the time of all steps, their number) for each bar."""
    for position, (name, values) in enumerate(parts.items()):
        figure.add_trace(
            go.Bar(
                x=[ns / whole if whole else None for ns, whole, _ in values],
                y=labels,
                name=safe(name),
                orientation="h",
                marker_color=phase_colour(name, position),
                customdata=[ns / steps / 1e6 for ns, _, steps in values],
                hovertemplate="%{x:.1%}: %{customdata:.4g} ms a step",
            ),
            row=row,
            col=1,
        )
    figure.update_xaxes(tickformat=".0%", range=[0, 1], row=row, col=1)
    figure.update_yaxes(autorange="reversed", type="category", automargin=True, row=row, col=1)


def _extremes(stepped: list[Summary]) -> dict[str, Summary]:
    order = slowest_first(stepped)
    chosen = {"slowest": order[0], "median": order[len(order) // 2], "fastest": order[-1]}
    return {f"{what}: {s.process.label}": s for what, s in chosen.items()}


def _spread(ranks: list[Summary]) -> list[Summary]:
    order = slowest_first(ranks)
    picked = sorted(
        {round(i) for i in np.linspace(0, len(order) - 1, min(_SHARE_BARS, len(order)))}
    )
    return [order[i] for i in picked]


def _cpu_use(node: Summary) -> float:
    stat = node.stats.get("cpu.util.percent")
    return stat.mean if stat else 0.0


def _one_each(ranks: list[Summary]) -> bool:
    numbers = [s.process.rank for s in ranks]
    return len(set(numbers)) == len(numbers)
