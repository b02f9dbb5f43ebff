"""The three most important sentences about a run. Every number in them comes from the tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from haiprof.common.numbers import milliseconds, percent, size
from haiprof.findings import endings
from haiprof.findings.finding import LEAST, Finding
from haiprof.findings.recorded.hang_rules import KINDS as HANGS
from haiprof.runs import Process
from haiprof.views.intervals import merge
from haiprof.views.run import blocks
from haiprof.views.run.gpu_use import added
from haiprof.views.run.overview import Summary, is_pressure, phase_names
from haiprof.views.run.series import Stat

_DISK = "disk"
#: The kinds of events that the lines use.
EVENT_KINDS = (_DISK,)
_CPU_LIMIT = "cgroup.cpu_limit.cores"

#: A lag or a pressure is worth a sentence from here on.
_LATE = 0.10
_PRESSURE = 0.10

#: A rank that is late in a smaller share of the steps is not the main problem.
_LASTS = 0.10


def headline(
    ranks: list[Summary],
    nodes: list[Summary],
    events: pl.DataFrame,
    late: pl.DataFrame,
    found: Sequence[Finding],
) -> list[str]:
    """Return three lines: the steps, the machine, and the most important remark.

    Args:
        ranks: summaries of the rank processes (or of any processes that had steps).
        nodes: summaries of the node folders.
        events: those of :data:`EVENT_KINDS`.
        late: result of :meth:`haiprof.analyzer.Analyzer.imbalance`.
        found: result of :meth:`haiprof.analyzer.Analyzer.findings`.
    """
    machine = _machine(ranks, nodes) + _gpus(ranks)
    return [_steps(ranks, nodes), machine, _remark(ranks, nodes, events, late, found)]


def _steps(ranks: list[Summary], nodes: list[Summary]) -> str:
    stepped = [s for s in ranks if s.steps]
    if not stepped:
        loaded = [s.process.loaded for s in nodes]
        return f"No step was recorded: {_why_no_step([s.process for s in ranks], loaded)}"
    counts: dict[object, int] = {}
    for summary in stepped:
        counts[summary.rank] = counts.get(summary.rank, 0) + summary.steps
    fewest, most = min(counts.values()), max(counts.values())
    counted = f"{most} steps" if fewest == most else f"{fewest} to {most} steps"
    if most == 1:
        counted = "1 step"
    of = f" on each of {len(counts)} ranks" if len(counts) > 1 else ""
    if len(stepped) > len(counts):
        of += f" in {len(stepped)} processes"
    median = statistics.median(s.median_ns for s in stepped if s.median_ns is not None)
    p95 = statistics.median(s.p95_ns for s in stepped if s.p95_ns is not None)
    line = f"{counted}{of}, median {milliseconds(median)} (p95 {milliseconds(p95)})"
    names = phase_names(stepped)
    total = sum(s.step_ns for s in stepped)
    shares = (
        {name: sum(s.phase_ns.get(name, 0) for s in stepped) / total for name in names}
        if total
        else {}
    )
    if set(shares) - {"other"}:
        largest = sorted((n for n in shares if n != "other"), key=lambda n: -shares[n])
        parts = [f"{name} {percent(shares[name])}" for name in largest[:6]]
        if "other" in shares:
            parts.append(f"other {percent(shares['other'])}")
        line += ": " + ", ".join(parts)
    every = {s.rank for s in ranks}
    without = len(every) - len(counts)
    return line + (f"; {without} of {len(every)} ranks recorded no step" if without else "")


def _why_nobody_trained(loaded: Sequence[frozenset[str] | None], unseen: str) -> str:
    known = [names for names in loaded if names is not None]
    if any("torch" in names for names in known):
        return f"a process of the job imported torch, but did not train, {unseen}"
    if any("haiprof" in names for names in known):
        return "no process of the job imported torch"
    if known and len(known) == len(loaded):
        return (
            "no Python of the job has haiprof, or none ran: 'python -m haiprof doctor' with the "
            "Python of the job says what it lacks"
        )
    return (
        "no process of the job imported torch and trained, or the Python of those that did has "
        "no haiprof: 'python -m haiprof doctor' with that Python says so"
    )


def _why_no_step(processes: Sequence[Process], loaded: Sequence[frozenset[str] | None]) -> str:
    unseen = (
        "or its loop uses neither an optimizer nor a DataLoader of torch: mark steps with "
        "haiprof.step()"
    )
    if not processes:
        return _why_nobody_trained(loaded, unseen)
    if all(process.outside for process in processes):
        return f"the job was only watched from outside: {processes[0].outside}"
    if any(process.state == "live" for process in processes):
        return f"the job has not finished its first one yet, {unseen}"
    if any(process.ending and process.ending.kind == endings.STOPPED for process in processes):
        return f"the recording ended before the job's first one, {unseen}"
    return f"the job ended before its first one, {unseen}"


def _machine(ranks: list[Summary], nodes: list[Summary]) -> str:
    # Not if only the launcher ran, as on a login node.
    with_ranks = {s.process.node for s in ranks}
    nodes = [s for s in nodes if s.process.node in with_ranks] or nodes
    holders = [s for s in ranks if "proc.cpu.percent" in s.stats] or [
        s for s in nodes if "proc.cpu.percent" in s.stats
    ]
    if not holders:
        busy = [s.stats["cpu.util.percent"].mean for s in nodes if "cpu.util.percent" in s.stats]
        if busy:
            return (
                f"The node's CPUs were {statistics.mean(busy):.0f} % busy; "
                "the job's own part was not sampled"
            )
        return (
            "CPU and memory of the job were not sampled: "
            "'haiprof doctor' says what can be collected here"
        )
    cores = _at_once([s.stats["proc.cpu.percent"] for s in holders]) / 100
    used: dict[str, list[Summary]] = {}
    for s in holders:
        used.setdefault(s.process.node, []).append(s)
    here = ((s, used[s.process.node]) for s in nodes if s.process.node in used)
    known = [count for s, its in here if (count := _cpus(s, its))]
    tree = "process tree" if len(holders) == 1 else f"{len(holders)} process trees"
    line = f"The job's {tree} used {_cores(cores)} CPU cores"
    if known and len(known) == len(used):
        total = sum(known)
        share = percent(cores / total)
        line = f"The job's {tree} used {_cores(cores)} of {total:g} CPU cores ({share})"
    if len(used) > 1:
        line += f" on {len(used)} nodes"
    largest = max(
        (s for s in holders if "proc.rss.bytes" in s.stats),
        key=lambda s: s.stats["proc.rss.bytes"].maximum,
        default=None,
    )
    if largest is None:
        return line
    peak = size(largest.stats["proc.rss.bytes"].maximum)
    if len(holders) == 1:
        return f"{line}, {peak} RSS at peak"
    return f"{line}; the largest, {largest.process.label}, had {peak} RSS at peak"


def _at_once(stats: Iterable[Stat]) -> float:
    """Add means of processes, each weighted by its run time, over the time in which any ran."""
    found = list(stats)
    begin, end = merge(np.array([s.begin for s in found]), np.array([s.end for s in found]))
    return sum(s.mean * (s.end - s.begin) for s in found) / float((end - begin).sum())


def _cores(count: float) -> str:
    return f"{count:.2g}" if count < 10 else f"{count:.0f}"


def _cpus(node: Summary, here: list[Summary]) -> float | None:
    """CPUs that the job could use on a node: those sampled one by one, or its cgroup's limit."""
    util = node.stats.get("cpu.util.percent")
    cpus = util.parts if util else None
    # Samples do not show whether several ranks share one limit.
    limit = here[0].stats.get(_CPU_LIMIT) if len({s.rank for s in here}) == 1 else None
    return min(cpus, limit.maximum) if cpus and limit else cpus


