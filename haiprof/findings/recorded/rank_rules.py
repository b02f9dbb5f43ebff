"""Ranks wait for each other: for whom, and what that one does; or for the network.

A rank is late if its own work exceeds the others', and they wait for it as long as that. Who waits
is never to blame.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from haiprof.common.numbers import milliseconds, size
from haiprof.findings.finding import LEAST, SURE, Evidence, Finding
from haiprof.findings.recorded.case import TALKERS_WAIT, Case, Numbers, Rank
from haiprof.findings.recorded.cpu_rules import Taker, who_takes_cpus
from haiprof.findings.recorded.hot import functions, most_in
from haiprof.findings.recorded.packets import loss
from haiprof.views.run import blocks
from haiprof.views.run.ledger import CAUSES, CODE, Ledger, together

#: What is none of a rank's own work.
_WAITS: Final = ("waiting", "transfer", "unmatched")
#: From this many ranks on, the median of all is as good as that of the others.
_MANY_RANKS: Final = 8
#: The others' waiting must match the excess within this share of it …
_MATCHES: Final = 0.3
#: … in this share of the blocks.
_IN_BLOCKS: Final = 2 / 3
#: In steps of one rank, forward and backward are long together: because of their inputs.
_ALIKE: Final = 0.8
#: From here on communication is worth a finding: some of it cannot be hidden.
_EXPOSED: Final = 0.20
#: Share of the steps in the queue of a CPU from which on it explains why steps vary.
_BUSY: Final = 0.30
#: Lengths differ if forward varies by this share of its mean.
_VARY: Final = 0.25
#: Some of a pipeline's steps is a bubble always: with two stages and eight microbatches 11 %. While
#: one waits for a CPU, so does the next one for it.
_BUBBLE: Final = 0.20
#: Ranks exchange different amounts if one has this many times the mean.
_UNEVEN: Final = 1.2
#: … of what the job waits for itself, none of it can be.
_ASKED: Final = 0.10
#: Many operations of few bytes in a step.
_MANY: Final = 50
_SMALL: Final = 64 << 10
#: Threads that communicate have no CPU for this share of the time of transfers …
_STARVED: Final = 0.5
#: … which is worth a finding from here on: any thread is in a queue now and then.
_QUEUES: Final = 0.10


class _Aligned(NamedTuple):
    """The ranks of a job, by the steps that all of them have."""

    ranks: Sequence[Rank]
    ledgers: Sequence[Ledger]
    rows: Sequence[Numbers]
    duration: Numbers
    begins: Numbers
    own: Numbers
    waiting: Numbers

    def waited_for(self) -> dict[int, Numbers]:
        """Return how long all ranks together waited for each, ns of each group of steps."""
        sums: dict[int, Numbers] = {}
        for each, at in zip(self.ledgers, self.rows, strict=True):
            for culprit, ns in each.culprits.items():
                sums[culprit] = sums.get(culprit, 0) + ns[at]
        return sums

    def by_cause(self) -> Numbers:
        """Return the ns of each cause, of shape (ranks, causes)."""
        pairs = zip(self.ledgers, self.rows, strict=True)
        return np.array([each.causes[at].sum(0) for each, at in pairs])


def _aligned(case: Case) -> _Aligned | None:
    ranks = [rank for rank in case.ranks if rank.process.rank is not None]
    if len(ranks) < 2:
        return None
    shared, wide = together([rank.ledger for rank in ranks])
    if not len(shared):
        return None
    # Of a job that restarted its count, steps of one number are not the same.
    if any(np.any(np.diff(each.group) <= 0) for each in wide):
        return None
    rows = [np.searchsorted(each.group, shared) for each in wide]
    own = np.array(
        [each.duration[at] - each.of(*_WAITS)[at] for each, at in zip(wide, rows, strict=True)]
    )
    waiting = np.array([each.of("waiting")[at] for each, at in zip(wide, rows, strict=True)])
    duration = np.median([each.duration[at] for each, at in zip(wide, rows, strict=True)], 0)
    count = wide[0].count[rows[0]]
    whole = duration.astype(np.int64)
    return _Aligned(ranks, wide, rows, whole, blocks.edges(whole, count), own, waiting)


def late_ranks(case: Case) -> Iterator[Finding]:
    """Name the ranks that the others wait for, with what they do meanwhile."""
    job = _aligned(case)
    if job is None:
        return
    of_all = np.median(job.own, 0) if len(job.ranks) >= _MANY_RANKS else None
    waiting = job.waited_for()
    for number, rank in enumerate(job.ranks):
        assert rank.process.rank is not None
        if rank.process.rank not in waiting:
            continue
        usual = np.median(np.delete(job.own, number, 0), 0) if of_all is None else of_all
        excess = (job.own[number] - usual).astype(np.int64)
        waited = waiting[rank.process.rank] // (len(job.ranks) - 1)
        share = blocks.share(waited, job.duration, job.begins)
        late = blocks.share(excess, job.duration, job.begins)
        if min(share.share, late.share) < LEAST or min(share.low, late.low) < SURE:
            continue
        if not _matches(excess, waited, job.begins):
            continue
        finding = _late(job, number, excess, share)
        yield _of_pipeline(finding) if _by_messages(case.operations) else finding


def _matches(excess: Numbers, waited: Numbers, begins: Numbers) -> bool:
    """Say whether the others wait as long as a rank is late, in most blocks in which it is."""
    more = np.add.reduceat(excess, begins)
    waits = np.add.reduceat(waited, begins)
    late = more > 0
    if not late.any():
        return False
    close = np.abs(waits - more) <= _MATCHES * np.maximum(waits, more)
    weight = np.maximum(more, waits)
    return float(weight[close & late].sum()) >= _IN_BLOCKS * float(weight[late].sum())


def _late(job: _Aligned, number: int, excess: Numbers, share: blocks.Share) -> Finding:
    rank, whole = job.ranks[number], int(job.duration.sum())
    by_cause = job.by_cause()
    others = np.median(np.delete(by_cause, number, 0), 0)
    more = by_cause[number] - others
    more[[CODE[name] for name in _WAITS]] = 0
    cause = CAUSES[int(more.argmax())]
    rows = rank.lines.filter(~pl.col("worker"), pl.col("cause") == cause)
    hot = next(iter(functions(rows, int(rows["samples"].sum()))), None)
    where = {
        "other": "between the phases",
        "input": "waiting for its data",
        "cpu_queue": "waiting for a CPU",
        "collector": "in Python's garbage collector",
    }
    what = where.get(cause, f"in {cause}")
    line = hot.line if hot is not None and hot.share >= 0.5 and hot.samples >= 5 else None
    first, last = _stretch(job, excess)
    group, width = job.ledgers[number].group[job.rows[number]], job.ledgers[number].width
    late = milliseconds(float(excess[first : last + 1].mean()) / width)
    return Finding(
        kind="straggler",
        problem=f"{rank.process.label.capitalize()} is late, by {late} a step, {what}"
        + (f" in {line}" if line else "")
        + ": the others wait for it",
        advice="give that rank the work, the data and the cores that the others have",
        ranks=rank.numbers,
        lost_ns=int(share.share * whole),
        low_ns=int(share.low * whole),
        high_ns=int(share.high * whole),
        share=share.share,
        confidence=0.95,
        since=int(group[first]) * width,
        until=None if last == len(group) - 1 else int(group[last]) * width,
        phase=cause,
        line=line,
        evidence=(
            Evidence("ledger", "its own work beyond the others'", int(excess.sum()), "ns", whole),
            Evidence("ledger", "the others' waiting for it", int(share.share * whole), "ns",
                     int(excess.sum())),
        ),
        refuted_by=(("the others would not wait for it", True),),
        command="haiprof report",
    )  # fmt: skip


def _stretch(job: _Aligned, part: Numbers) -> tuple[int, int]:
    """Return the first and the last group of steps in which a part takes its time."""
    parts, wholes = (np.add.reduceat(each, job.begins) for each in (part, job.duration))
    found = blocks.stretch(parts.astype(np.float64), wholes.astype(np.float64))
    ends = np.append(job.begins[1:], len(part)) - 1
    first, last = found or (0, len(ends) - 1)
    return int(job.begins[first]), int(ends[last])


def _by_messages(operations: pl.DataFrame) -> bool:
    """Say whether ranks wait for messages rather than in collectives, as stages of a pipeline."""
    if not operations.height or "waited" not in operations.columns:
        return False
    waited = operations["waited"].fill_null(0)
    of_messages = operations.filter(pl.col("op") == "message")["waited"].fill_null(0)
    return 2 * int(of_messages.sum()) > int(waited.sum())


def _of_pipeline(finding: Finding) -> Finding:
    return dataclasses.replace(
        finding,
        kind="pipeline_stage",
        problem=finding.problem.replace("the others wait for it", "the other stages wait for it"),
        advice="move layers from this stage to the others, so that all take equally long",
    )


def _of_job(job: _Aligned, part: Numbers, share: blocks.Share, **about: Any) -> Finding:
    """Return a finding on a part of the ranks' time: on all ranks unless ``about`` names some."""
    whole = int(job.duration.sum())
    ranks = tuple(rank.process.rank for rank in job.ranks if rank.process.rank is not None)
    given = {"ranks": ranks, "command": "haiprof report", **about}
    return Finding(
        lost_ns=int(part.sum()),
        low_ns=int(share.low * whole),
        high_ns=int(share.high * whole),
        share=share.share,
        **given,
    )


