"""Says what costs a running job time, for its recorder; a process of its own.

It prints one JSON object and ends. Of a job on several nodes it looks at the ranks of one: what
those wait for elsewhere is not known there, and so nobody is blamed for it.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from haiprof.answers import findings as finding_answers
from haiprof.answers import window
from haiprof.answers.ranks import Ranks
from haiprof.answers.recorded import RecordedAnswers
from haiprof.common.live_findings import Found
from haiprof.common.numbers import milliseconds
from haiprof.findings.finding import Evidence, Finding
from haiprof.findings.recorded import baseline_rules, cpu_rules, rules
from haiprof.findings.recorded.case import Case, Rank
from haiprof.runs import Run
from haiprof.sources.own import open_run

#: CPU time, s, and memory, bytes, that it may take; far more than any run needs.
_CPU_S: Final = 60
_MEMORY: Final = 4 << 30
#: What makes steps slower takes at least this part of what they take longer.
_PART: Final = 0.5
#: … or this part, if it happens in the function that takes most of what they take longer.
_PART_THERE: Final = 0.25
#: A line that was seen less often may be so by chance.
_FEWEST: Final = 10
#: Nobody reads more.
_MOST: Final = 3
#: After this time, ns, what was recorded is written.
_WRITTEN_NS: Final = 5_200_000_000
_ADVICE: Final = "look at what the job and the machine do since then: haiprof stacks, haiprof top"
_BEFORE: Final = "the minute before"

#: ns UTC.
Window = tuple[int, int]


def main() -> None:
    """Print ``{"findings": […], "problem": …}``: what was found, or why nothing could be.

    The arguments are the seconds that it may take, the run's folder, the node, and the begin and
    end of one window (ns UTC) or of two: if steps have become slower, those before and after.
    """
    seconds, folder, node, *edges = sys.argv[1:]
    # It keeps the recorder's priority: with a lower one it takes minutes where other programs take
    # the cores, and that must be said while it is of use.
    # Should whoever wants to know this have ended, nobody else ends us.
    signal.alarm(int(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    found, problem = [], None
    try:
        windows = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        # By now all that this needs is imported.
        ready_ns = windows[-1][1] + _WRITTEN_NS - time.time_ns()
        time.sleep(min(max(ready_ns / 1e9, 0.0), float(seconds) / 2))
        found = look(Path(folder), node, windows)
    except Exception as error:
        problem = repr(error)
    said = [_live(one).as_json() for one in found[:_MOST]]
    print(json.dumps({"findings": said, "problem": problem}))


def look(folder: Path, node: str, windows: list[Window]) -> list[Finding]:
    """Return what costs the ranks of a node time: in a window, or since steps became slower.

    Args:
        folder: of the run.
        node: which of its nodes.
        windows: one, or those before and after a change.

    Raises:
        HaiprofError: the run cannot be read.
    """
    run = open_run(folder)
    here = replace(run, processes=tuple(p for p in run.processes if p.node == node))
    cases = [_case(here, *each) for each in windows]
    return changed(*cases) if len(cases) == 2 else lasting(*cases)


def _case(run: Run, first: int, last: int) -> Case:
    part = window.part(run, first, last)
    if part is None:
        return Case([])
    ranks = Ranks(part, None)
    return finding_answers.case(ranks, RecordedAnswers(ranks))


def lasting(case: Case) -> list[Finding]:
    """Return what costs a part of a run its time."""
    return [one for one in rules.findings(case) if _of_steps(one)]


def changed(before: Case, after: Case) -> list[Finding]:
    """Return why steps take longer than before; empty: they do not, for certain.

    A rule's finding that explains most of the difference is the reason, or one that is of the
    function in which most of it is. Otherwise it is said in what of a step the difference is.
    """
    longer = baseline_rules.slower(after, before, _BEFORE)
    if not longer:
        return []
    step = next(each for each in longer[0].evidence if each.metric == "a step")
    took, takes = float(step.reference or 0), float(step.value)
    cost = {(one.kind, one.ranks): (one.share or 0.0) * took for one in rules.findings(before)}
    explains = [
        (((one.share or 0.0) * takes - cost.get((one.kind, one.ranks), 0.0)) / (takes - took), one)
        for one in lasting(after)
    ]
    for part, one in explains:
        if part >= _PART:
            return [replace(one, problem=_since(step, one.problem))]
    if longer[0].kind != "regression":
        return longer
    by_cpus = _explained(after, step, longer[0])
    if by_cpus is not None:
        return [by_cpus]
    placed = _placed(before, after, longer[0], takes - took)
    there = rules.without_number(placed.line)
    for part, one in explains:
        if part >= _PART_THERE and there and rules.without_number(one.line) == there:
            return [replace(one, problem=_since(step, one.problem))]
    return [placed]


def _explained(after: Case, step: Evidence, longer: Finding) -> Finding | None:
    """Say who takes the CPUs if steps take longer because of that."""
    if longer.phase != "cpu_queue":
        return None
    for taker in filter(None, (cpu_rules.who_takes_cpus(after, rank) for rank in after.ranks)):
        problem = _since(step, taker.problem)
        return replace(longer, kind=taker.kind, problem=problem, advice=taker.advice)
    return None


def _placed(before: Case, after: Case, longer: Finding, more: float) -> Finding:
    """Say at which line of the job most of what a step takes longer (ns) is spent, if at one."""
    longer = replace(longer, advice=_ADVICE)
    earlier = {rank.numbers: rank for rank in before.ranks}
    for rank in after.ranks:
        if rank.numbers not in earlier:
            continue
        now, then = _by_line(rank), _by_line(earlier[rank.numbers])
        for line, ns in now.items():
            if ns - then.get(line, 0.0) >= _PART * more:
                return replace(longer, line=line, problem=f"{longer.problem}, most of it at {line}")
    return longer


def _by_line(rank: Rank) -> dict[str, float]:
    """Return how long the training thread is at each line of the job, ns a step."""
    mine = rank.lines.filter(~pl.col("worker"), pl.col("line").is_not_null())
    rows = mine.group_by("line", "cause").agg(pl.col("samples").sum())
    rows = rows.filter(pl.col("samples") >= _FEWEST)
    steps = max(int(rank.ledger.count.sum()), 1)
    found: dict[str, float] = {}
    for line, cause, samples in rows.iter_rows():
        found[line] = found.get(line, 0.0) + rank.spent({cause: samples}) / steps
    return found


def _of_steps(finding: Finding) -> bool:
    """Say whether a finding costs time while the job trains."""
    return finding.share is not None and not finding.ended and finding.phase != "startup"


def _since(step: Evidence, problem: str) -> str:
    takes, took = (milliseconds(float(each or 0)) for each in (step.value, step.reference))
    return f"A step takes {takes} instead of {took} in {_BEFORE}. {problem}"


def _live(finding: Finding) -> Found:
    return Found(
        finding.kind,
        finding.problem,
        finding.advice,
        finding.ranks,
        min(max(finding.share or 0.0, 0.0), 1.0),
        finding.line,
    )
