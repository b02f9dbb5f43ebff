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


def show(analyzer: Analyzer) -> list[Section]:
    """Show the traced ranks; detailed tables are of the slowest one.

    The last sections name what the traces lack and why, and which views are empty.
    """
    overview = analyzer.overview()
    found = analyzer.recommendations()
    one = OneTrace.slowest(overview.ranks)
    sections = [
        why.section(found, overview.steps, one),
        devices.section(analyzer, overview, one),
        communication.section(analyzer, one),
        path.section(analyzer, one),
        operators.section(analyzer, one),
        roofline.section(analyzer, one),
        kernels.section(analyzer, one),
        launches.section(analyzer, one),
        modules.section(analyzer, one),
        memory.section(analyzer, one),
        unknown.section(analyzer),
    ]
    lacks = [name for section in sections for name in section.missing]
    if lacks:
        sections.append(Section("", [], [f"Not in this trace: {', '.join(lacks)}."]))
    return sections
