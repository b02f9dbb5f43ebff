"""The training loop waits for its data: because of how it is loaded, or of where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from haiprof.common.numbers import percent
from haiprof.findings.finding import LEAST, SURE, Evidence, Finding
from haiprof.findings.hardware import slow_nfs
from haiprof.findings.recorded.case import Case, Rank
from haiprof.findings.recorded.doing import PIPED, READING
from haiprof.findings.recorded.hot import Hot, functions
from haiprof.findings.recorded.slow import scattered
from haiprof.views.run.blocks import Share
from haiprof.views.run.ledger import CODE

#: Loading waits for storage if this share of it is in reads.
_MOSTLY: Final = 0.5
_READS: Final = 0.25
#: With fewer samples nothing is said of what loading does.
_FEWEST: Final = 10
#: More of the excess than this in a few steps: a slow loader is slow all the time.
_SELDOM: Final = 0.7
#: Workers that are started so often are started for each epoch.
_EPOCHS: Final = 5


def slow_input(case: Case, rank: Rank) -> Iterator[Finding]:
    """Say that the loop waits for data, where loading spends its time, and on what."""
    part = rank.ledger.of("input")
    share = rank.share(part)
    if share.share < LEAST or share.low < SURE:
        return
    restarts = _restarts(rank)
    if restarts is not None and restarts.lost >= _MOSTLY * part.sum():
        yield _of_restarts(rank, restarts)
        return
    in_slow_steps = rank.slow[:, CODE["input"]].sum()
    if in_slow_steps > _SELDOM * part.sum() and scattered(rank):
        return  # of single batches: see host_rules.slow_steps
    loading = rank.lines.filter(pl.col("cause") == "input")
    of_workers = loading.filter(pl.col("worker"))
    in_workers = of_workers.height > 0 or _workers(rank) > 0
    # Without workers the training thread loads; with them it only waits.
    rows = of_workers.filter(~_waits_for_work()) if in_workers else loading.filter(
        ~pl.col("worker")
    )  # fmt: skip
    count = int(rows["samples"].sum())
    hot = next(iter(functions(rows, count)), None) if count >= _FEWEST else None
    from_storage = 0.0
    if count >= _FEWEST:
        from_storage = int(rows.filter(_reads())["samples"].sum()) / count
    mount = slow_nfs([rank.summary], case.nodes) if rank.summary is not None else ""
    of_storage = bool(mount) or from_storage >= _MOSTLY
    since, until = rank.extent(part)
    yield Finding(
        kind="slow_storage" if of_storage else "slow_loader",
        problem=_problem(hot, from_storage, in_workers) + (f". {mount}" if mount else ""),
        advice=_advice(rank, of_storage, in_workers),
        ranks=rank.numbers,
        lost_ns=int(part.sum()),
        low_ns=int(share.low * rank.ledger.stepped),
        high_ns=int(share.high * rank.ledger.stepped),
        share=share.share,
        confidence=0.95 if hot else 0.85,
        since=since,
        until=until,
        phase="input",
        line=hot.line if hot else None,
        evidence=(
            rank.of("input"),
            *((Evidence("stacks", "loading in this function", hot.samples, "samples", hot.of),)
              if hot else ()),
            Evidence("stacks", "loading in reads", from_storage, "share", _MOSTLY),
        ),
        refuted_by=(("the loop would be as slow with the data in memory", False),),
        command="haiprof stacks --phase dataloader",
    )  # fmt: skip


class _Restarts(NamedTuple):
    """Steps that wait for workers to start, again and again.

    Attributes:
        starts: as far as they were recorded.
        share: that they take of the steps' time, all of them.
        lost: in all of them, ns.
        workers: that are started each time.
        batches: of an epoch; None: not known.
    """

    starts: int
    share: Share
    lost: int
    workers: int
    batches: int | None


def _restarts(rank: Rank) -> _Restarts | None:
    """Return what it costs to start the workers of a DataLoader anew for every epoch."""
    ledger, starts = rank.ledger, rank.facts.get("loader_workers", ())
    times = [each["time"] for each in starts if isinstance(each.get("time"), int)]
    if ledger.width > 1 or len(times) < _EPOCHS:
        return None
    settings = [each for each in rank.facts.get("loader", ()) if each.get("num_workers")]
    if not settings or any(each.get("persistent_workers") for each in settings):
        return None
    at = np.searchsorted(ledger.start, times, "right") - 1
    # The step before ends the old workers; the one after may wait for the new ones' first batch.
    near = np.zeros(len(ledger.group), bool)
    for beside in (-1, 0, 1):
        near[np.clip(at + beside, 0, len(near) - 1)] = True
    part = ledger.of("input")
    if near.all():
        return None
    more = np.where(near, np.maximum(part - int(np.median(part[~near])), 0), 0)
    batches = settings[0].get("batches")
    if len(settings) > 1 or not isinstance(batches, int) or batches < 1:
        batches = None
    # Only the first starts are recorded.
    epochs = len(times) if batches is None else max(len(part) / batches, len(times))
    times_more = epochs / len(times)
    share = Share(*(min(each * times_more, 1.0) for each in rank.share(more)))
    lost = min(int(more.sum() * times_more), int(part.sum()))
    return _Restarts(len(times), share, lost, int(settings[0]["num_workers"]), batches)


def _of_restarts(rank: Rank, restarts: _Restarts) -> Finding:
    epoch = "" if restarts.batches is None else f" of {restarts.batches} batches"
    return Finding(
        kind="slow_loader",
        problem="The training loop waits while its DataLoader starts "
        f"{restarts.workers} workers anew for each epoch{epoch}",
        advice="keep them: DataLoader(persistent_workers=True), or make epochs longer",
        ranks=rank.numbers,
        lost_ns=restarts.lost,
        low_ns=min(int(restarts.share.low * rank.ledger.stepped), restarts.lost),
        high_ns=max(int(restarts.share.high * rank.ledger.stepped), restarts.lost),
        share=restarts.lost / rank.ledger.stepped,
        confidence=0.95,
        phase="input",
        evidence=(
            rank.of("input"),
            Evidence("events", "loader_workers", restarts.starts, "starts", _EPOCHS),
        ),
        command="haiprof stacks --phase dataloader",
    )


def _reads() -> pl.Expr:
    """Whether a line reads: a good part of it is seen in reads, and the rest has no GIL either.

    A thread that has read waits for a CPU before it goes on.
    """
    reads = pl.col("doing").is_in([READING, PIPED])
    seen = pl.col("samples").filter(reads).sum().over("line")
    return reads | (~pl.col("gil") & (seen >= _READS * pl.col("samples").sum().over("line")))


def _waits_for_work() -> pl.Expr:
    """Whether a worker waits for the next batch that is asked of it.

    The frames of a process that was forked begin with those of the training loop.
    """
    of_torch = pl.col("outer").fill_null("").str.contains(r"(^| )torch( |$)")
    in_queue = pl.col("file").str.contains(r"/(multiprocessing/\w+|selectors|queue|threading)\.py$")
    outside = pl.col("line").is_null() | (of_torch & in_queue)
    return outside & ~pl.col("state").is_in(("running", "ready"))


def _problem(hot: Hot | None, from_storage: float, in_workers: bool) -> str:
    what = "The training loop waits for its DataLoader"
    if not in_workers:
        what = "The training loop loads its data itself"
    if hot is None:
        return what
    where = f"{percent(hot.share)} of the loading is in {hot.line}"
    if from_storage >= _MOSTLY:
        where += f", {percent(from_storage)} in reads"
    return f"{what}, and {where}"


def _advice(rank: Rank, of_storage: bool, in_workers: bool) -> str:
    workers = _workers(rank)
    if of_storage:
        return "read more at once (larger files, more workers), or from a faster disk or memory"
    if not in_workers:
        return "load in other processes: DataLoader(num_workers=…, persistent_workers=True)"
    cpus = [each.get("affinity") for each in rank.facts.get("threads", ())]
    if cpus and isinstance(cpus[-1], int) and workers > cpus[-1]:
        return f"make that function cheaper: its {workers} workers share {cpus[-1]} CPUs"
    more = f"more than {workers}" if workers else "more"
    return f"use {more} workers, or make that function cheaper"


def _workers(rank: Rank) -> int:
    """Return the most workers that a DataLoader of a rank has, as far as that is known."""
    settings = (each.get("num_workers") for each in rank.facts.get("loader", ()))
    return max((each for each in settings if isinstance(each, int)), default=0)
