"""All ranks side by side: each process is summarised alone, then the summaries become tables.

A summary is a few kilobytes, so ten thousand of them can be sent and kept in memory easily.

Tests: tests/views/run/test_hardware.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.runs import ROLE_NODE, Process
from haiprof.sources.arrays import Arrays
from haiprof.views.intervals import Times
from haiprof.views.run import gpus, step_parts
from haiprof.views.run.gpu_use import Use, added
from haiprof.views.run.series import Stat, decimate, left_out, stats, stats_by_instance
from haiprof.views.run.step_parts import Parts, Steps

#: Order in which the phases of a step are shown; user ranges follow, ``other`` is last.
PHASE_ORDER = (
    "dataloader",
    "forward",
    "recompute",
    "backward",
    "gradient_sync",
    "optimizer",
    "eval",
    "eval_dataloader",
    "deep_trace",
)
#: Maximum number of user ranges shown by name: the longest.
MOST_RANGES = 20
#: Name of the time between the phases of a device.
BETWEEN = "between phases"
#: Name of all other user ranges together.
SMALLER = "smaller ranges"

#: Columns of the rank table that come from samples: name -> (metric, statistic).
RANK_METRICS = {
    "cpu_mean_percent": ("proc.cpu.percent", "mean"),
    "cpu_max_percent": ("proc.cpu.percent", "max"),
    "rss_max_bytes": ("proc.rss.bytes", "max"),
    "syscall_read_bytes_per_s": ("io.syscall_read.bytes_per_s", "mean"),
    "syscall_write_bytes_per_s": ("io.syscall_write.bytes_per_s", "mean"),
    "storage_read_bytes_per_s": ("io.storage_read.bytes_per_s", "mean"),
    "storage_write_bytes_per_s": ("io.storage_write.bytes_per_s", "mean"),
}
GPU_METRICS = {
    "gpu_util_mean_percent": ("gpu.util.percent", "mean"),
    "gpu_memory_max_bytes": ("gpu.memory_used.bytes", "max"),
    "gpu_power_mean_watts": ("gpu.power.watts", "mean"),
}
#: There is room for more statistics of a rank's own GPUs.
RANK_GPU_METRICS = {
    **GPU_METRICS,
    "gpu_sm_active_mean_ratio": ("gpu.sm_active.ratio", "mean"),
    "gpu_tensor_active_mean_ratio": ("gpu.tensor_active.ratio", "mean"),
    "gpu_dram_active_mean_ratio": ("gpu.dram_active.ratio", "mean"),
}
#: Metrics of torch's allocator, over all devices of the process.
TORCH_METRICS = {
    "torch_allocated_max_bytes": ("torch.allocated.bytes", "max"),
    "torch_reserved_max_bytes": ("torch.reserved.bytes", "max"),
    "torch_alloc_retries": ("torch.alloc_retries.count", "max"),
    "torch_ooms": ("torch.ooms.count", "max"),
}
NODE_METRICS = {
    "cpu_mean_percent": ("cpu.util.percent", "mean"),
    "cpu_max_percent": ("cpu.util.percent", "max"),
    "cpu_clock_mean_hertz": ("cpu.frequency.hertz", "mean"),
    "mem_used_max_bytes": ("mem.used.bytes", "max"),
    "net_busiest_rx_bytes_per_s": ("net.rx.bytes_per_s", "mean"),
    "net_busiest_tx_bytes_per_s": ("net.tx.bytes_per_s", "mean"),
    "ib_rx_bytes_per_s": ("ib.rx.bytes_per_s", "mean"),
    "ib_tx_bytes_per_s": ("ib.tx.bytes_per_s", "mean"),
}
#: Cores that programs use which do not belong to the job.
NEIGHBOURS = "cpu.neighbour.cores"
#: Prefixes of metrics shown per instance: sockets, ports, mounts, NUMA nodes, ….
PARTS = (
    "dram.",
    "disk.",
    "numa.",
    "pcie.",
    "cpu.power.",
    "ib.",
    "net.",
    "io.nfs_",
    "proc.cpu_node.",
    "cgroup.memory_node.",
)


@dataclass(slots=True)
class Summary:
    """Summary of one process. ``trend_*`` is its step series, thinned; times in ns."""

    process: Process
    steps: int = 0
    step_ns: int = 0
    median_ns: float | None = None
    p95_ns: float | None = None
    phase_ns: dict[str, int] = field(default_factory=dict)
    stats: dict[str, Stat] = field(default_factory=dict)
    trend_step: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    trend_start: Times = field(default_factory=lambda: np.zeros(0, np.int64))
    trend_ns: Times = field(default_factory=lambda: np.zeros(0, np.int64))
    #: From device phases and kernels; None if neither was recorded.
    gpu: Use | None = None
    #: The newest row of :func:`haiprof.views.run.overhead.newest`.
    overhead: dict[str, Any] | None = None
    #: For a node: samples of each of its GPUs. For a rank: of its own GPUs, by name.
    gpu_stats: dict[str, dict[str, Stat]] = field(default_factory=dict)
    #: Samples of each socket, port, interface, mount and NUMA node, by its name.
    part_stats: dict[str, dict[str, Stat]] = field(default_factory=dict)
    #: Of a node: cores that other programs use, by their names.
    neighbours: dict[str, Stat] = field(default_factory=dict)
    #: Number of values per metric that exceed what the hardware can do, and are in no mean.
    implausible: dict[str, int] = field(default_factory=dict)
    cut: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def rank(self) -> tuple[str, int | None, int | None]:
        """The processes of one rank together: attempts, or runs one after another."""
        process = self.process
        return process.node, process.rank, process.pid if process.rank is None else None

    @property
    def lost(self) -> int:
        """Number of records that the process lost."""
        return self.process.lost.get("records", 0)

    def share(self, phase: str) -> float | None:
        """Share of the time of all steps that was spent in ``phase``; None without steps."""
        return self.phase_ns.get(phase, 0) / self.step_ns if self.step_ns else None


def summarise(
    process: Process, samples: Arrays, found: Steps, parts: Parts, points: int
) -> Summary:
    """Summarise one process.

    Args:
        process: which.
        samples: ``time``, ``metric``, ``instance``, ``value`` and ``flags``.
        found: its steps.
        parts: of these.
        points: how many points of its step series are kept.
    """
    summary = Summary(
        process,
        stats=stats(samples),
        part_stats=stats_by_instance(samples, *PARTS),
        implausible=left_out(samples),
    )
    if process.role == ROLE_NODE:
        summary.gpu_stats = stats_by_instance(samples, "gpu.")
        others = stats_by_instance(samples, NEIGHBOURS)
        summary.neighbours = {
            name: each[NEIGHBOURS] for name, each in others.items() if NEIGHBOURS in each
        }
    if not len(found.start):
        return summary
    keep = decimate(found.start, found.duration.astype(np.float64), points)
    summary.steps = len(found.start)
    summary.step_ns = int(found.duration.sum())
    summary.median_ns = float(np.median(found.duration))
    summary.p95_ns = float(np.percentile(found.duration, 95))
    summary.phase_ns = step_parts.sums(parts)
    summary.trend_step, summary.trend_start, summary.trend_ns = (each[keep] for each in found)
    return summary


def add_gpus(ranks: list[Summary], nodes: list[Summary]) -> None:
    """Give each rank the samples of its own GPUs, which its node's recorder took."""
    by_folder = {s.process.folder.name: s for s in nodes}
    by_node: dict[str, list[Process]] = {}
    for node in nodes:
        by_node.setdefault(node.process.node, []).append(node.process)
    for rank in ranks:
        around = by_node.get(rank.process.node, [])
        for folder, names in gpus.instances(rank.process, around).items():
            found = by_folder[folder].gpu_stats
            rank.gpu_stats.update({name: found[name] for name in names if name in found})


