"""The report: one HTML file that says how a run went, and works without a network."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from haiprof.common.numbers import percent
from haiprof.common.owned_files import replace_or_fill
from haiprof.errors import HaiprofError
from haiprof.findings import gpus as gpu_findings
from haiprof.findings import hardware as hardware_findings
from haiprof.findings.endings import failed, interrupted
from haiprof.runs import ROLE_RANK, Run
from haiprof.show import deep, findings, one_rank, overview, pipeline
from haiprof.show.figures import utc
from haiprof.show.grid import NOTHING, Grid
from haiprof.show.page import Page
from haiprof.views.run import overhead as overhead_view
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run.overview import Summary, slowest_first
from haiprof.views.run.series import mean_over_time

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Ranks that get a section of their own: of more, the slowest.
_SECTIONS = 16
#: Points of a series in a rank's section; fewer than in a notebook, where there is one rank only.
_POINTS = 1_000
_EVENT_ROWS = 200
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


def write(analyzer: Analyzer, path: Path) -> Path:
    """Write the report to ``path``; a file of that name is replaced only by a whole new one.

    So is a link in the folder of the run, which may be somebody else's.

    Raises:
        HaiprofError: the file cannot be written.
    """
    page = build(analyzer).to_html()
    # A path may hold bytes that are not UTF-8.
    content = page.encode("utf-8", "replace")
    try:
        replace_or_fill(path, content, through=not _is_in(analyzer.run, path))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise HaiprofError(f"{path}: cannot be written ({reason}): choose another file") from None
    return path


def _is_in(run: Run, path: Path) -> bool:
    folder = Path(run.source or run.folder)
    return folder.is_dir() and folder.samefile(path.parent)


def build(analyzer: Analyzer) -> Page:
    """Put the report together."""
    run = analyzer.run
    ranks, _ = analyzer.summaries()
    page = Page(f"haiprof: {run.name}")
    command = " ".join(run.command)
    facts = [
        run.host,
        f"{utc(run.created_ns)} UTC",
        command if len(command) <= 300 else command[:299] + "…",
    ]
    page.add(f"<h1>{html.escape(run.name)}</h1>")
    page.add(f'<p class="sub">{" · ".join(html.escape(fact) for fact in facts if fact)}</p>')
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in analyzer.headline())
    page.card("", f'<ol class="headline">{lines}</ol>')
    findings.fill(page, analyzer)

    if (traces := analyzer.deep) is not None:
        for section in deep.show(traces):
            section.fill(page)
    pipeline.section(analyzer).fill(page)
    overview.show(analyzer).fill(page)
    _add_ranks(page, analyzer, ranks)
    _add_events(page, analyzer)
    if not analyzer.traced:  # by another profiler, of which nothing of this is known
        page.card("What was not collected, and why", _not_collected(analyzer))
        page.card("What the sampling cost", _cost(analyzer), _recording_cost(ranks))
    problems = [*analyzer.problems(), *_losses(analyzer)]
    if problems:
        shown = problems[:_EVENT_ROWS]
        if len(problems) > len(shown):
            shown.append(f"and {len(problems) - len(shown)} more")
        items = "".join(f"<li>{html.escape(problem)}</li>" for problem in shown)
        page.card("What is missing from this report", f'<ul class="problems">{items}</ul>')
    return page


def _add_ranks(page: Page, analyzer: Analyzer, ranks: list[Summary]) -> None:
    order = slowest_first(ranks)
    if len(order) > _SECTIONS:
        page.card("", f'<p class="note">Of {len(order)} ranks, the {_SECTIONS} slowest follow.</p>')
        order = order[:_SECTIONS]
    for summary in order:
        shown = one_rank.show(analyzer, [summary.process], _POINTS)
        # For a trace without phases the sections above show everything.
        if shown.figure.data or not analyzer.traced:
            shown.fill(page)


def _add_events(page: Page, analyzer: Analyzer) -> None:
    kind = pl.col("kind").cast(pl.String)
    # A measurement of the overhead is news when something follows from it.
    measured = kind == overhead_view.EVENT_KIND
    followed = pl.col("attributes").str.contains("stepped_down_to", literal=True).fill_null(False)
    # How long a source of samples takes to read is reported once, by attributes in microseconds.
    latency = (kind == "source") & pl.col("attributes").str.contains(r'_us"\s*:').fill_null(False)
    events = (
        analyzer.events()
        .filter(kind.is_in(_ORDINARY).not_(), measured.not_() | followed, latency.not_())
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
        for node, rank, pid, time, what, text in events.iter_rows()
        if (node, pid, what) not in quiet
    ]
    with_exit = {(node, pid) for node, _, pid, _, what, _ in events.iter_rows() if what == "exit"}
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
    if len(rows) > _EVENT_ROWS:
        note = f"{_EVENT_ROWS} of {len(rows)}: the most important, and of these the first."
        rows = sorted(sorted(rows, key=_importance)[:_EVENT_ROWS], key=lambda row: row[0])
    if not rows:
        page.card(
            "Events", '<p class="note">No loss, death, full disk or failed hook was recorded.</p>'
        )
        return
    cells = [[utc(time) if time else NOTHING, who, what, text] for time, who, what, text in rows]
    page.card(
        "", Grid("Events", ["UTC", "where", "kind", "what happened"], cells, note=note).to_html()
    )


def _importance(row: tuple[int, str, str, str]) -> int:
    return _FIRST.index(row[2]) if row[2] in _FIRST else len(_FIRST)


def _who(node: str, rank: int | None) -> str:
    return f"{node}, rank {rank}" if rank is not None else node


def _not_collected(analyzer: Analyzer) -> str:
    missing: dict[tuple[str, str, str, str], list[str]] = {}
    asked = 0
    for process in analyzer.run.processes:
        asked += len(process.sources)
        for source in process.sources:
            if source.state != "ok":
                key = (source.name, source.state, source.reason, source.fix)
                missing.setdefault(key, []).append(process.label)
    if not asked:
        return '<p class="note">The recorder left no list of its sources in this run.</p>'
    if not missing:
        return '<p class="note">Every source that was asked for could be read.</p>'
    rows = [[*key, _few(where)] for key, where in sorted(missing.items())]
    return Grid("", ["source", "state", "why", "how to fix it", "where"], rows).to_html()


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _cost(analyzer: Analyzer) -> str:
    samples = analyzer.samples(_COST).with_columns(pl.col("instance").cast(pl.String))
    # Sources are read at intervals of their own, so each is averaged before they are added.
    parts = (
        samples.filter(pl.col("value").is_finite())
        .sort("time", maintain_order=True)
        .group_by("node", "rank", "pid", "instance", maintain_order=True)
        .agg(mean_over_time("value"))
    )
    if not parts.height:
        return f'<p class="note">Not measured in this run: it holds no samples of {_COST}.</p>'
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
    return f"<p>{html.escape(text)}.</p>"


def _recording_cost(ranks: list[Summary]) -> str:
    measured = gpu_findings.measured_overhead(ranks)
    if not measured:
        return ""
    compared = any(s.overhead is not None and s.overhead["overhead"] is not None for s in ranks)
    by = ", by comparing steps with and without it" if compared else ""
    text = f"Recording kernels{by}: {measured}."
    return f"<p>{html.escape(text)}</p>"


def _fine(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.01 else percent(share)


def _losses(analyzer: Analyzer) -> Iterable[str]:
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
