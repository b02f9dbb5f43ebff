"""The clocks of the hosts of a run, compared by what their ranks did together.

Tests: tests/answers/test_clock.py.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from haiprof.answers.chosen_ranks import one_of_each_node
from haiprof.answers.matched import Session, matched, sessions
from haiprof.answers.ranks import Ranks
from haiprof.views import clock as clock_view
from haiprof.views.intervals import Times
from haiprof.views.trace import distributed


def clock(ranks: Ranks) -> clock_view.Clock:
    """Compare the clocks of all hosts with that of the first rank's host, once.

    Clocks of a part of a run are compared over the whole run.
    """
    if ranks.whole is not None:
        return clock(ranks.whole)
    return ranks.once("clock", lambda: _of_whole(ranks))


def _of_whole(ranks: Ranks) -> clock_view.Clock:
    few = one_of_each_node(ranks)
    # What is matched of all ranks serves other views, too.
    return _compared(few, matched(ranks).sessions if few is ranks else sessions(few))


def on_one_clock(ranks: Ranks, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame of several hosts with all times converted to the reference's clock.

    Args:
        ranks: of the run.
        frame: has ``node``, and ``start``, ``end`` or ``time`` (ns); if it is of one host, it is
            returned unchanged.
    """
    several = frame["node"].n_unique() > 1 if frame.height else False
    return clock(ranks).applied(frame) if several else frame


def by_node(ranks: Ranks) -> dict[str, Callable[[Times], Times]]:
    """Return for each node what converts its times (ns) to the reference's clock.

    Empty if all processes are on one node.
    """
    nodes = {process.node for process in ranks.run.processes}
    if len(nodes) < 2:
        return {}
    compared = clock(ranks)
    return {node: functools.partial(compared.corrected, node) for node in nodes}


def of_ends(ranks: Ranks) -> Callable[[str, int], int]:
    """Return what converts a node's times (ns) to the clock that ends of processes are compared by.

    Clocks are compared only where processes of several nodes have ended.
    """
    several = len({p.node for p in ranks.run.processes if p.ending is not None}) > 1

    def aligned(node: str, time_ns: int) -> int:
        if not several:
            return time_ns
        return int(clock(ranks).corrected(node, np.array([time_ns]))[0])

    return aligned


def _compared(ranks: Ranks, found: Sequence[Session]) -> clock_view.Clock:
    met, sent = [], []
    ranked: dict[str, int] = {}
    for process in sorted(ranks.jobs(None), key=lambda p: (p.rank is None, p.rank or 0)):
        ranked.setdefault(process.node, len(ranked))
    for number, session in enumerate(found):
        nodes = {label: process.node for label, process in session.by_label.items()}
        numbers = {label: process.rank for label, process in session.by_label.items()}
        shared, alone = [], []
        for batch in itertools.chain([distributed.match({})], session.batches()):
            shared.append(clock_view.by_host(batch, nodes))
            alone.append(clock_view.one_sided(batch))
        met.append(clock_view.meetings(_whole(shared), number))
        sent.append(clock_view.messages(_whole(alone), nodes, numbers))
    errors = {
        process.node: process.machine.clock_error_ns
        for process in ranks.run.processes
        if process.machine is not None and process.machine.clock_error_ns is not None
    }
    return clock_view.clock(pl.concat(met), pl.concat(sent), list(ranked), errors)


def _whole(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames, how="vertical_relaxed")