def _remark(
    ranks: list[Summary],
    nodes: list[Summary],
    events: pl.DataFrame,
    late: pl.DataFrame,
    found: Sequence[Finding],
) -> str:
    # What ended the job comes before all lines, but not why it stood still before that.
    hangs = [finding for finding in found if finding.ended and finding.kind in HANGS]
    costs = [finding for finding in found if not finding.ended]
    on_gpus = any(s.gpu is not None for s in ranks)
    for remark in (
        _deaths(ranks),
        *(_finding(finding) for finding in hangs[:1]),
        _disk(events.filter(pl.col("kind") == _DISK)),
        # The ledger is the host's: a rank that is late on its GPU alone is not in it.
        _late(late) if on_gpus else "",
        *(_finding(finding) for finding in costs[:1]),
    ):
        if remark:
            return remark
    return _losses(ranks) or _nothing(ranks, nodes)


def _finding(finding: Finding) -> str:
    return f"{finding.sentence()}; to do: {finding.advice}"


def _deaths(ranks: list[Summary]) -> str:
    processes = [s.process for s in ranks]
    if endings.failure(processes) is not None:
        return ""  # which comes before all lines
    # A recorder that is older, or gone, left no ending.
    died = [p.label for p in processes if p.state == "died" and p.ending is None]
    if not died:
        return endings.restarted(processes, {s.process.folder.name: s.steps for s in ranks})
    who = ", ".join(died[:5]) + (f" and {len(died) - 5} more" if len(died) > 5 else "")
    return f"{who} died without closing the profile; what was recorded until then is here"


