"""What stops the training thread, or makes its steps longer.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from haiprof.common.numbers import milliseconds
from haiprof.findings.finding import LEAST, SURE, Evidence, Finding
from haiprof.findings.recorded.beside_rules import SAVE_LATER
from haiprof.findings.recorded.case import Case, Numbers, Rank
from haiprof.findings.recorded.doing import AWAY, OTHERS_GIL, STOPPED
from haiprof.findings.recorded.hot import apart, function_of, functions, most_in
from haiprof.findings.recorded.slow import scattered
from haiprof.views.run import slower
from haiprof.views.run.blocks import Share
from haiprof.views.run.ledger import CAUSES, CODE, WORK

#: Most of what a function's samples do decides what it is called.
_MOSTLY: Final = 0.5
#: More of the excess than this in slow steps: it is of these steps, not of all.
_SELDOM: Final = 0.7
#: A start that takes less is not worth a finding, ns.
_START_NS: Final = 5_000_000_000
#: What has this share of its samples in the slower steps came with them.
_BEGAN: Final = 0.9
#: With fewer samples nothing is said of where steps have become slower.
_SAMPLES: Final = 20
#: Share of the steps in the queue of a CPU from which on they vary for that reason.
_BUSY: Final = 0.10
#: Evaluation is no fault, unless it takes this share of the steps' time, in this share of them …
_EVALUATES: Final = 0.10
_OFTEN: Final = 0.05
#: … or this share of the time, again and again.
_EVALUATES_MUCH: Final = 0.20
_AGAIN: Final = 5
#: Characters of torch's reason for compiling again.
_REASON: Final = 160


def collector(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that Python's garbage collector stops the training thread."""
    yield from _of_cause(
        rank,
        "collector",
        "garbage_collection",
        "Python's garbage collector stops the training thread",
        "call gc.freeze() after the set-up, and gc.collect() every so many steps on all ranks at "
        "once instead of letting it run by itself",
        0.95,
    )


