"""``haiprof diagnose``: says what costs a run its time, who is to blame, and what to do."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from haiprof.cli.logged import of_same_name
from haiprof.cli.process.console import spinner
from haiprof.cli.report import open_run, say_problems
from haiprof.common.choices import quoted
from haiprof.common.numbers import milliseconds, percent
from haiprof.common.printable import printable
from haiprof.common.rank_names import ranks_named
from haiprof.errors import HaiprofError
from haiprof.sources.own import created_ns, newest_first, runs_in

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from haiprof.analyzer import Analyzer
    from haiprof.findings.finding import Finding

#: As many findings as a person acts on; --json prints all.
_MOST: Final = 8


#: What is given instead of a run that is compared with.
_LAST: Final = "last"
#: How many earlier runs are opened to find one that ended well.
_MOST_TRIED: Final = 20


def diagnose(
    path: str,
    rank: int | None,
    between: str,
    baseline: str,
    executor: Executor | None,
    *,
    as_json: bool,
) -> None:
    """Print the findings, the most important first.

    Args:
        path: a run folder, a log directory with one run, or traces.
        rank: what concerns this one only.
        between: ``FROM:UNTIL``, seconds into the run; empty: all of it.
        baseline: a run that is known to be good; ``last``: the last one of the same name that ended
            well; empty: none.
        executor: does the work of each rank.
        as_json: print them as JSON instead, with their evidence.

    Raises:
        HaiprofError: the run cannot be read, or has no such rank or time.
    """
    window = _window(between)
    opened = open_run(path, executor)
    if window is not None:
        opened = opened.between(*window)
    good = _good(opened, baseline, executor) if baseline else None
    with spinner("looking for what costs time"):
        found = opened.findings(rank, baseline=good)
    say_problems(opened)
    if as_json:
        from haiprof.findings.finding import document

        json.dump(document(opened.run.name, found), sys.stdout, indent=2, ensure_ascii=True)
        sys.stdout.write("\n")
        return
    for line in _lines(opened, found, good):
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


def _good(opened: Analyzer, baseline: str, executor: Executor | None) -> Analyzer:
    """Open the run that is compared with."""
    if baseline != _LAST:
        return open_run(baseline, executor)
    folder = opened.run.folder
    name = of_same_name(folder)
    try:
        named = [run for run in runs_in(folder.parent) if of_same_name(run) == name]
    except OSError as error:
        raise HaiprofError(f"--baseline last: {folder.parent}: {error.strerror}") from None
    earlier = [run for run in named if created_ns(run) < opened.run.created_ns]
    for run in newest_first(earlier)[:_MOST_TRIED]:
        found = open_run(run, executor)
        over = all(process.state != "live" for process in found.run.processes)
        if over and found.failure() is None and any(each.steps for each in found.summaries()[0]):
            return found
    raise HaiprofError(
        f"--baseline last: no earlier run of {quoted(name)} in {folder.parent} ended well; give "
        "the folder of another"
    )


def _lines(opened: Analyzer, found: Sequence[Finding], good: Analyzer | None) -> list[str]:
    longer = any(each.source == "baseline" for one in found for each in one.evidence)
    lines = []
    if good is not None and not longer:
        lines.append(f"Steps take no longer than in {good.run.name}, as far as is certain")
    if not found:
        return [*lines, _nothing(opened)]
    for number, finding in enumerate(found[:_MOST], 1):
        lines.append(f"{number}. {finding.sentence()}")
        who = f", {ranks_named(finding.ranks)}" if finding.ranks else ""
        lines.append(f"   {finding.kind}{who}{_sure(finding)}")
        for each in finding.evidence:
            first, *rest = each.sentence().splitlines()
            lines += [f"   evidence: {first}", *(f"             {line}" for line in rest)]
        lines.append(f"   what to do: {finding.advice}")
    more = len(found) - _MOST
    return [*lines, f"{more} more: --json prints all"] if more > 0 else lines


def _nothing(opened: Analyzer) -> str:
    ledger = opened.ledger()
    if not ledger.height:
        return "Nothing was recorded that time could be charged to"
    return "Nothing costs as much as 5 % of the time for certain"


def _sure(finding: Finding) -> str:
    text = f", confidence {percent(finding.confidence)}"
    if finding.low_ns is not None and finding.high_ns is not None:
        text += f"; lost {milliseconds(finding.low_ns)} to {milliseconds(finding.high_ns)}"
    return text