def fold_ranges(summaries: list[Summary]) -> None:
    """Combine all but the longest user ranges of these processes as :data:`SMALLER`.

    A program can generate thousands of names, which no table or figure can show.
    """
    total = _totals(summaries)
    ranges = [name for name in total if name not in PHASE_ORDER and name != step_parts.OTHER]
    if len(ranges) <= MOST_RANGES:
        return
    ranges.sort(key=lambda name: (-total[name], name))
    small = set(ranges[MOST_RANGES:])
    for summary in summaries:
        kept = {name: ns for name, ns in summary.phase_ns.items() if name not in small}
        folded = sum(ns for name, ns in summary.phase_ns.items() if name in small)
        summary.phase_ns = {**kept, SMALLER: kept.get(SMALLER, 0) + folded}


def _totals(summaries: list[Summary]) -> dict[str, int]:
    total: dict[str, int] = {}
    for summary in summaries:
        for name, ns in summary.phase_ns.items():
            total[name] = total.get(name, 0) + ns
    return total


def phase_names(summaries: list[Summary]) -> list[str]:
    """Phases that occur, in the order in which they are shown."""
    total = _totals(summaries)
    known = [name for name in PHASE_ORDER if name in total]
    rest = [
        n
        for n in sorted(total, key=lambda n: (-total[n], n))
        if n not in known and n != step_parts.OTHER
    ]
    return [*known, *rest, *([step_parts.OTHER] if step_parts.OTHER in total else [])]


