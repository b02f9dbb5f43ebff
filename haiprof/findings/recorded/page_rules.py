"""The training thread lets the kernel clear memory: tensors are given back and requested again.

malloc returns large blocks to the kernel as soon as they are free, and each page of the next one is
a fault, in which the kernel clears it. The thread's time in the kernel is what that costs, as far
as there are faults enough for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from haiprof.findings.finding import SURE, Evidence, Finding
from haiprof.findings.recorded.case import MAIN_FAULTS, MAIN_SYSTEM, Case, Numbers, Rank
from haiprof.findings.recorded.hot import most_in
from haiprof.views.run.blocks import Share
from haiprof.views.run.ledger import WORK

#: What the kernel needs for a fault at most, ns: clearing a small page took 2.2 us in a virtual
#: machine whose CPUs others used, too. Time in the kernel beyond that is spent on something else.
_FAULT_NS: Final = 4_000
#: … and at least: with less, most of what is in the kernel may be something else.
_LEAST_NS: Final = 150
#: Small models that train on a CPU spend up to 29 % of a healthy step on faults of gradients and
#: activations that torch frees and allocates; more than this share was not seen in one.
_SHARE: Final = 0.40
#: Samples in the steps, of one each second.
_FEWEST: Final = 5


def churn(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that the training thread spends its time on page faults, step after step."""
    steps = rank.ledger.start
    if not len(steps):
        return
    begin, end = int(steps[0]), int(steps[-1] + rank.ledger.duration[-1])
    inside = pl.col("time").is_between(begin, end)
    both = rank.main_thread.filter(inside).sort("time")
    if both.height < _FEWEST:
        return
    faults = both["faults"].to_numpy()
    system = both["system"].to_numpy() / 100
    # Time in the kernel without as many faults is that of reading, writing and waking.
    spent = np.where(
        system * 1e9 >= _LEAST_NS * faults, np.minimum(system, faults * _FAULT_NS / 1e9), 0.0
    )
    share = _share(spent)
    own = rank.ledger.of(*WORK, "input")
    lost = int(share.share * rank.ledger.stepped)
    if share.share < _SHARE or share.low < SURE or lost > own.sum():
        return
    each = rank.ledger.stepped / 1e9 / max(int(rank.ledger.count.sum()), 1)
    line = most_in(rank.lines.filter(~pl.col("worker"), pl.col("cause").is_in(WORK)))
    yield Finding(
        kind="page_faults",
        problem=f"Each step requests memory from the kernel anew and gives it back, with "
        f"{float(faults.mean()) * each:.0f} page faults of the training thread"
        + (f", in {line}" if line else ""),
        advice="reuse buffers (out=, in-place operations), or try a malloc that keeps freed memory "
        "(jemalloc, tcmalloc)",
        ranks=rank.numbers,
        line=line,
        lost_ns=lost,
        low_ns=int(share.low * rank.ledger.stepped),
        high_ns=int(share.high * rank.ledger.stepped),
        share=share.share,
        confidence=0.75,
        evidence=(
            Evidence("samples", MAIN_FAULTS, float(faults.mean()), "per_s"),
            Evidence("samples", MAIN_SYSTEM, float(system.mean()), "share", _SHARE),
        ),
        refuted_by=(("the time in the kernel is spent without page faults", True),),
        command="haiprof stacks --flame",
    )


def _share(spent: Numbers) -> Share:
    """Return the mean of samples, with its interval of 95 %."""
    mean = float(spent.mean())
    spread = 1.96 * float(spent.std(ddof=1)) / float(np.sqrt(len(spent)))
    return Share(mean, max(mean - spread, 0.0), min(mean + spread, 1.0))