def uneven_exchange(case: Case) -> Iterator[Finding]:
    """Say that ranks exchange different amounts, as experts that get more tokens than others."""
    job = _aligned(case)
    if job is None:
        return
    sent = [rank.exchanged for rank in job.ranks]
    mean = sum(sent) / len(sent)
    if not mean or max(sent) < _UNEVEN * mean:
        return
    waited = np.mean(job.waiting, 0).astype(np.int64)
    share = blocks.share(waited, job.duration, job.begins)
    if share.share < LEAST or share.low < SURE:
        return
    whole = int(job.duration.sum())
    most = job.ranks[int(np.argmax(sent))]
    yield _of_job(
        job,
        waited,
        share,
        kind="uneven_exchange",
        problem=f"{most.process.label.capitalize()} gets {max(sent) / mean:.2g} times as much as "
        "the mean of the ranks in all_to_all, and the others wait for it",
        advice="balance the experts (an auxiliary loss, a capacity), or place them anew",
        ranks=most.numbers,
        confidence=0.9,
        phase="waiting",
        evidence=(
            Evidence("collectives", "bytes in all_to_all", max(sent), "bytes", int(mean)),
            Evidence("ledger", "waiting, mean of the ranks", int(waited.sum()), "ns", whole),
        ),
    )


def uneven_work(case: Case) -> Iterator[Finding]:
    """Say that ranks are late in turns, because their inputs differ in size."""
    job = _aligned(case)
    # Where ranks wait for a CPU, steps vary for that reason, and stages wait for each other anyway.
    if job is None or _by_messages(case.operations) or _queued(job) >= _BUSY:
        return
    waited = np.mean(job.waiting, 0).astype(np.int64)
    share = blocks.share(waited, job.duration, job.begins)
    if share.share < LEAST or share.low < SURE:
        return
    pairs = list(zip(job.ledgers, job.rows, strict=True))
    alike = [_alike(each, at) for each, at in pairs]
    vary = [_varies(each.of("forward")[at]) for each, at in pairs]
    if min(alike) < _ALIKE or min(vary) < _VARY:
        return
    whole = int(job.duration.sum())
    yield _of_job(
        job,
        waited,
        share,
        kind="uneven_lengths",
        problem="Ranks wait for each other in turns, for the one with the longest inputs",
        advice="sort samples by length, or pack them, so that all ranks get as much in each step",
        confidence=0.85,
        phase="waiting",
        evidence=(
            Evidence("ledger", "waiting, mean of the ranks", int(waited.sum()), "ns", whole),
            Evidence("ledger", "correlation of forward and backward", min(alike), "ratio", _ALIKE),
            Evidence("ledger", "variation of forward", min(vary), "share", _VARY),
        ),
    )