def rank_table(summaries: list[Summary]) -> pl.DataFrame:
    """Return one row per rank process: steps, phase shares (0 to 1), CPU, memory, IO, losses.

    Columns without a value on any rank are absent, except the step columns.
    """
    columns: dict[str, list[object]] = {
        "node": [s.process.node for s in summaries],
        "rank": [s.process.rank for s in summaries],
        "pid": [s.process.pid for s in summaries],
        "attempt": [s.process.attempt for s in summaries],
        "state": [s.process.state for s in summaries],
        "steps": [s.steps for s in summaries],
        "step_median_ms": [_ms(s.median_ns) for s in summaries],
        "step_p95_ms": [_ms(s.p95_ns) for s in summaries],
    }
    for name in phase_names(summaries):
        columns[f"{name}_share"] = [s.share(name) for s in summaries]
    for name, (metric, statistic) in {**RANK_METRICS, **GPU_METRICS}.items():
        values = [_stat(s, metric, statistic) for s in summaries]
        if any(value is not None for value in values):
            columns[name] = list(values)
    columns["lost_records"] = [s.lost for s in summaries]
    return pl.DataFrame(columns, infer_schema_length=None)


def device_table(summaries: list[Summary]) -> pl.DataFrame:
    """Return one row per rank process with device times: its steps on the GPU, and how busy it was.

    Shares of device phases are of the time of all steps on the GPU; ``busy`` and ``exposed
    communication`` are of the steps in which kernels were recorded.
    """
    found = [
        (s, s.gpu) for s in summaries if s.gpu is not None and (s.gpu.steps or s.gpu.intervals)
    ]
    columns: dict[str, list[object]] = _who([s for s, _ in found])
    columns["device_step_mean_ms"] = [
        _ms(u.step_ns / u.steps if u.steps else None) for _, u in found
    ]
    for name in device_phase_names([u for _, u in found]):
        columns[f"{name}_share"] = [
            u.phase_ns.get(name, 0) / u.step_ns if u.step_ns else None for _, u in found
        ]
    columns["between phases_share"] = [
        u.between_ns / u.step_ns if u.step_ns else None for _, u in found
    ]
    columns["recorded_steps"] = [u.recorded if u.intervals else None for _, u in found]
    columns["busy_share"] = [u.share(u.busy_ns) for _, u in found]
    columns["exposed communication_share"] = [
        u.share(u.exposed_ns) if u.communication_ns else None for _, u in found
    ]
    return _filled(columns)


def phase_table(use: Use) -> pl.DataFrame:
    """Return one row per device phase of one rank, and one for the time between them.

    ``mean_ms`` and ``step_share`` are of all steps on the GPU; ``busy_share`` and ``idle_share``
    are parts of the phase in the steps in which kernels were recorded.
    """
    between = {BETWEEN: use.between_ns} if use.step_ns else {}
    recorded = {BETWEEN: use.recorded_ns - sum(use.recorded_phase_ns.values())}
    busy = {BETWEEN: use.busy_ns - sum(use.busy_phase_ns.values())}
    recorded.update(use.recorded_phase_ns)
    busy.update(use.busy_phase_ns)
    parts = {**{name: use.phase_ns[name] for name in device_phase_names([use])}, **between}
    shares = [busy[n] / recorded[n] if recorded.get(n, 0) > 0 else None for n in parts]
    return _filled(
        {
            "phase": list(parts),
            "mean_ms": [_ms(ns / use.steps) for ns in parts.values()],
            "step_share": [ns / use.step_ns if use.step_ns else None for ns in parts.values()],
            "busy_share": list(shares),
            "idle_share": [None if share is None else 1 - share for share in shares],
        }
    )


def device_phase_names(uses: Iterable[Use]) -> list[str]:
    """Device phases that occur, in the order in which they are shown."""
    total = added(uses).phase_ns
    known = [name for name in PHASE_ORDER if name in total]
    return [*known, *sorted((n for n in total if n not in known), key=lambda n: (-total[n], n))]