def checkpoints(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that training waits for its checkpoints to be written."""
    yield from _of_cause(
        rank,
        "save",
        "blocking_checkpoint",
        "Training waits while checkpoints are saved",
        SAVE_LATER,
        0.95,
    )


def evaluations(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that training stops to evaluate, time and again."""
    part = rank.ledger.of("evaluation")
    times = np.count_nonzero(part)
    share = rank.share(part)
    often = times >= _OFTEN * len(part) and share.share >= _EVALUATES
    much = times >= _AGAIN and share.share >= _EVALUATES_MUCH
    if not (often or much) or share.low < LEAST:
        return
    rows = rank.lines.filter(~pl.col("worker"), pl.col("cause") == "evaluation")
    trained = rank.lines.filter(~pl.col("worker"), pl.col("cause").is_in(WORK[:-1]))
    line = apart(rows, trained) or most_in(rows)
    yield _finding(
        rank,
        "logging",
        "Training stops to evaluate, in "
        f"{times} of {len(part)} steps" + (f", in {line}" if line else ""),
        "evaluate less often, on fewer batches, or in a process of its own",
        int(part.sum()),
        share,
        "evaluation",
        0.9,
        line=line,
        steps=rank.extent(part),
    )


def compilation(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that functions are compiled again and again."""
    part = rank.ledger.of("compilation")
    # What is compiled once, at the beginning, is not lost.
    again = [each.get("duration_ns") for each in _recompiled(rank)]
    lost = min(sum(ns for ns in again if isinstance(ns, int)), int(part.sum()))
    if lost < LEAST * rank.ledger.stepped:
        return
    share = Share(*(lost / rank.ledger.stepped for _ in Share._fields))
    reasons = [each.get("reason") for each in _recompiled(rank)]
    reason = next((each for each in reversed(reasons) if isinstance(each, str) and each), None)
    # torch's reason has the source line and a stack behind it.
    reason = None if reason is None else " ".join(reason.split("#")[0].split())[:_REASON]
    yield _finding(
        rank,
        "recompilation",
        "torch.compile compiles again while training goes on"
        + (f", at last because of {reason}" if reason else ""),
        "keep the sizes of inputs alike, or compile with dynamic=True "
        "(TORCH_LOGS=recompiles names each reason)",
        lost,
        share,
        "compilation",
        0.95,
    )


def _recompiled(rank: Rank) -> list[Mapping[str, Any]]:
    """Return the events of functions that were compiled before."""
    return [
        each for each in rank.facts.get("compile", ())
        if isinstance(each.get("recompiles"), int) and each["recompiles"] > 0
    ]  # fmt: skip


def other_threads(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that another thread of the process keeps the GIL from the training thread."""
    mine = rank.lines.filter(~pl.col("worker"), pl.col("doing") == OTHERS_GIL)
    every = rank.samples_in_steps
    blocked = mine.filter(pl.col("cause").is_in([*WORK, "input", "cpu_queue"]))
    count = int(blocked["samples"].sum())
    if not every or count / every < LEAST:
        return
    by = blocked.group_by("blocked_by").agg(pl.col("samples").sum()).sort("samples")
    line = str(by["blocked_by"][-1])
    as_hot = functions(blocked.with_columns(pl.lit(line).alias("line")), every)[0]
    if not as_hot.counts:
        return
    lost = rank.spent(as_hot.by_cause)
    at = slower.since(rank.ledger)
    began = at is not None and int(blocked.filter("later")["samples"].sum()) >= _BEGAN * count
    yield Finding(
        kind="gil",
        problem=f"Another thread keeps Python's lock (GIL) from the training thread, in {line}",
        advice="run that thread's work in a process of its own, or in code that gives the GIL back",
        ranks=rank.numbers,
        lost_ns=lost,
        low_ns=int(lost * as_hot.low / as_hot.share),
        high_ns=int(lost * as_hot.high / as_hot.share),
        share=lost / rank.ledger.stepped,
        confidence=0.85,
        phase=as_hot.cause,
        line=line,
        since=int(rank.ledger.group[at]) if began else None,
        evidence=(Evidence("stacks", "waits for the GIL", count, "samples", every),),
        command="haiprof stacks",
    )


def slower_since(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that steps take longer from some step on, to the end, and in what."""
    own = rank.ledger.of(*WORK)
    at = slower.since(rank.ledger)
    if at is None:
        return
    before = np.median(rank.ledger.causes[:at], 0).astype(np.int64)
    codes = [CODE[cause] for cause in WORK]
    more = np.zeros_like(own)
    more[at:] = np.maximum(own[at:] - int(before[codes].sum()), 0)
    share = rank.share(more)
    if share.share < LEAST or share.low < SURE:
        return
    after = np.median(rank.ledger.causes[at:], 0).astype(np.int64)
    cause = CAUSES[max(codes, key=lambda code: after[code] - before[code])]
    since = int(rank.ledger.group[at])
    line = _slower_in(rank, cause, len(own), at)
    took, takes = (milliseconds(float(np.median(each))) for each in (own[:at], own[at:]))
    where = "between the phases" if cause == "other" else f"in {cause}"
    yield _finding(
        rank,
        "regression",
        (
            f"Steps take longer and longer, {takes} in the later ones and {took} before"
            if slower.grows(rank.ledger, at)
            else f"From step {since} on a step takes {takes} instead of {took}"
        )
        + f", most of it {where}"
        + ("" if line is None else f", in {line}"),
        "look at what changed there: the data, the schedule, what the loop does only later",
        int(more.sum()),
        share,
        cause,
        0.8,
        line=line,
        steps=(since, int(rank.ledger.group[-1])),
    )


def _slower_in(rank: Rank, cause: str, count: int, at: int) -> str | None:
    """Return the line of the function in which the later steps take longer; None: not known.

    Args:
        rank: whose.
        cause: of the ledger that takes longer.
        count: of all steps.
        at: how many of them are before.
    """
    rows = rank.lines.filter(
        ~pl.col("worker"), pl.col("cause") == cause, pl.col("line").is_not_null()
    )
    sums = dict(rows.group_by("later").agg(pl.col("samples").sum()).iter_rows())
    if sum(sums.values()) < _SAMPLES:
        return None
    # As many samples as a step has of a function, before and after.
    weight = pl.when(pl.col("later")).then(1 / (count - at)).otherwise(-1 / at)
    more = (
        rows.with_columns(function_of("line").alias("of"))
        .group_by("of")
        .agg(
            (pl.col("samples") * weight).sum().alias("more"),
            pl.col("line").filter(pl.col("later")).first(),
            pl.col("samples").filter(pl.col("later")).sum(),
        )
        .filter(pl.col("more") > 0)
        .sort("more")
    )
    if not more.height or more["samples"][-1] < _SAMPLES // 2:
        return None
    found: str | None = more["line"][-1]
    return found if more["more"][-1] >= _MOSTLY * float(more["more"].sum()) else None


def slow_steps(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that single steps are slow, how often, and in what."""
    excess = rank.slow.sum(1)
    share = rank.share(excess)
    if share.share < LEAST or share.low < SURE:
        return
    queued = int(rank.ledger.of("cpu_queue").sum()) / rank.ledger.stepped
    by_cause = rank.slow.sum(0)
    cause = CAUSES[int(by_cause.argmax())]
    if queued >= _BUSY and (share.share < queued or cause == "input"):
        return  # who waits for a CPU has slow steps for that reason, as its loader's workers have
    if not scattered(rank):
        return  # a part of the run, of which other rules speak
    numbers = rank.ledger.group[excess > 0]
    lines = rank.lines.filter(pl.col("slow"), pl.col("cause") == cause)
    count = int(lines["samples"].sum())
    hot = next(iter(functions(lines, count)), None) if count else None
    often = f"{len(numbers)} of {len(rank.ledger.group)} steps"
    every = _period(numbers)
    if every:
        often += f", one in {every},"
    where = {"other": "between the phases", "input": "while loading"}.get(cause, f"in {cause}")
    mean = milliseconds(float(excess[excess > 0].mean()))
    yield _finding(
        rank,
        "slow_batch",
        f"{often} take {mean} longer than the others {where}" + (f", in {hot.line}" if hot else ""),
        "look at what is in these batches, or at what runs only in these steps",
        int(excess.sum()),
        share,
        cause,
        0.7,
        line=hot.line if hot else None,
        steps=(int(numbers[0]), int(numbers[-1])),
    )


def _start(rank: Rank) -> tuple[int, int]:
    """Return how long the start lasted while stacks were sampled, and since torch was there, ns.

    Stacks begin with the first step, or some time after torch was imported.
    """
    spent, sampling = rank.ledger.spent("startup"), rank.process.stacks
    if sampling is None or not sampling.hz:
        return spent, spent
    rows = rank.lines.filter(~pl.col("worker"), pl.col("cause") == "startup")
    sampled = min(spent, int(int(rows["samples"].sum()) / sampling.hz * 1e9))
    before = [each.get("torch_imported_s") for each in rank.facts.get("start", ())]
    seconds = max((each for each in before if isinstance(each, (int, float))), default=0.0)
    return sampled, min(spent, int(sampled + max(seconds, 0.0) * 1e9))


def slow_start(_: Case, rank: Rank) -> Iterator[Finding]:
    """Name what the start of the process waits for."""
    sampled, spent = _start(rank)
    life = rank.ledger.end - rank.ledger.begin
    rows = rank.lines.filter(~pl.col("worker"), pl.col("cause") == "startup")
    count = int(rows["samples"].sum())
    # A rank that waits for the others in torch is not what makes the start slow.
    of_torch = pl.col("outer").fill_null("").str.contains(r"(^| )torch( |$)")
    working = rows.filter(pl.col("doing").is_in(AWAY), ~pl.col("imports"), ~of_torch)
    for hot in functions(working, count)[:1]:
        if not hot.counts:
            return
        lost = int(hot.share * spent)
        if lost < _START_NS or lost < LEAST * life or hot.low * sampled < SURE * life:
            return
        yield Finding(
            kind="slow_start",
            problem=f"The job is busy in {hot.line} for long before its first step",
            advice="keep the result of that work for the next start, or do it in parallel",
            ranks=rank.numbers,
            lost_ns=lost,
            low_ns=int(hot.low * sampled),
            high_ns=int(hot.high * spent),
            share=lost / life,
            confidence=0.85,
            phase="startup",
            line=hot.line,
            evidence=(
                Evidence("ledger", "startup", spent, "ns", life),
                Evidence("stacks", "in this function", hot.samples, "samples", hot.of),
            ),
            command="haiprof stacks --flame",
        )


def stopped(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that the process was stopped, as by a debugger or SIGSTOP."""
    rows = rank.lines.filter(~pl.col("worker"), pl.col("doing") == STOPPED)
    count, sampling = int(rows["samples"].sum()), rank.process.stacks
    lived = rank.ledger.end - rank.ledger.begin
    if sampling is None or not sampling.hz:
        return
    # Each sample is that long, whatever the process would have done.
    lost = int(count / sampling.hz * 1e9)
    if lost < LEAST * lived:
        return
    every = int(rank.lines.filter(~pl.col("worker"))["samples"].sum())
    yield Finding(
        kind="stopped",
        problem="The process was stopped by a signal or a debugger",
        advice="find out who sends SIGSTOP, or attaches a debugger",
        ranks=rank.numbers,
        lost_ns=lost,
        low_ns=lost,
        high_ns=lost,
        share=lost / lived,
        confidence=0.95,
        evidence=(Evidence("stacks", "state stopped", count, "samples", every),),
    )


def _of_cause(
    rank: Rank, cause: str, kind: str, problem: str, advice: str, confidence: float
) -> Iterator[Finding]:
    part = rank.ledger.of(cause)
    share = rank.share(part)
    line = most_in(rank.lines.filter(~pl.col("worker"), pl.col("cause") == cause))
    # What happens a few times has no interval worth the name, but is known exactly.
    seldom = np.count_nonzero(part) < len(rank.begins)
    if share.share >= LEAST and (seldom or share.low >= SURE):
        lost = int(part.sum())
        extent = rank.extent(part)
        where = "" if line is None else f", in {line}"
        yield _finding(
            rank, kind, problem + where, advice, lost, share, cause, confidence, line, extent
        )


def _finding(
    rank: Rank,
    kind: str,
    problem: str,
    advice: str,
    lost: int,
    share: Share,
    cause: str,
    confidence: float,
    line: str | None = None,
    steps: tuple[int | None, int | None] = (None, None),
) -> Finding:
    stepped = rank.ledger.stepped
    return Finding(
        kind=kind,
        problem=problem,
        advice=advice,
        ranks=rank.numbers,
        lost_ns=lost,
        low_ns=int(share.low * stepped),
        high_ns=int(share.high * stepped),
        share=share.share,
        confidence=confidence,
        phase=cause,
        line=line,
        since=steps[0],
        until=steps[1],
        evidence=(rank.of(cause),),
        command="haiprof report",
    )


def _period(numbers: Numbers) -> int | None:
    """Return how many steps lie between two of them, if always the same."""
    gaps = np.diff(numbers)
    if len(gaps) < 3 or np.median(gaps) < 2:
        return None
    usual = int(np.median(gaps))
    return usual if np.mean(gaps == usual) >= _SELDOM else None