def _disk(disk: pl.DataFrame) -> str:
    if not disk.height:
        return ""
    texts = [text or "it was full or too slow" for text in disk["text"]]
    return f"Disk problems interrupted the recording: {texts[0]}" + (
        f"; {texts[-1]}" if len(texts) > 1 else ""
    )


def _losses(ranks: list[Summary]) -> str:
    lost = sum(s.lost for s in ranks)
    if not lost:
        return ""
    worst = max(ranks, key=lambda s: s.lost)
    where = f", {worst.lost} of them on {worst.process.label}" if len(ranks) > 1 else ""
    return f"{lost} records were lost{where}: the rings were overwritten before they could be read"


def _gpus(ranks: list[Summary]) -> str:
    recorded = [s.gpu for s in ranks if s.gpu is not None and s.gpu.recorded_ns]
    if not recorded:
        return ""
    use = added(recorded)
    who = "its GPU was" if len(recorded) == 1 else f"the GPUs of {len(recorded)} processes were"
    steps = "1 step" if use.recorded == 1 else f"{use.recorded} steps"
    return f"; {who} busy {percent(use.busy_ns / use.recorded_ns)} of the {steps} recorded"


def _late(late: pl.DataFrame) -> str:
    """Name the rank that all others wait for, with what was sampled on it alone."""
    worth = late.filter(
        pl.col("share") >= _LATE,
        (pl.col("until") - pl.col("since") + 1) >= _LASTS * pl.col("steps"),
    )
    if not worth.height:
        return ""
    worst = worth.row(0, named=True)
    line: str = worst["words"]
    return f"{line} ({worst['evidence']})" if worst["evidence"] else line


def _nothing(ranks: list[Summary], nodes: list[Summary]) -> str:
    stepped = [s for s in ranks if s.steps]
    if not stepped:
        return "Without steps nothing can be said about a bottleneck"
    longest = max(stepped, key=lambda s: s.step_ns)
    if not blocks.enough(longest.steps, longest.step_ns, blocks.FEWEST):
        steps = "1 step" if longest.steps == 1 else f"{longest.steps} steps"
        return f"Too short for a verdict: {steps} in {milliseconds(longest.step_ns)}"
    seen = []
    shares = [s.share("dataloader") or 0.0 for s in stepped]
    if any("dataloader" in s.phase_ns for s in stepped) and max(shares) < LEAST:
        seen.append("the DataLoader kept up")
    pressures = [
        stat.mean for s in [*ranks, *nodes] for metric, stat in s.stats.items()
        if is_pressure(metric) and metric.endswith(".percent")
    ]  # fmt: skip
    if pressures and max(pressures) < 100 * _PRESSURE:
        seen.append("no pressure above 10 % was sampled")
    return "No bottleneck stands out" + (": " + ", ".join(seen) if seen else "")
