"""``haiprof diagnose``: says what costs a run its time, who is to blame, and what to do."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from haiprof.cli.process.console import spinner
from haiprof.cli.report import open_run, say_problems
from haiprof.common.choices import quoted
from haiprof.common.numbers import milliseconds, percent
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from haiprof.analyzer import Analyzer
    from haiprof.findings.finding import Evidence, Finding

#: As many findings as a person acts on; --json prints all.
_MOST: Final = 8


def diagnose(
    path: str, rank: int | None, between: str, executor: Executor | None, *, as_json: bool
) -> None:
    """Print the findings, the most important first.

    Args:
        path: a run folder, a log directory with one run, or traces.
        rank: what concerns this one only.
        between: ``FROM:UNTIL``, seconds into the run; empty: all of it.
        executor: does the work of each rank.
        as_json: print them as JSON instead, with their evidence.

    Raises:
        HaiprofError: the run cannot be read, or has no such rank or time.
    """
    window = _window(between)
    opened = open_run(path, executor)
    if window is not None:
        opened = opened.between(*window)
    with spinner("looking for what costs time"):
        found = opened.findings(rank)
    say_problems(opened)
    if as_json:
        from haiprof.findings.finding import document

        json.dump(document(opened.run.name, found), sys.stdout, indent=2, ensure_ascii=True)
        sys.stdout.write("\n")
        return
    for line in _lines(opened, found):
        print(printable(line))


def _window(between: str) -> tuple[float, float] | None:
    if not between:
        return None
    first, colon, last = between.partition(":")
    try:
        window = float(first or 0.0), float(last or math.inf)
    except ValueError:
        window = math.nan, math.nan
    if not colon or not 0 <= window[0] < window[1]:
        raise HaiprofError(
            f"--between {quoted(between)}: give seconds into the run as FROM:UNTIL, as in 60:120"
        )
    return window


def _lines(opened: Analyzer, found: Sequence[Finding]) -> list[str]:
    if not found:
        return [_nothing(opened)]
    lines = []
    for number, finding in enumerate(found[:_MOST], 1):
        lines.append(f"{number}. {finding.sentence()}")
        lines.append(f"   {finding.kind}{_who(finding)}{_sure(finding)}")
        lines += [f"   evidence: {_figure(each)}" for each in finding.evidence]
        lines.append(f"   what to do: {finding.advice}")
    more = len(found) - _MOST
    return [*lines, f"{more} more: --json prints all"] if more > 0 else lines


def _nothing(opened: Analyzer) -> str:
    ledger = opened.ledger()
    if not ledger.height:
        return "Nothing was recorded that time could be charged to"
    return "Nothing costs as much as 5 % of the time for certain"


def _who(finding: Finding) -> str:
    ranks = finding.ranks
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if ranks[8:] else "")
    return f", rank {shown}" if len(ranks) == 1 else f", ranks {shown}"


def _sure(finding: Finding) -> str:
    text = f", confidence {percent(finding.confidence)}"
    if finding.low_ns is not None and finding.high_ns is not None:
        text += f"; lost {milliseconds(finding.low_ns)} to {milliseconds(finding.high_ns)}"
    return text


def _figure(evidence: Evidence) -> str:
    value = _value(evidence.value, evidence.unit)
    of = "" if evidence.reference is None else f" of {_value(evidence.reference, evidence.unit)}"
    if evidence.unit == "":
        return f"{evidence.value} ({evidence.source})"
    return f"{evidence.metric} {value}{of} ({evidence.source})"


def _value(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit == "ns":
        return milliseconds(value)
    return percent(value) if unit == "share" else f"{value:.4g} {unit}"
