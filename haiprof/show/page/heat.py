"""Which rank: the step times of all ranks side by side, and tables of ranks.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from haiprof import schema
from haiprof.findings import clock as clock_findings
from haiprof.findings import gpus as gpu_findings
from haiprof.findings import hardware as hardware_findings
from haiprof.show import collectives, efficiency, hardware
from haiprof.show.colours import phase_colour
from haiprof.show.grid import cut
from haiprof.show.overview import MANY_RANKS, known_phases, rank_grids
from haiprof.show.page import document
from haiprof.show.page.context import Chosen, Context, table
from haiprof.show.page.earlier import Earlier
from haiprof.views.run import imbalance
from haiprof.views.run.overview import (
    BETWEEN,
    Summary,
    device_phase_names,
    phase_names,
    slowest_first,
)
from haiprof.views.run.series import decimate

#: Cells of the heat map: of more steps, neighbours share a cell, which has the longest of them.
_CELLS: Final = 600_000
_MOST_STEPS: Final = 1_500
_MOST_ROWS: Final = 2_048
_LINES: Final = 8
_BARS: Final = 64


def sections(found: Context, before: Earlier | None) -> list[document.Section]:
    """Return what compares ranks."""
    analyzer = found.analyzer
    stepped = [s for s in found.ranks if s.steps]
    made: list[document.Section] = []
    links = analyzer.events(kind=hardware_findings.LINK_EVENTS)
    sentences, used = efficiency.show(analyzer)
    several = len({s.process.node for s in found.ranks}) > 1
    lines = [
        *sentences,
        *gpu_findings.lines(found.ranks, analyzer.run.kernels),
        *imbalance.lines(analyzer.imbalance()),
        *(clock_findings.lines(analyzer.clock()) if several else []),
        *hardware_findings.lines(found.ranks, found.nodes, links),
    ]
    if len({s.rank for s in found.ranks}) > len(found.chosen):
        lines.append(
            f"Of {len(found.ranks)} ranks, {len(found.chosen)} can be chosen for sections of their "
            "own: those that findings name, and the slowest"
        )
    if lines:
        text = [cut(line) for line in lines]
        made.append({"kind": "text", "id": "overview", "title": "Overview", "lines": text})
    if stepped:
        made.append(_heat(found))
        made.append(_by_number(found, stepped, before))
        made += _shares(stepped)
    for position, grid in enumerate([*rank_grids(found.ranks), *used]):
        made.append(table(grid, f"ranks-{position}", "Ranks"))
    for position, grid in enumerate(collectives.grids(analyzer)):
        made.append(table(grid, f"collectives{f'-{position}' if position else ''}", "Collectives"))
    for chosen in found.chosen:
        made += _of_rank(found, chosen)
    return made


def _heat(found: Context) -> document.Heat:
    steps = found.analyzer.steps().select("node", "rank", "pid", "step", "start", "duration")
    number = pl.col("step").cast(pl.Int64)
    # Steps of inference are numbered from far above those of a training.
    steps = steps.filter(number.is_not_null()).with_columns(
        pl.when(number >= schema.INFERENCE)
        .then(number - schema.INFERENCE)
        .otherwise(number)
        .alias("step")
    )
    who = ["rank", "node", "pid"]
    rows = steps.select(who).unique().sort(who, nulls_last=True).with_row_index("row")
    shared = -(-rows.height // _MOST_ROWS)
    count = -(-rows.height // shared) if rows.height else 0
    first = int(steps["step"].to_numpy().min()) if steps.height else 0
    last = int(steps["step"].to_numpy().max()) if steps.height else 0
    most = max(1, min(_MOST_STEPS, _CELLS // max(count, 1)))
    width = -(-(last - first + 1) // most)
    bins = (last - first) // width + 1
    cells = (
        steps.join(rows, on=who, nulls_equal=True)
        .group_by(
            (pl.col("row").cast(pl.Int64) // shared).alias("row"),
            ((pl.col("step") - first) // width).alias("bin"),
        )
        .agg(pl.col("duration").max())
    )
    values = np.full(count * bins, np.nan)
    places = cells["row"].to_numpy() * bins + cells["bin"].to_numpy()
    values[places] = cells["duration"].to_numpy() / 1e6
    found.columns.next_blob()
    section: document.Heat = {
        "kind": "heat",
        "id": "heat",
        "title": "Step time by rank and step",
        "rows": _heat_rows(found, rows, shared),
        "steps": found.columns.integers(first + np.arange(bins) * width),
        "values": found.columns.levels(values),
        "unit": "ms",
    }
    more = []
    if width > 1:
        more.append(f"Each cell is the longest of {width} steps.")
    if shared > 1:
        more.append(f"Each row is the slowest of {shared} ranks.")
    if more:
        section["more"] = " ".join(more)
    return section


def _heat_rows(found: Context, rows: pl.DataFrame, shared: int) -> list[document.HeatRow]:
    labels = {(s.process.node, s.process.pid): s.process.label for s in found.ranks}
    made: list[document.HeatRow] = []
    named = list(rows.select("node", "pid", "rank").iter_rows())
    for begin in range(0, len(named), shared):
        group = named[begin : begin + shared]
        node, pid, rank = group[0]
        row: document.HeatRow = {"label": cut(labels.get((node, pid)) or f"rank {rank}")}
        if len(group) > 1:
            end = labels.get(group[-1][:2]) or f"rank {group[-1][2]}"
            row["label"] = cut(f"{row['label']} to {end}")
        if rank is not None:
            row["rank"] = rank
        made.append(row)
    return made


def _by_number(found: Context, stepped: list[Summary], before: Earlier | None) -> document.Series:
    order = slowest_first(stepped)
    lines = {s.process.label: s for s in stepped}
    if len(stepped) > _LINES:
        picked = {"slowest": order[0], "median": order[len(order) // 2], "fastest": order[-1]}
        lines = {f"{what}: {s.process.label}": s for what, s in picked.items()}
    found.columns.next_blob()
    shown = []
    for label, summary in lines.items():
        line = _line(found, label, summary)
        was = None if before is None else before.ranks.get(summary.process.label)
        if was is not None:
            of_before = _line(found, label, was)
            line["before"] = {"x": of_before["x"], "y": of_before["y"]}
        shown.append(line)
    return {
        "kind": "series",
        "id": "steps-by-number",
        "title": "Step time by step",
        "axis": "step",
        "unit": "ms",
        "lines": shown,
    }


def _line(found: Context, label: str, summary: Summary) -> document.Line:
    lasted = summary.trend_ns
    keep = decimate(summary.trend_start, lasted.astype(np.float64), found.points)
    number = summary.trend_step[keep]
    number = np.where(number >= schema.INFERENCE, number - schema.INFERENCE, number)
    return {
        "name": label,
        "x": found.columns.integers(number),
        "y": found.columns.numbers(lasted[keep] / 1e6),
    }


def _shares(stepped: list[Summary]) -> list[document.Section]:
    """Return how the steps of each rank divide, on the host and on its GPUs."""
    order = slowest_first(stepped)
    picked = sorted({round(i) for i in np.linspace(0, len(order) - 1, min(_BARS, len(order)))})
    bars = [s for s in stepped if s in [order[i] for i in picked]]
    uses = [(s, s.gpu) for s in bars if s.gpu is not None and s.gpu.step_ns]
    made: list[document.Section] = []
    if known_phases(stepped):
        title = "Where the step time goes" + (" (host)" if uses else "")
        names = phase_names(bars)
        parts = {name: [s.share(name) for s in bars] for name in names}
        made.append(_bars("shares", title, bars, parts))
    if uses:
        title = "Where the time of the GPU's main stream goes"
        of_gpu = [use for _, use in uses]
        shares: dict[str, list[float | None]] = {
            name: [u.phase_ns.get(name, 0) / u.step_ns for u in of_gpu]
            for name in device_phase_names(of_gpu)
        }
        shares[BETWEEN] = [u.between_ns / u.step_ns for u in of_gpu]
        made.append(_bars("device-shares", title, [s for s, _ in uses], shares))
    if made and len(bars) < len(stepped):
        made[0]["note"] = f"Of {len(stepped)} ranks, {len(bars)} from the slowest to the fastest."
    return made


def _bars(
    identifier: str, title: str, bars: list[Summary], parts: dict[str, list[float | None]]
) -> document.Bars:
    places: list[document.Place | None] = [
        {"tab": "step", "rank": s.process.rank} if s.process.rank is not None else None
        for s in bars
    ]
    return {
        "kind": "bars",
        "id": identifier,
        "title": title,
        "unit": "share",
        "stacked": True,
        "categories": [s.process.label for s in bars],
        "places": places,
        "parts": [
            {
                "name": cut(name),
                "values": [None if v is None else round(v, 5) for v in values],
                "colour": phase_colour(name, position),
            }
            for position, (name, values) in enumerate(parts.items())
        ],
    }


def _of_rank(found: Context, chosen: Chosen) -> list[document.Section]:
    """Return what is said of one rank alone."""
    own = chosen.summaries
    where = sorted({f"{p.node}, pid {p.pid}" for p in chosen.processes})
    lines = ["; ".join(where), *gpu_findings.lines(own, found.analyzer.run.kernels)]
    text: document.Text = {
        "kind": "text",
        "id": f"rank-{chosen.key}",
        "title": chosen.label[:1].upper() + chosen.label[1:],
        "lines": [cut(line) for line in lines],
    }
    if chosen.rank is not None:
        text["rank"] = chosen.rank
    made: list[document.Section] = [text]
    if len(found.ranks) > MANY_RANKS:  # the tables above are of some ranks only
        for position, grid in enumerate(rank_grids(own)):
            made.append(table(grid, f"rank-{chosen.key}-{position}", "", chosen))
    for position, grid in enumerate(hardware.phase_grids(found.analyzer, own)):
        made.append(table(grid, f"over-phases-{chosen.key}-{position}", "", chosen))
    return made
