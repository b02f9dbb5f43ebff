"""Deep traces as sections of the report: why it is slow, where, and what in detail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from haiprof.show.deep import (
    communication,
    devices,
    kernels,
    launches,
    memory,
    modules,
    operators,
    path,
    roofline,
    unknown,
    why,
)
from haiprof.show.deep.section import OneTrace, Section

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer


def show(analyzer: Analyzer) -> dict[str, Section]:
    """Show the traced ranks, by question; detailed tables are of the slowest one.

    The last ones name what the traces lack and why, and which views are empty.
    """
    overview = analyzer.overview()
    found = analyzer.recommendations()
    one = OneTrace.slowest(overview.ranks)
    answers = {
        "why": why.section(found, overview.steps, one),
        "devices": devices.section(analyzer, overview, one),
        "communication": communication.section(analyzer, one),
        "path": path.section(analyzer, one),
        "operators": operators.section(analyzer, one),
        "roofline": roofline.section(analyzer, one),
        "kernels": kernels.section(analyzer, one),
        "launches": launches.section(analyzer, one),
        "modules": modules.section(analyzer, one),
        "memory": memory.section(analyzer, one),
        "unknown": unknown.section(analyzer),
    }
    lacks = [name for answer in answers.values() for name in answer.missing]
    if lacks:
        line = f"Not in this trace: {', '.join(lacks)}."
        answers["lacking"] = Section("Not in these traces", [], [line])
    return answers