def gpu_table(summaries: list[Summary]) -> pl.DataFrame:
    """Return one row per rank process whose own GPUs or allocator were sampled."""
    of_torch = [metric for metric, _ in TORCH_METRICS.values()]
    found = [s for s in summaries if s.gpu_stats or any(m in s.stats for m in of_torch)]
    columns: dict[str, list[object]] = _who(found)
    columns["gpu"] = [", ".join(s.gpu_stats) or None for s in found]
    own = [gpus.together(s.gpu_stats.values()) for s in found]
    for name, (metric, statistic) in RANK_GPU_METRICS.items():
        columns[name] = [_of(stats, metric, statistic) for stats in own]
    for name, (metric, statistic) in TORCH_METRICS.items():
        columns[name] = [_stat(s, metric, statistic) for s in found]
    return _filled(columns)


def _who(summaries: list[Summary]) -> dict[str, list[object]]:
    return {
        "node": [s.process.node for s in summaries],
        "rank": [s.process.rank for s in summaries],
        "pid": [s.process.pid for s in summaries],
    }


def _filled(columns: dict[str, list[object]]) -> pl.DataFrame:
    """Make a table of the columns that contain a value."""
    kept = {name: values for name, values in columns.items() if any(v is not None for v in values)}
    return pl.DataFrame(kept, infer_schema_length=None)


def node_table(summaries: list[Summary]) -> pl.DataFrame:
    """Return one row per node: CPU, memory, network, pressure, throttling, GPUs if any.

    Pressure and throttling columns have the metric's own name and are means over the run.
    """
    columns: dict[str, list[object]] = {"node": [s.process.node for s in summaries]}
    for name, (metric, statistic) in {**NODE_METRICS, **GPU_METRICS}.items():
        values = [_stat(s, metric, statistic) for s in summaries]
        if any(value is not None for value in values):
            columns[name] = list(values)
    for metric in sorted({m for s in summaries for m in s.stats if is_pressure(m)}):
        columns[metric] = [_stat(s, metric, "mean") for s in summaries]
    return pl.DataFrame(columns, infer_schema_length=None)


def is_pressure(metric: str) -> bool:
    """Say whether a metric is of stalled tasks: PSI or CPU throttling."""
    if metric.startswith("gpu."):  # a GPU lowers its clocks, and stalls nothing
        return False
    return (
        metric.startswith("psi.") or ".psi" in metric or "pressure" in metric or "throttl" in metric
    )


def slowest_first(summaries: list[Summary]) -> list[Summary]:
    """Order by median step time, the slowest first; those without steps last."""
    return sorted(
        summaries, key=lambda s: -1.0 if s.median_ns is None else s.median_ns, reverse=True
    )


def heat_map(
    summaries: list[Summary], rows: int, bins: int
) -> tuple[list[str], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return step time over time by rank: labels, bin starts (ns UTC), and ms as rows x bins.

    Beyond ``rows`` ranks, neighbours share a row, which shows the slowest of them. A bin without a
    step is NaN.
    """
    with_steps = [s for s in summaries if s.steps]
    if not with_steps:
        return [], np.zeros(0), np.zeros((0, 0))
    first = min(int(s.trend_start[0]) for s in with_steps)
    last = max(int(s.trend_start[-1]) for s in with_steps)
    edges = np.linspace(first, last + 1, bins + 1)
    width = -(-len(with_steps) // rows)
    count = -(-len(with_steps) // width)
    values = np.full((count, bins), np.nan)
    labels = []
    for row in range(count):
        members = with_steps[row * width : (row + 1) * width]
        ends = sorted({members[0].process.label, members[-1].process.label}, key=len)
        labels.append(
            ends[0]
            if len(ends) == 1
            else f"{members[0].process.label} to {members[-1].process.label}"
        )
        for member in members:
            bin_ = np.clip(
                np.searchsorted(edges, member.trend_start, side="right") - 1, 0, bins - 1
            )
            np.fmax.at(values[row], bin_, member.trend_ns / 1e6)
    return labels, edges[:-1], values


def _stat(summary: Summary, metric: str, statistic: str) -> float | None:
    return _of(summary.stats, metric, statistic)


def _of(stats: dict[str, Stat], metric: str, statistic: str) -> float | None:
    stat = stats.get(metric)
    if stat is None:
        return None
    return stat.mean if statistic == "mean" else stat.maximum


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
