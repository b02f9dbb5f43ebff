"""How the recording itself went: what happened, what was not recorded and why, what it cost.

Tests: tests/show/test_report.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import polars as pl

from haiprof.common.numbers import percent, utc
from haiprof.findings import gpus as gpu_findings
from haiprof.findings import hardware as hardware_findings
from haiprof.findings.endings import failed, interrupted
from haiprof.runs import ROLE_RANK
from haiprof.show.grid import NOTHING, Grid
from haiprof.views.run import overhead as overhead_view
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run.overview import Summary
from haiprof.views.run.series import mean_over_time

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

_ROWS = 200
_COST = "haiprof.cost.ratio"
#: What is kept first where there are more events, the most important first.
_FIRST = (
    "xid",
    "gpu_lost",
    "died",
    "exit",
    "exception",
    "ecc",
    hardware_findings.LINK_EVENTS,
    "lost",
    overhead_view.EVENT_KIND,
    "disk",
    "throttle",
    "kernel_log",
    "pcie_link",
    "hook",
)
#: Kinds of events that are drawn with the ranks, and do not report problems: user marks, when
#: kernels were recorded, and how many at the end, on which CPUs a rank may run, with which
#: settings, what was compiled, and that a process is about to end.
_ORDINARY = (
    *("mark", recorded_views.EVENT_KIND, "gpu", "affinity", "goodbye"),
    *("loader", "loader_workers", "loader_workers_ended"),
    *("threads", "autograd", "ddp", "compile"),
)


def events(analyzer: Analyzer) -> Grid:
    """Return what happened that matters: no rows where nothing did."""
    kind = pl.col("kind").cast(pl.String)
    # A measurement of the overhead is news when something follows from it.
    measured = kind == overhead_view.EVENT_KIND
    followed = pl.col("attributes").str.contains("stepped_down_to", literal=True).fill_null(False)
    found = (
        analyzer.events()
        .filter(kind.is_in(_ORDINARY).not_(), measured.not_() | followed, is_latency().not_())
        .sort("time")
        .select("node", "rank", "pid", "time", "kind", "text")
    )
    processes = analyzer.run.processes
    died = [p for p in processes if p.role == ROLE_RANK and p.state == "died"]
    # An orderly end of each process is no news.
    quiet = {
        (p.node, p.pid, "exit")
        for p in processes
        if p.state == "closed" and not (failed(p) or interrupted(p))
    }
    rows = [
        (time, _who(node, rank), str(what), text or "")
        for node, rank, pid, time, what, text in found.iter_rows()
        if (node, pid, what) not in quiet
    ]
    with_exit = {(node, pid) for node, _, pid, _, what, _ in found.iter_rows() if what == "exit"}
    rows += [
        (
            p.ended_ns or 0,
            _who(p.node, p.rank),
            "died",
            "the process ended without closing its profile",
        )
        for p in died
        if (p.node, p.pid) not in with_exit
    ]
    rows.sort(key=lambda row: row[0])
    note = ""
    if len(rows) > _ROWS:
        note = f"{_ROWS} of {len(rows)}: the most important, and of these the first."
        rows = sorted(sorted(rows, key=_importance)[:_ROWS], key=lambda row: row[0])
    cells = [[utc(time) if time else NOTHING, who, what, text] for time, who, what, text in rows]
    return Grid("Events", ["UTC", "where", "kind", "what happened"], cells, note=note)


def is_latency() -> pl.Expr:
    """Say of each event whether it only reports, once, how long a source takes to be read."""
    in_us = pl.col("attributes").str.contains(r'_us"\s*:').fill_null(False)
    return (pl.col("kind").cast(pl.String) == "source") & in_us


def _importance(row: tuple[int, str, str, str]) -> int:
    return _FIRST.index(row[2]) if row[2] in _FIRST else len(_FIRST)


def _who(node: str, rank: int | None) -> str:
    return f"{node}, rank {rank}" if rank is not None else node


def not_collected(analyzer: Analyzer) -> Grid | str:
    """Return which sources could not be read and why, or a sentence if that is none."""
    missing: dict[tuple[str, str, str, str], list[str]] = {}
    asked = 0
    for process in analyzer.run.processes:
        asked += len(process.sources)
        for source in process.sources:
            if source.state != "ok":
                key = (source.name, source.state, source.reason, source.fix)
                missing.setdefault(key, []).append(process.label)
    if not asked:
        return "The recorder left no list of its sources in this run."
    if not missing:
        return "Every source that was asked for could be read."
    rows = [[*key, _few(where)] for key, where in sorted(missing.items())]
    return Grid("", ["source", "state", "why", "how to fix it", "where"], rows)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def cost(analyzer: Analyzer, ranks: list[Summary]) -> list[str]:
    """Return sentences on what sampling and recording kernels cost."""
    return [_sampling(analyzer), *_kernels(ranks)]


def _sampling(analyzer: Analyzer) -> str:
    # A run that ended at once has others of haiprof's own, and not this one.
    own = analyzer.samples("haiprof.*").with_columns(pl.col("instance").cast(pl.String))
    # Sources are read at intervals of their own, so each is averaged before they are added.
    parts = (
        own.filter(pl.col("metric").cast(pl.String) == _COST, pl.col("value").is_finite())
        .sort("time", maintain_order=True)
        .group_by("node", "rank", "pid", "instance", maintain_order=True)
        .agg(mean_over_time("value"))
    )
    if not parts.height:
        return f"Not measured in this run: it holds no samples of {_COST}."
    whole = (
        parts.group_by("node", "rank", "pid", maintain_order=True)
        .agg(pl.col("value").sum(), pl.col("instance").sort_by("value").last())
        .sort(pl.col("value").round_sig_figs(6), descending=True, maintain_order=True)
    )
    node, rank, _, most, source = whole.row(0)
    mean = float(whole["value"].sum()) / whole.height
    text = f"The sampling thread alone, measured while the job ran ({_COST}): "
    text += f"{_fine(mean)} of one core"
    if whole.height > 1:
        text += f" on average, most on {_who(node, rank)} with {_fine(most)}"
    if source is not None:
        text += f"; the most expensive source was '{source}'"
    return f"{text}."


def _kernels(ranks: list[Summary]) -> list[str]:
    measured = gpu_findings.measured_overhead(ranks)
    if not measured:
        return []
    compared = any(s.overhead is not None and s.overhead["overhead"] is not None for s in ranks)
    by = ", by comparing steps with and without it" if compared else ""
    return [f"Recording kernels{by}: {measured}."]


def _fine(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.01 else percent(share)


def losses(analyzer: Analyzer) -> Iterable[str]:
    """Say what was recorded and did not reach the disk."""
    for process in analyzer.run.processes:
        causes = {what: count for what, count in process.lost.items() if count}
        records = causes.pop("records", 0)
        if records or causes:
            why = ", ".join(f"{what.replace('_', ' ')} {count}" for what, count in causes.items())
            yield f"{process.label}: {records} records were lost" + (f" ({why})" if why else "")
    cut = analyzer.processes().filter(pl.col("cut_files") > 0)
    if cut.height:
        live = cut.filter(pl.col("state") == "live").height
        yield (
            f"{cut.height} processes have a file that ends within a batch "
            f"({live} of them still run): its last rows are missing"
        )
