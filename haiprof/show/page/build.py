"""Puts the document of a recorded run together, tab by tab."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from haiprof.answers import window
from haiprof.common.numbers import utc
from haiprof.show.grid import SENTENCE, cut
from haiprof.show.page import (
    absent,
    deep,
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
    # First: findings may rest on deep traces, and their problems are known when they were read.
    traces = {} if analyzer.deep is None else deep.tabs(analyzer.deep, found.columns)
    of_wrong, of_missing = (
        traces.pop(name)["sections"] if name in traces else []
        for name in (deep.WRONG, deep.MISSING)
    )
    wrong = [*findings.sections(found), *of_wrong, *absent.events(found)]
    on_machine = machine.sections(found)
    on_devices = device.over_time(found)
    over_time = [*timeline.sections(found), *on_devices, *timeline.beside(found, on_machine)]
    own_traces = None if analyzer.traced or analyzer.deep is None else analyzer.deep
    traced = None if own_traces is None else context(own_traces, found)
    inside = [*lanes.sections(found, traced), *device.tables(found)]
    code = flames.sections(found, before)
    tabs: list[document.Tab] = [
        {"id": deep.WRONG, "title": "What is wrong", "sections": wrong},
        {"id": "run", "title": "Over time", "sections": over_time},
        {"id": "ranks", "title": "Ranks", "sections": heat.sections(found, before)},
        {"id": "pipeline", "title": "Pipeline", "sections": pipeline.sections(found)},
        {"id": "step", "title": "Inside a step", "sections": inside},
        *traces.values(),
        {"id": "code", "title": "Code", "sections": [] if analyzer.traced else code},
        {"id": "machine", "title": "Machine", "sections": on_machine},
        {
            "id": deep.MISSING,
            "title": "What is missing",
            "sections": [*of_missing, *absent.sections(found)],
        },
    ]
    # A trace knows nothing of some, few jobs have a pipeline.
    spared = ("pipeline", "code", "machine") if analyzer.traced else ("pipeline",)
    kept = [tab for tab in tabs if tab["sections"] or tab["id"] not in spared]
    return Built(_document(found, kept), found.columns.encoded())


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
        "headline": [cut(line, SENTENCE) for line in analyzer.headline()],
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
