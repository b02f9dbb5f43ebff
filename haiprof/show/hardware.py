"""Tables of the hardware: memory, power, links, storage, placement; then over the step's phases.

A machine without any of these sources has none of these tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import polars as pl

from haiprof import schema
from haiprof.common.numbers import rate
from haiprof.runs import ROLE_NODE, ROLE_RANK
from haiprof.show.grid import NOTHING, Grid, cell, frame_grid
from haiprof.views.run import hardware, phase_means
from haiprof.views.run import steps as step_views
from haiprof.views.run.overview import PHASE_ORDER, Summary

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Rows of one table: of more, the first.
_MOST_ROWS: Final = 64
_COLUMNS: Final = ("time", "metric", "instance", "value", "flags")
#: What is shown over the phases, in this order: metrics whose samples are means since the last one.
_OVER_PHASES: Final = (
    hardware.READ,
    hardware.WRITE,
    hardware.TRAFFIC,
    hardware.REMOTE,
    "pcie.in.bytes_per_s",
    "pcie.out.bytes_per_s",
    "c2c.in.bytes_per_s",
    "c2c.out.bytes_per_s",
    "proc.mbm_total.bytes_per_s",
    "proc.mbm_remote.bytes_per_s",
    "cpu.power.watts",
    "dram.power.watts",
    "node.power.watts",
    "ib.rx.bytes_per_s",
    "ib.tx.bytes_per_s",
    "net.rx.bytes_per_s",
    "net.tx.bytes_per_s",
    "io.syscall_read.bytes_per_s",
    "io.submitted_read.bytes_per_s",
    "io.storage_read.bytes_per_s",
    "io.nfs_read.bytes_per_s",
    "disk.read.bytes_per_s",
    "io.syscall_write.bytes_per_s",
    "io.submitted_write.bytes_per_s",
    "io.storage_write.bytes_per_s",
    "io.nfs_write.bytes_per_s",
    "disk.write.bytes_per_s",
)
#: Counters of the hardware and of storage beyond /proc: without any, the phases are not shown.
_NEWS: Final = (
    *("dram.", "numa.", "pcie.", "c2c.", "proc.mbm_"),
    *("cpu.power", "node.power", "ib.", "io.nfs_"),
)
_STORAGE_NOTE: Final = (
    "Each series sees other things of the same data, so they are never added: system calls (also "
    "pipes and the page cache), submissions to libaio, io_uring or usrbio, what was fetched from "
    "block storage or NFS, what NFS servers gave, and what the node's disks moved."
)


def grids(ranks: Sequence[Summary], nodes: Sequence[Summary]) -> list[Grid]:
    """Return the tables of a whole run."""
    made = [
        _grid("Memory bandwidth", hardware.memory_table(nodes), _peaks(nodes)),
        _grid("Power", hardware.power_table(nodes), "Energy is that of the time sampled."),
        _grid(
            "InfiniBand and RoCE",
            hardware.port_table(nodes),
            "Percentages are of the port's rate. On RoCE only RDMA is counted.",
        ),
        _grid("Ethernet", hardware.ethernet_table(nodes), "Percentages are of the link's speed."),
        _grid("Storage", hardware.storage_table(ranks, nodes), _STORAGE_NOTE),
        _grid("NFS", hardware.mount_table(nodes), "The duration of a call is its round trip."),
        _grid(
            "NUMA placement",
            hardware.placement_table(ranks),
            "Memory elsewhere: the part of the control group's memory on other nodes than the "
            "threads run on; ranks in one container have the memory of all. Far fills: of the "
            "DRAM that cores fetched, that of other nodes.",
        ),
    ]
    return [grid for grid in made if grid is not None]


def _grid(title: str, table: pl.DataFrame, note: str) -> Grid | None:
    if not table.height:
        return None
    if table.height > _MOST_ROWS:
        note = f"The first {_MOST_ROWS} of {table.height} rows. {note}"
    return frame_grid(title, table.head(_MOST_ROWS), note.strip())


def _peaks(nodes: Sequence[Summary]) -> str:
    """Say what the shares are of, once for all nodes that are alike."""
    sentences: dict[str, str] = {}
    for node in nodes:
        machine = node.process.machine
        traffic, peak = hardware.dram_bytes_per_s(node.stats), hardware.peak_bytes_per_s(node)
        if machine is None or traffic is None or peak is None:
            continue
        how = f" ({machine.dram_peak_how})" if machine.dram_peak_how else ""
        sentences.setdefault(
            f"{rate(peak)}{how}",
            f"{100 * traffic / peak:.0f} % of {rate(peak)}{how} on {node.process.node}",
        )
    if not sentences:
        return "The peak of this memory is not known."
    more = f" and {len(sentences) - 3} other kinds" if len(sentences) > 3 else ""
    even = (
        " A socket's peak is an even share of the node's."
        if any(hardware.sockets(n) for n in nodes)
        else ""
    )
    return f"Read and written: {'; '.join(list(sentences.values())[:3])}{more}.{even}"


def phase_grids(analyzer: Analyzer, ranks: Sequence[Summary]) -> list[Grid]:
    """Return what counters were in each phase of the steps of these processes (of one rank)."""
    stepped = [s.process for s in ranks if s.steps]
    if not stepped:
        return []
    nodes = {p.node for p in stepped}
    around = [p for p in analyzer.run.processes if p.role == ROLE_NODE and p.node in nodes]
    # Another container of the node has sampled the same counters.
    own = {p.node: p for p in reversed(around)}
    keep = {"metric": _OVER_PHASES}
    frames = [analyzer.read(p, schema.SAMPLES, _COLUMNS, keep) for p in [*own.values(), *stepped]]
    samples = pl.concat([f.cast({"metric": pl.String, "instance": pl.String}) for f in frames])
    if not any(str(m).startswith(_NEWS) for m in samples["metric"].unique()):
        return []
    spans = pl.concat(
        [
            analyzer.read(p, schema.SPANS, step_views.COLUMNS, {"category": step_views.CATEGORIES})
            for p in stepped
        ]
    )
    means = phase_means.phase_means(samples, phase_means.pieces(spans))
    who = stepped[0].label if stepped[0].role == ROLE_RANK else ""
    grid = phase_grid(means, who)
    return [] if grid is None else [grid]


def phase_grid(means: pl.DataFrame, who: str = "") -> Grid | None:
    """Lay out the rows of :func:`~haiprof.views.run.phase_means.phase_means`; None without any."""
    if not means.height:
        return None
    found = set(means["phase"].unique())
    rest = sorted(found - set(PHASE_ORDER) - {phase_means.STEP, step_views.OTHER})
    ends = [name for name in (step_views.OTHER,) if name in found]
    phases = [phase_means.STEP, *(n for n in PHASE_ORDER if n in found), *rest, *ends]
    cells = {(m, p): mean for m, p, mean in means.select("metric", "phase", "mean").iter_rows()}
    rows = []
    for metric in (m for m in _OVER_PHASES if any(cells.get((m, p)) is not None for p in phases)):
        row = [metric.rpartition(".")[0]]
        for phase in phases:
            row.append(cell(metric, cells.get((metric, phase))))
        rows.append(row)
    if not rows:
        return None
    note = "Means over the time of each phase, of samples that may lie in several."
    unknown = means.filter(pl.col("mean").is_null(), pl.col("phase") != phase_means.STEP)
    few = f"fewer than {phase_means.FEWEST} samples lie in the phase"
    coarse = unknown.filter(pl.col("resolution") < phase_means.RESOLVED)
    if coarse.height:
        note += (
            f" {NOTHING}: not resolved: the samples are too coarse for phases this short, and hold "
            f"the same mix of them (resolution at most {max(coarse['resolution'].to_list()):.2f}; "
            f"{phase_means.RESOLVED:g} is needed); a shorter interval of the recorder helps"
        )
        note += f". Or {few}." if coarse.height < unknown.height else "."
    elif unknown.height:
        note += f" {NOTHING}: {few}."
    title = "Over the phases of a step" + (f" ({who})" if who else "")
    heads = ["", "all steps", *phases[1:]]
    return Grid(title, heads, rows, frozenset(range(1, len(heads))), note)
