"""What a rank did on its GPUs: device phases over time, graphs, how busy it was, kernels.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from haiprof.show import one_gpu
from haiprof.show.grid import cut
from haiprof.show.page import document
from haiprof.show.page.context import Chosen, Context, table
from haiprof.show.page.timeline import stack
from haiprof.views.run import busy as busy_views
from haiprof.views.run.series import decimate

_DEVICES: Final = 8
_GRAPHS: Final = 8


def over_time(found: Context) -> list[document.Section]:
    """Return the series of each rank's GPUs: device phases, replays, busy shares."""
    made: list[document.Section] = []
    for chosen in found.chosen:
        gpus = _gpus(found, chosen)
        for device, bands in one_gpu.device_bands(gpus, found.points).items():
            found.columns.next_blob()
            title = f"Device phases of each step{device}: {chosen.label}"
            identifier = f"device{device.replace(' ', '-')}-{chosen.key}"
            made.append(stack(found, chosen, identifier, title, bands.names, bands.parts))
        if any(gpu.tables.replays.height for gpu in gpus):
            made.append(_replays(found, chosen, gpus))
        made += _busy(found, chosen, gpus)
    return made


def tables(found: Context) -> list[document.Section]:
    """Return the tables of each rank's device phases, graphs and kernels."""
    made: list[document.Section] = []
    for chosen in found.chosen:
        gpus = _gpus(found, chosen)
        for position, grid in enumerate(one_gpu.grids(chosen.summaries, gpus)):
            made.append(table(grid, f"gpu-{chosen.key}-{position}", "GPU", chosen))
    return made


def _gpus(found: Context, chosen: Chosen) -> list[one_gpu.Gpu]:
    return [
        one_gpu.gpu(s.process.label, found.origin_ns, found.analyzer.read_gpu(s.process))
        for s in chosen.summaries
        if s.gpu is not None
    ]


def _replays(found: Context, chosen: Chosen, gpus: list[one_gpu.Gpu]) -> document.Series:
    replays = pl.concat([gpu.tables.replays for gpu in gpus]).sort("start")
    replays = replays.with_columns(pl.col("name").cast(pl.String))
    busiest = (
        replays.group_by("device", "name")
        .agg(pl.col("duration").sum())
        .sort("duration", "name", descending=[True, False])
    )
    several = replays["device"].n_unique() > 1
    found.columns.next_blob()
    lines: list[document.Line] = []
    for device, name, _ in busiest.head(_GRAPHS).iter_rows():
        mine = replays.filter(pl.col("device") == device, pl.col("name") == name)
        start, lasted = mine["start"].to_numpy(), mine["duration"].to_numpy() / 1e6
        title = f"{name} (GPU {device})" if several else name
        lines.append(_line(found, title, start, lasted))
    title = f"Replays of CUDA graphs: {chosen.label}"
    if busiest.height > _GRAPHS:
        title += f", the {_GRAPHS} graphs with most time of {busiest.height}"
    return _section(chosen, f"replays-{chosen.key}", title, "ms", lines)


def _busy(found: Context, chosen: Chosen, gpus: list[one_gpu.Gpu]) -> list[document.Section]:
    frames = [
        busy_views.busy_by_step(gpu.tables.kernels, gpu.recorded_steps)
        for gpu in gpus
        if gpu.tables.intervals.height
    ]
    steps = pl.concat(frames).filter(pl.col("duration") > 0).sort("start") if frames else None
    if steps is None or not steps.height:
        return []
    found.columns.next_blob()
    devices = steps["device"].unique().sort().to_list()[:_DEVICES]
    lines: list[document.Line] = []
    for device in devices:
        mine = steps.filter(pl.col("device") == device)
        of = f" (GPU {device})" if len(devices) > 1 else ""
        for name, column in (("busy", "busy"), ("communication alone", "exposed")):
            if column == "busy" or mine[column].sum():
                share = (mine[column] / mine["duration"]).to_numpy()
                lines.append(_line(found, name + of, mine["start"].to_numpy(), share))
    title = f"How busy the GPU was in the steps with kernels recorded: {chosen.label}"
    return [_section(chosen, f"busy-{chosen.key}", title, "ratio", lines)]


def _line(found: Context, name: str, start: np.ndarray, value: np.ndarray) -> document.Line:
    keep = decimate(start, value, found.points)
    return {
        "name": cut(name),
        "x": found.columns.times(found.seconds(start[keep])),
        "y": found.columns.numbers(value[keep]),
    }


def _section(
    chosen: Chosen, identifier: str, title: str, unit: str, lines: list[document.Line]
) -> document.Series:
    section: document.Series = {
        "kind": "series",
        "id": identifier,
        "title": title,
        "axis": "run",
        "unit": unit,
        "lines": lines,
    }
    if chosen.rank is not None:
        section["rank"] = chosen.rank
    return section
