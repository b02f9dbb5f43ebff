"""Puts the document of a recorded run together, tab by tab."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from haiprof.answers import window
from haiprof.show.figures import utc
from haiprof.show.grid import cut
from haiprof.show.page import (
    absent,
    device,
    document,
    findings,
    flames,
    heat,
    lanes,
    machine,
    pipeline,
    timeline,
)
from haiprof.show.page.context import Context, context
from haiprof.show.page.earlier import Earlier

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer


class Built(NamedTuple):
    """A document and the blobs that its columns are in."""

    document: document.Document
    blobs: list[str]


def build(analyzer: Analyzer, before: Earlier | None = None) -> Built:
    """Return the page of a recorded run, as data; ``before`` is shown beside it."""
    found = context(analyzer)
    wrong = [*findings.sections(found), *absent.events(found)]
    on_machine = machine.sections(found)
    on_devices = device.over_time(found)
    over_time = [*timeline.sections(found), *on_devices, *timeline.beside(found, on_machine)]
    tabs: list[document.Tab] = [
        {"id": "wrong", "title": "What is wrong", "sections": wrong},
        {"id": "run", "title": "Over time", "sections": over_time},
        {"id": "ranks", "title": "Ranks", "sections": heat.sections(found, before)},
        {
            "id": "step",
            "title": "Inside a step",
            "sections": [*lanes.sections(found), *device.tables(found)],
        },
        {"id": "code", "title": "Code", "sections": flames.sections(found, before)},
        {"id": "machine", "title": "Machine", "sections": on_machine},
        {"id": "missing", "title": "What is missing", "sections": absent.sections(found)},
    ]
    pipelined = pipeline.sections(found)
    if pipelined:
        tabs.insert(4, {"id": "pipeline", "title": "Pipeline", "sections": pipelined})
    return Built(_document(found, tabs), found.columns.encoded())


def _document(found: Context, tabs: list[document.Tab]) -> document.Document:
    from haiprof import __version__

    analyzer, run = found.analyzer, found.analyzer.run
    facts = [run.host, f"{utc(run.created_ns)} UTC", " ".join(run.command)]
    ranks = sorted({s.process.rank for s in found.ranks if s.process.rank is not None})
    return {
        "format": document.FORMAT,
        "title": cut(f"haiprof: {run.name}"),
        "name": cut(run.name),
        "facts": [cut(fact) for fact in facts if fact],
        "origin_ns": str(run.created_ns),
        "duration": duration(found),
        "headline": [cut(line) for line in analyzer.headline()],
        "ranks": ranks,
        "chosen_ranks": [one.rank for one in found.chosen if one.rank is not None],
        "tabs": tabs,
        "made_by": f"haiprof {__version__}",
    }


def duration(found: Context) -> float:
    """Return how long the run lasted, or of one that goes on what was recorded."""
    lasted = window.lasted(found.analyzer.run) or 0.0
    ends = [int(s.trend_start[-1] + s.trend_ns[-1]) for s in found.ranks if s.steps]
    return max([lasted, *(found.second(end) for end in ends)])
