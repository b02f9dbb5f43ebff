"""The training loop waits for its data: because of how it is loaded, or of where it lies.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from haiprof.common.numbers import percent
from haiprof.findings.finding import LEAST, SURE, Evidence, Finding
from haiprof.findings.hardware import slow_nfs
from haiprof.findings.recorded.case import Case, Rank
from haiprof.findings.recorded.doing import PIPED, READING
from haiprof.findings.recorded.hot import Hot, functions
from haiprof.findings.recorded.slow import scattered
from haiprof.views.run.ledger import CODE

#: Loading waits for storage if this share of it is in reads.
_MOSTLY: Final = 0.5
_READS: Final = 0.25
#: With fewer samples nothing is said of what loading does.
_FEWEST: Final = 10
#: More of the excess than this in a few steps: a slow loader is slow all the time.
_SELDOM: Final = 0.7


def slow_input(case: Case, rank: Rank) -> Iterator[Finding]:
    """Say that the loop waits for data, where loading spends its time, and on what."""
    part = rank.ledger.of("input")
    share = rank.share(part)
    if share.share < LEAST or share.low < SURE:
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


def _reads() -> pl.Expr:
    """Whether a line reads: a good part of it is seen in reads, and the rest has no GIL either.

    A thread that has read waits for a CPU before it goes on.
    """
    reads = pl.col("doing").is_in([READING, PIPED])
    seen = pl.col("samples").filter(reads).sum().over("line")
    return reads | (~pl.col("gil") & (seen >= _READS * pl.col("samples").sum().over("line")))


def _waits_for_work() -> pl.Expr:
    """Whether a worker waits for the next batch that is asked of it."""
    return pl.col("line").is_null() & ~pl.col("state").is_in(("running", "ready"))


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
        return "keep the data on a faster disk, in larger files or in memory"
    if not in_workers:
        return "load in other processes: DataLoader(num_workers=…, persistent_workers=True)"
    more = f"more than {workers}" if workers else "more"
    return f"use {more} workers, or make that function cheaper"


def _workers(rank: Rank) -> int:
    """Return the most workers that a DataLoader of a rank has, as far as that is known."""
    settings = (each.get("num_workers") for each in rank.facts.get("loader", ()))
    return max((each for each in settings if isinstance(each, int)), default=0)