def bubbles(case: Case) -> Iterator[Finding]:
    """Say that the stages of a pipeline wait for each other in turns."""
    job = _aligned(case)
    if job is None or not _by_messages(case.operations):
        return
    waited = np.mean(job.waiting, 0).astype(np.int64)
    share = blocks.share(waited, job.duration, job.begins)
    if share.share - _queued(job) < _BUBBLE or share.low < SURE:
        return
    whole = int(job.duration.sum())
    yield _of_job(
        job,
        waited,
        share,
        kind="pipeline_bubble",
        problem="The stages of the pipeline wait for each other in turns, as its schedule has it",
        advice="cut the batch into more microbatches, or take a schedule with a smaller bubble "
        "(1F1B, interleaved)",
        confidence=0.8,
        phase="waiting",
        evidence=(
            Evidence("ledger", "waiting, mean of the ranks", int(waited.sum()), "ns", whole),
        ),
        refuted_by=(("one stage takes longer than the others", True),),
    )


def _queued(job: _Aligned) -> float:
    """Return the greatest share of the steps that a rank spends in the queue of a CPU."""
    of = job.by_cause()[:, CODE["cpu_queue"]]
    return float(of.max() / max(int(job.duration.sum()), 1))


def _varies(values: Numbers) -> float:
    """Return the standard deviation of values as a share of their mean."""
    mean = float(values.mean())
    return float(values.std()) / mean if mean else 0.0


def _alike(one: Ledger, rows: Numbers) -> float:
    """Return how forward and backward of a rank's steps go together: their correlation."""
    forward = one.of("forward")[rows].astype(np.float64)
    backward = one.of("backward", "recompute")[rows].astype(np.float64)
    if len(rows) < 20 or not forward.std() or not backward.std():
        return 0.0
    return float(np.corrcoef(forward, backward)[0, 1])


def _asked(job: _Aligned) -> bool:
    """Say whether the job itself waits for its collectives, where nothing can hide them."""
    rows = pl.concat([rank.lines for rank in job.ranks]).filter(pl.col("cause") == "transfer")
    asks = rows.filter(pl.col("file").str.contains(r"/torch/distributed/"))
    return 2 * int(asks["samples"].sum()) > int(rows["samples"].sum()) > 0


