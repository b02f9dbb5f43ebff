"""What one rank's figures over time show: series by family, phases of its steps, events.

Tests: tests/show/test_shown.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof import schema
from haiprof.runs import ROLE_NODE, Process
from haiprof.views.intervals import Times
from haiprof.views.run import steps as step_views
from haiprof.views.run.gpus import parent
from haiprof.views.run.overview import SMALLER
from haiprof.views.run.series import usable

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Of more, those with the greatest values.
_SERIES_PER_PANEL = 12
#: What a hundred percent is, where that differs.
_WHOLE = {"CPU of the job": "% of one core", "CPU of the node": "% of all cores"}
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
class Series:
    """One metric of one instance; times are ns UTC."""

    name: str
    time: Times
    value: npt.NDArray[np.float64]

    @property
    def greatest(self) -> float:
        """Its greatest value, of either sign."""
        return float(np.abs(self.value).max())


@dataclass(frozen=True, slots=True)
class Panel:
    """Series of one family and unit; ``mode`` is ``lines`` or, of single events, ``markers``."""

    title: str
    unit: str
    series: list[Series]
    family: str
    mode: str = "lines"


def samples(analyzer: Analyzer, processes: list[Process]) -> pl.DataFrame:
    """Return the samples of these processes (of one rank), of their GPUs and their nodes."""
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


def events(analyzer: Analyzer, processes: list[Process]) -> pl.DataFrame:
    """Return ``time``, ``kind`` and ``text`` of the events of these processes."""
    columns = ("time", "kind", "text")
    events = pl.concat([analyzer.read(p, schema.EVENTS, columns) for p in processes])
    return events.with_columns(pl.col("kind").cast(pl.String)).sort("time")


def pauses(analyzer: Analyzer, processes: list[Process]) -> list[Panel]:
    """Return a panel of the pauses that Python's garbage collection drawing, if there are any."""
    columns, keep = ("start", "duration", "name"), {"category": ("gc",)}
    spans = [analyzer.read(p, schema.SPANS, columns, keep) for p in processes]
    found = pl.concat(spans).sort("start")
    if not found.height:
        return []
    series = [
        Series(str(name), rows["start"].to_numpy(), rows["duration"].to_numpy() / 1e6)
        for (name,), rows in found.group_by("name", maintain_order=True)
    ]
    shown = sorted(series, key=lambda s: s.name)[:_SERIES_PER_PANEL]
    return [Panel("Pauses for Python's garbage collection (ms)", "ms", shown, "Python", "markers")]


def panels(samples: pl.DataFrame) -> list[Panel]:
    """Group series by what they measure and in which unit."""
    groups: dict[tuple[int, str, bool, str], list[Series]] = {}
    whole = set(samples.filter(pl.col("instance").is_null())["metric"].unique())
    for (metric, instance), frame in samples.group_by("metric", "instance", maintain_order=True):
        position, family = _family(str(metric))
        thing, _, unit = str(metric).rpartition(".")
        name = thing if instance is None else f"{thing} · {instance}"
        # Where a metric has a value for the whole, its parts (the cores of a CPU) would bury it.
        is_part = instance is not None and metric in whole
        ordered = frame.sort("time")
        series = Series(name, ordered["time"].to_numpy(), ordered["value"].to_numpy())
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
        panels.append(Panel(title, unit, shown, family))
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


def step_bands(
    analyzer: Analyzer, process: Process, names: list[str], points: int
) -> tuple[pl.DataFrame, int]:
    """Return the bands of the steps of one process, and when the last one ends (ns UTC)."""
    spans = analyzer.read(process, schema.SPANS, step_views.COLUMNS)
    steps = step_views.steps(spans)
    parts = step_views.parts(spans, steps).with_columns(
        pl.when(pl.col("name").is_in(names)).then("name").otherwise(pl.lit(SMALLER)).alias("name")
    )
    end = int(steps["start"][-1]) + int(steps["duration"][-1])
    return step_views.bands(parts, steps, names, points), end
