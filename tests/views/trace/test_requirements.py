"""Requirements of views: of a trace that meets all, of one that meets none, and in between."""

from __future__ import annotations

import re

from haiprof.answers.deep import TraceAnswers
from haiprof.export import csv
from haiprof.views.trace import requirements

#: Views on the run itself, or on what haiprof recorded: a deep trace has none.
NO_TRACES = {
    "flame",
    "stacks",
    "collectives",
    "nccl",
    "waits",
    "processes",
    "phases",
    "device_phases",
    "metrics",
    "samples",
    "events",
    "unknown",
    "pipeline",
    "slowdown",
    "imbalance",
    "clock",
    "efficiency",
    "goodput",
    "ledger",
    "findings",
}


def everything() -> set[str]:
    return {key for want in requirements.WANTS for key in (want.needs, want.given or want.needs)}


def test_what_holds_all_lacks_nothing() -> None:
    assert requirements.missing(everything()) == []


def test_what_holds_nothing_lacks_every_view_once_or_for_different_things() -> None:
    found = requirements.missing(set())
    assert all(want.given is None for want in found)
    assert len({(want.view, want.needs) for want in found}) == len(found)


def test_only_what_could_be_known_is_missed() -> None:
    available = everything() - {"spans.shapes", "kernels.occupancy", requirements.COMMUNICATION}
    found = {(want.view, want.needs) for want in requirements.missing(available)}
    assert ("operators", "spans.shapes") in found
    assert ("overview", "kernels.occupancy") in found
    assert ("overlap", requirements.COMMUNICATION) in found
    assert ("distributed", "collectives.bytes") not in found
    without = {(want.view, want.needs) for want in requirements.missing(available - {"spans[op]"})}
    assert ("operators", "spans[op]") in without
    assert ("operators", "spans.shapes") not in without


def test_every_view_of_a_deep_trace_says_what_it_wants() -> None:
    views = {re.sub("_by_(shapes|launch|kernel|device)$", "", name) for name in csv.VIEWS}
    assert {want.view for want in requirements.WANTS} == views - NO_TRACES
    methods = {name for name in dir(TraceAnswers) if not name.startswith("_")} | {
        "steps",
        "kernels",
    }
    assert {want.view for want in requirements.WANTS} <= methods