def _asked_at(job: _Aligned) -> str | None:
    """Return the line at which most of the time of collectives is spent; None: not at one."""
    rows = pl.concat([rank.lines for rank in job.ranks])
    rows = rows.filter(~pl.col("worker"), pl.col("cause").is_in(["transfer", "waiting"]))
    return most_in(rows)


def _of_transfers(
    job: _Aligned, moved: Numbers, share: blocks.Share, *why: Evidence, **about: Any
) -> Finding:
    """Return a finding on the time of transfers, with the figures that say why they take it."""
    whole = int(job.duration.sum())
    took = Evidence("ledger", "transfer, mean of the ranks", int(moved.sum()), "ns", whole)
    return _of_job(
        job,
        moved,
        share,
        phase="transfer",
        evidence=(took, *why),
        refuted_by=(("the time is waiting for a rank", True),),
        **about,
    )


def _starved(
    job: _Aligned, moved: Numbers, share: blocks.Share, delayed: int, taker: Taker
) -> Finding:
    """Return the finding on transfers whose threads get no CPU, which somebody else has."""
    waited = Evidence("samples", TALKERS_WAIT, delayed, "ns", int(job.duration.sum()))
    others = taker.kind == "cpu_neighbour"
    return _of_transfers(
        job,
        moved,
        share,
        waited,
        *taker.evidence,
        kind="starved_communication" if others else taker.kind,
        problem="The threads that communicate are ready to run and get no CPU, while training "
        f"waits for their transfers. {taker.problem}",
        advice="leave them a core: fewer threads of torch and loaders, no other programs, "
        "an affinity that is not too narrow"
        if others
        else taker.advice,
        confidence=0.85,
    )


def communication(case: Case) -> Iterator[Finding]:
    """Say that the time of communication itself is not hidden: it is lost, small or large."""
    job = _aligned(case)
    if job is None:
        return
    moved = np.mean(
        [each.of("transfer")[at] for each, at in zip(job.ledgers, job.rows, strict=True)], 0
    ).astype(np.int64)
    share = blocks.share(moved, job.duration, job.begins)
    if share.share < LEAST or share.low < SURE:
        return
    lost = loss(case)
    if lost is not None:
        yield _of_transfers(
            job,
            moved,
            share,
            lost.evidence,
            kind="packet_loss",
            problem=lost.problem,
            advice=lost.advice,
            confidence=0.85,
        )
        return
    steps = max(int(job.ledgers[0].count.sum()), 1)
    operations = case.operations
    # Messages are as many as the schedule of a pipeline has them.
    of_groups = operations.filter(pl.col("op") != "message") if operations.height else operations
    small = of_groups.filter(pl.col("bytes").fill_null(0) < _SMALL) if of_groups.height else None
    count = int(small["operations"].sum()) / steps if small is not None else 0.0
    many = count >= _MANY
    delayed = max(rank.delayed_transfers for rank in job.ranks)
    # Where the loop itself waits for a CPU, that is the finding, and has their cost.
    alone = _queued(job) <= share.share / 2
    if not alone:
        moved = (moved * (1 - min(delayed / int(moved.sum()), 1.0))).astype(np.int64)
        share = blocks.share(moved, job.duration, job.begins)
        if share.share < LEAST or share.low < SURE:
            return
    # Each of many operations wakes such a thread, which then waits for a CPU.
    elif not many and share.share >= _QUEUES and delayed >= _STARVED * int(moved.sum()):
        starved = max(job.ranks, key=lambda rank: rank.delayed_transfers)
        taker = who_takes_cpus(case, starved)
        # Threads of the job itself wait for each other now and then: that is no shortage.
        if taker is not None:
            yield _starved(job, moved, share, delayed, taker)
            return
    if not many and share.share < (_ASKED if _asked(job) else _EXPOSED):
        return
    bytes_of = int((operations["operations"] * operations["bytes"].fill_null(0)).sum()) // steps
    line = _asked_at(job)
    yield _of_transfers(
        job,
        moved,
        share,
        Evidence("collectives", "small operations a step", count, "count", _MANY),
        kind="small_collectives" if many else "exposed_communication",
        problem=(
            f"Each step makes {count:.0f} collectives of less than {size(_SMALL)}"
            if many
            else f"Nothing hides the transfer of {size(bytes_of)} that each step makes"
        )
        + ("" if line is None else f", and waits for them in {line}"),
        line=line,
        advice="join them into fewer, larger ones (bucket_cap_mb, coalescing)"
        if many
        else "overlap it with backward (DDP buckets, prefetching), or send less "
        "(gradient accumulation, compression)",
        confidence=0.8,
    )
