"""The report: one HTML file that says how a run went, and works without a network."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from haiprof.common.owned_files import replace_or_fill
from haiprof.errors import HaiprofError
from haiprof.runs import Run
from haiprof.show import deep, findings, one_rank, overview, pipeline, recording
from haiprof.show.figures import utc
from haiprof.show.page.build import build as document_of
from haiprof.show.page.compare import compare
from haiprof.show.page.write import to_html
from haiprof.show.plotly_page import Page
from haiprof.views.run.overview import Summary, slowest_first

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Ranks that get a section of their own: of more, the slowest.
_SECTIONS = 16
#: Points of a series in a rank's section; fewer than in a notebook, where there is one rank only.
_POINTS = 1_000
_PROBLEMS = 200


def write(analyzer: Analyzer, path: Path, before: Analyzer | None = None) -> Path:
    """Write the report to ``path``; a file of that name is replaced only by a whole new one.

    So is a link in the folder of the run, which may be somebody else's.

    Args:
        analyzer: the run.
        path: the file to write.
        before: a run that is compared with it.

    Raises:
        HaiprofError: the file cannot be written, or these two cannot be compared.
    """
    page = _page(analyzer, before)
    # A path may hold bytes that are not UTF-8.
    content = page.encode("utf-8", "replace")
    try:
        replace_or_fill(path, content, through=not _is_in(analyzer.run, path))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise HaiprofError(f"{path}: cannot be written ({reason}): choose another file") from None
    return path


def _page(analyzer: Analyzer, before: Analyzer | None) -> str:
    if before is not None:
        return to_html(compare(before, analyzer))
    # What deep traces say is only in the older kind of page yet.
    if analyzer.deep is not None:
        return build(analyzer).to_html()
    return to_html(document_of(analyzer))


def _is_in(run: Run, path: Path) -> bool:
    folder = Path(run.source or run.folder)
    return folder.is_dir() and folder.samefile(path.parent)


def build(analyzer: Analyzer) -> Page:
    """Put the report of a run with deep traces together."""
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
    events = recording.events(analyzer)
    if events.rows:
        page.card("", events.to_html())
    else:
        nothing = "No loss, death, full disk or failed hook was recorded."
        page.card("Events", f'<p class="note">{nothing}</p>')
    if not analyzer.traced:  # by another profiler, of which nothing of this is known
        missing = recording.not_collected(analyzer)
        text = (
            f'<p class="note">{html.escape(missing)}</p>'
            if isinstance(missing, str)
            else missing.to_html()
        )
        page.card("What was not collected, and why", text)
        costs = recording.cost(analyzer, ranks)
        page.card("What the sampling cost", *(f"<p>{html.escape(line)}</p>" for line in costs))
    problems = [*analyzer.problems(), *recording.losses(analyzer)]
    if problems:
        shown = problems[:_PROBLEMS]
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
