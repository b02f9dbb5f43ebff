"""Prints findings: a table for people, lines for pipes, JSON for programs.

Tests: tests/cli/test_doctor.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from haiprof.cli.doctor.finding import ABSENT, BROKEN, DENIED, OK, Finding
from haiprof.cli.doctor.plan import COLUMNS, Plan
from haiprof.common.printable import printable

#: What programs read under another name.
_KEYS: Final = {"fix": "mend"}
_COLOURS: Final = {OK: "green", ABSENT: "yellow", DENIED: "yellow", BROKEN: "red"}


def as_json(
    findings: Sequence[Finding], works: bool | None, plan: Plan, unmet: Sequence[str] | None
) -> str:
    """Return the document: ``ok`` is null where the core was not examined."""
    from haiprof import __version__

    document: dict[str, Any] = {"haiprof": __version__, "ok": works}
    document["findings"] = [
        {_KEYS.get(name, name): value for name, value in asdict(f).items()} for f in findings
    ]
    document["uncore_plan"] = plan.events
    document["uncore_problems"] = plan.problems
    document["uncore_unknown"] = plan.unknown
    if unmet is not None:
        document["unmet"] = list(unmet)
    return json.dumps(document, indent=1)


def show(findings: Sequence[Finding], plan: Plan | None) -> None:
    """Print the findings, and the plan if there is one to show."""
    if sys.stdout.isatty():
        _show_tables(findings, plan)
        return
    for f in findings:
        fix = f"; fix: {f.fix}" if f.fix else ""
        print(printable(f"{f.state:<8}{f.what}: {f.found}{fix}"))
    if plan is not None:
        rows = [COLUMNS, *(tuple(str(event[c]) for c in COLUMNS) for event in plan.events)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        for row in rows:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print(printable("  ".join(padded).rstrip()))


def _show_tables(findings: Sequence[Finding], plan: Plan | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("recorder", "", "state", "found", "fix"):
        table.add_column(heading, overflow="fold")
    before = ""
    for f in findings:
        group = Text(f.recorder if f.recorder != before else "", style="bold")
        before = f.recorder
        state = Text(f.state, style=_COLOURS.get(f.state, ""))
        what, found, fix = (Text(printable(text)) for text in (f.what, f.found, f.fix))
        table.add_row(group, what, state, found, fix)
    console = Console()
    console.print(table)
    if plan is None:
        return
    counters = Table(box=None, pad_edge=False)
    for heading in COLUMNS:
        counters.add_column(heading)
    for event in plan.events:
        counters.add_row(*(Text(printable(str(event[c]))) for c in COLUMNS))
    console.print()
    console.print(counters)
