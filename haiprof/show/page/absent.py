"""What was not recorded and why, what the recording cost, and what is missing from the page.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from typing import Final

from haiprof.findings import thinned
from haiprof.show import recording
from haiprof.show.grid import Grid, cut
from haiprof.show.page import document
from haiprof.show.page.context import Context, table

_PROBLEMS: Final = 200


def sections(found: Context) -> list[document.Section]:
    """Return the sections; last what could not be read, which the sections before may add to."""
    analyzer = found.analyzer
    # Of what another profiler recorded, nothing of this is known.
    made = [] if analyzer.traced else _recording(found)
    removed = thinned.lines(analyzer.run.processes)
    problems = [*analyzer.problems(), *recording.losses(analyzer), *removed]
    shown = problems[:_PROBLEMS]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more")
    text = _text("problems", "What is missing from this report", shown)
    if not shown:
        text["empty"] = "Nothing: every file could be read, and no record was lost or removed."
    made.append(text)
    return made


def _recording(found: Context) -> list[document.Section]:
    analyzer = found.analyzer
    title = "What was not collected, and why"
    missing = recording.not_collected(analyzer)
    made: list[document.Section] = []
    if isinstance(missing, Grid):
        made.append(table(missing, "sources"))
        made[0]["title"] = title
    else:
        made.append(_text("sources", title, [missing]))
    cost = recording.cost(analyzer, found.ranks)
    made.append(_text("cost", "What the sampling cost", cost))
    return made


def events(found: Context) -> list[document.Section]:
    """Return the table of what happened; its rows lead nowhere: the marks show when it was."""
    grid = recording.events(found.analyzer)
    section = table(grid, "events")
    if not grid.rows:
        section["empty"] = "No loss, death, full disk or failed hook was recorded."
    return [section]


def _text(identifier: str, title: str, lines: list[str]) -> document.Text:
    return {
        "kind": "text",
        "id": identifier,
        "title": title,
        "lines": [cut(line) for line in lines],
    }
