"""What a deep trace tells, as a section of the report: findings, devices, operators, kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from haiprof.show.figures import COLOURS, message, safe, stacked
from haiprof.show.grid import Grid, frame_grid
from haiprof.show.shown import Shown
from haiprof.views.kernel_names import demangled, short_name
from haiprof.views.trace.overview import OTHER, PARTS

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Rows of a table, bars of a figure, findings in words: the most important ones.
_ROWS = 25
_STEPS = 64
_TRACES = 64
_FINDINGS = 5
_POINTS = 1_000
_NS_PER_MS = 1e6


def show(analyzer: Analyzer) -> Shown:
    """Show what is known of the traced ranks; tables of operators are of the slowest one."""
    overview = analyzer.overview()
    found = analyzer.recommendations()
    slowest = _slowest(overview.ranks)
    return Shown(
        "Deep trace",
        sentences(found),
        [
            *_found(found),
            *_shares(analyzer, overview.devices),
            *_of_rank(analyzer, slowest),
        ],
        _steps(overview.steps, slowest),
        [*_memory(analyzer, slowest)],
    )


def sentences(found: pl.DataFrame) -> list[str]:
    """Say of each kind of finding, those that save most first, where it is worst."""
    made = []
    for row in _worst(found).head(_FINDINGS).iter_rows(named=True):
        where = f" ({row['stack']})" if row["stack"] else ""
        name = f", mostly in {_readable(row['operator'])}" if row["operator"] else ""
        of = f"Rank {row['rank']}: " if row["rank"] is not None else ""
        others = f" The same holds of {row['others']} more." if row["others"] else ""
        told = f"{of}{row['problem']}{name}{where}: {row['advice']}.{others}"
        made.append(told[0].upper() + told[1:])
    return made or ["Nothing was found that would make the recorded steps shorter"]


def _worst(found: pl.DataFrame) -> pl.DataFrame:
    """The first finding of each kind, and how many ``others`` there are."""
    if not found.height:
        return found
    return found.with_columns((pl.len().over("kind") - 1).alias("others")).unique(
        "kind", keep="first", maintain_order=True
    )


def _found(found: pl.DataFrame) -> list[Grid]:
    if not found.height:
        return []
    table = found.head(_ROWS).select(
        *_who(found),
        pl.col("kind").str.replace_all("_", " ").alias("finding"),
        (pl.col("saves_ns") / _NS_PER_MS).alias("saves_at_most_ms"),
        "step",
        pl.col("operator").map_elements(_readable, return_dtype=pl.String),
        pl.col("stack").alias("code"),
        "evidence",
    )
    return [frame_grid("What would win time back", table)]


def _shares(analyzer: Analyzer, devices: pl.DataFrame) -> list[Grid]:
    made = []
    if devices.height:
        table = devices.head(_TRACES).select(
            *_who(devices),
            "device",
            "kernels",
            pl.col("utilization").alias("busy_ratio"),
            pl.col("sm_efficiency").alias("sm_efficiency_ratio"),
            pl.col("occupancy").alias("occupancy_ratio"),
            pl.col("tensor_core").alias("tensor_core_ratio"),
        )
        note = "Busy, SM efficiency: of the time of the recorded steps. SM efficiency and occupancy"
        made.append(frame_grid("GPUs", table, f"{note} are estimated from each kernel's launch."))
    temporal = analyzer.temporal()
    if temporal.height:
        table = temporal.head(_TRACES).select(
            *_who(temporal), "device", "idle_ratio", "compute_ratio", "non_compute_ratio"
        )
        note = "From the first activity to the last one; not computing: communication and copies."
        made.append(frame_grid("Where the GPU's time goes", table, note))
    parts = analyzer.distributed()
    if parts.collectives.height:
        table = parts.collectives.head(_ROWS).select(
            *_who(parts.collectives), pl.all().exclude("node", "rank", "pid", "session")
        )
        made.append(frame_grid("Collectives", _in_milliseconds(table)))
    if parts.transfers.height:
        table = parts.transfers.group_by(*_who(parts.transfers), maintain_order=True).agg(
            pl.col("communication", "transfer", "waiting").sum()
        )
        note = "Transfer: as long as the rank took that came last; the rest is waiting for it."
        made.append(frame_grid("Transfer and waiting", _in_milliseconds(table.head(_TRACES)), note))
    return made


def _of_rank(analyzer: Analyzer, slowest: dict[str, object]) -> list[Grid]:
    rank = slowest.get("rank")
    chosen = rank if isinstance(rank, int) else None
    made = []
    of = _label(slowest)
    operators = _mine(analyzer.operators(chosen), slowest)
    if operators.height:
        table = operators.head(_ROWS).select(
            "name", "calls", "host_self", "host_total", "device_self", "device_total"
        )
        made.append(frame_grid(f"Operators{of}", _in_milliseconds(table)))
    kernels = _mine(analyzer.kernels(chosen, by="name"), slowest)
    if kernels.height:
        table = kernels.head(_ROWS).select(
            pl.col("name").cast(pl.String).map_elements(_readable, return_dtype=pl.String),
            "calls",
            pl.col("share").alias("time_ratio"),
            "total",
            "mean",
            "min",
            "max",
            pl.col("occupancy").alias("occupancy_ratio"),
            pl.col("tensor_core").cast(pl.String).replace({"true": "yes", "false": ""}),
        )
        if not kernels["tensor_core"].any():
            table = table.drop("tensor_core")
        made.append(frame_grid(f"Kernels{of}", _in_milliseconds(table)))
    modules = _mine(analyzer.modules(chosen), slowest)
    if modules.height:
        indent = pl.lit("\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}").repeat_by("depth").list.join("")
        table = modules.head(_ROWS).select(
            (indent + pl.col("name").cast(pl.String)).alias("module"),
            "occurrences",
            "host",
            "self_host",
            "device",
            "self_device",
        )
        made.append(frame_grid(f"Modules{of}", _in_milliseconds(table)))
    holders = _mine(analyzer.memory(chosen, points=2).holders, slowest)
    if holders.height:
        table = holders.head(_ROWS).select("kind", "device", "operator", "phase", "blocks", "bytes")
        made.append(frame_grid(f"Memory at its peak{of}", table))
    return made


def _steps(steps: pl.DataFrame, slowest: dict[str, object]) -> go.Figure:
    mine = _mine(steps, slowest)
    if not mine.height:
        return message("No step was traced")
    shown = mine.head(_STEPS)
    title = f"What the steps spent{_label(slowest)}"
    figure = stacked([title], [320], gap=60)
    for position, part in enumerate((*PARTS, OTHER)):
        if not shown[part].sum():
            continue
        figure.add_bar(
            x=[str(step) for step in shown["step"]],
            y=(shown[part] / _NS_PER_MS).to_list(),
            name=part,
            marker_color=COLOURS[position % len(COLOURS)],
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="step", type="category")
    figure.update_yaxes(ticksuffix=" ms")
    return figure


def _memory(analyzer: Analyzer, slowest: dict[str, object]) -> list[go.Figure]:
    rank = slowest.get("rank")
    curve = _mine(
        analyzer.memory(rank if isinstance(rank, int) else None, points=_POINTS).curve, slowest
    )
    if not curve.height:
        return []
    figure = stacked([f"Memory in use{_label(slowest)}"], [260], gap=60)
    origin = int(curve["time"].to_numpy().min())
    groups = curve.partition_by("kind", "device", as_dict=True)
    for position, ((kind, device), part) in enumerate(groups.items()):
        name = f"{kind}" if device is None else f"{kind} {device}"
        seconds = ((part["time"] - origin) / 1e9).to_list()
        for column, dash in (("allocated", None), ("reserved", "dot")):
            if part[column].null_count() == part.height:
                continue
            figure.add_scatter(
                x=seconds,
                y=part[column].to_list(),
                name=safe(f"{name}, {column}"),
                mode="lines",
                line={
                    "color": COLOURS[position % len(COLOURS)],
                    "dash": dash,
                    "shape": "hv",
                },
            )
    if not figure.data:
        return []
    figure.update_xaxes(ticksuffix=" s")
    figure.update_yaxes(tickformat="~s", ticksuffix="B")
    return [figure]


def _slowest(ranks: pl.DataFrame) -> dict[str, object]:
    if not ranks.height:
        return {}
    order = (
        ranks.sort("duration", descending=True, nulls_last=True)
        if ("duration" in ranks.columns)
        else ranks
    )
    return order.select("node", "rank", "pid", "session").row(0, named=True)


def _mine(frame: pl.DataFrame, slowest: dict[str, object]) -> pl.DataFrame:
    for name in ("node", "rank", "pid", "session"):
        if name in slowest and name in frame.columns:
            frame = frame.filter(pl.col(name).eq_missing(pl.lit(slowest[name])))
    return frame


def _label(slowest: dict[str, object]) -> str:
    rank, session = slowest.get("rank"), slowest.get("session")
    parts = [
        f"rank {rank}" if rank is not None else "",
        f"session {session}" if session not in (None, 1) else "",
    ]
    told = ", ".join(part for part in parts if part)
    return f" of {told}" if told else ""


def _who(frame: pl.DataFrame) -> list[str]:
    """What tells the rows apart: the rank, without one the worker; the session of several."""
    by = "rank" if frame["rank"].null_count() < frame.height else "node"
    return [by, "session"] if frame["session"].n_unique() > 1 else [by]


def _in_milliseconds(table: pl.DataFrame) -> pl.DataFrame:
    """Name the columns that are durations, int64 ns, by the unit that they are shown in."""
    times = [
        name for name in table.columns if name in _DURATIONS and table[name].dtype.is_numeric()
    ]
    return table.with_columns((pl.col(name) / _NS_PER_MS) for name in times).rename(
        {name: f"{name}_ms" for name in times}
    )


_DURATIONS = frozenset(
    {
        "host_self", "host_total", "device_self", "device_total", "total", "mean", "min", "max",
        "host", "self_host", "device", "self_device", "communication", "transfer", "waiting",
        "time", "sum",
    }
)  # fmt: skip


def _readable(name: str) -> str:
    return short_name(demangled([name])[name])
