"""Of very many ranks, those that are looked at in detail.

What every rank has in a few numbers is read of all of them. What takes reading all that a rank
recorded - its stacks, its collectives, each part of its steps - is read of these alone, so that a
question takes as long for ten thousand ranks as for a few hundred.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import numpy as np
import polars as pl

from haiprof.answers.ranks import Ranks
from haiprof.findings import endings
from haiprof.runs import ROLE_NODE, Process
from haiprof.sources.table_cache import caching_tables
from haiprof.views.run.overview import Summary

#: So many ranks are looked at in detail; a run of fewer is looked at as a whole.
MOST: Final = 128
#: … of which so many are the slowest, and so many the fastest, by the median of their steps.
_EXTREME: Final = 16


def in_detail(
    ranks: Ranks,
    summaries: Callable[[], tuple[Sequence[Summary], object]],
    imbalance: Callable[[], pl.DataFrame],
) -> Ranks:
    """Return the ranks that are looked at in detail: all, or at most :data:`MOST`.

    Those are the ranks that failed first, those that are late, the slowest and the fastest, and of
    the others some that are evenly spread over their numbers.

    Args:
        ranks: of the run.
        summaries: return those of its ranks, and of its nodes; only called for very many ranks.
        imbalance: returns its late ranks, the latest first; likewise.
    """
    numbers = ranks.numbers
    if len(numbers) <= MOST:
        return ranks

    def make() -> Ranks:
        known = set(numbers)
        ended = sorted(
            (p for p in ranks.run.processes if p.rank is not None and endings.failed(p)),
            key=lambda p: p.ending.failed_ns if p.ending is not None else 0,
        )
        late = [rank for rank in imbalance()["rank"].to_list() if rank is not None]
        medians = {s.process.rank: s.median_ns for s in summaries()[0] if s.median_ns is not None}
        by_pace = sorted((n for n in medians if n is not None), key=lambda n: (-medians[n], n))
        wanted = [
            *[p.rank for p in ended[:_EXTREME]],
            *late[:_EXTREME],
            *by_pace[:_EXTREME],
            *by_pace[-_EXTREME:],
        ]
        taken = dict.fromkeys(n for n in wanted if n in known)
        rest = [n for n in numbers if n not in taken]
        spread = np.linspace(0, len(rest) - 1, MOST - len(taken)).round().astype(int)
        taken.update(dict.fromkeys(rest[place] for place in spread.tolist()))
        part = only(ranks, [p for p in ranks.run.processes if p.rank is None or p.rank in taken])
        # They have been read, and are on the clock of the whole run.
        folders = {process.folder for process in part.run.processes}
        of_ranks, of_nodes = summaries()
        its = [each for each in of_ranks if each.process.folder in folders]
        part.once("summaries", lambda: (its, of_nodes))
        return part

    return ranks.once("in detail", make)


def keeping_tables(ranks: Ranks) -> AbstractContextManager[None]:
    """Return a block in which several answers read each table once; of few ranks, which fit."""
    return caching_tables() if len(ranks.numbers) <= MOST else nullcontext()


def one_of_each_node(ranks: Ranks) -> Ranks:
    """Return the first rank of each node of a run of very many, and all of a run of fewer."""
    if len(ranks.numbers) <= MOST:
        return ranks
    first: dict[str, Process] = {}
    for process in sorted(ranks.jobs(None), key=lambda p: (p.rank is None, p.rank or 0)):
        first.setdefault(process.node, process)
    nodes = [process for process in ranks.run.processes if process.role == ROLE_NODE]
    return ranks.once("one of each node", lambda: only(ranks, [*first.values(), *nodes]))


def only(ranks: Ranks, processes: Sequence[Process]) -> Ranks:
    """Return some of the processes of a run as a run of their own; problems are noted for both.

    They are on the clock of the whole run.
    """
    run = dataclasses.replace(ranks.run, processes=tuple(processes))
    part = Ranks(run, ranks.executor, whole=ranks)
    part.problems = ranks.problems
    return part
