"""What the reading of processes that were summed up has for other answers over all of them.

Of those that still live nothing is kept: they are read again. Tests: tests/answers/test_visited.py.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path

import polars as pl

from haiprof import schema
from haiprof.answers import one_process
from haiprof.answers.goodput import Seen
from haiprof.answers.ranks import Ranks
from haiprof.answers.summaries import NOTED, Sums
from haiprof.sources import tables
from haiprof.views.run import efficiency as efficiency_view


def _sums(ranks: Ranks) -> dict[Path, Sums]:
    """Return by folder what is known of processes that have ended and were summed up."""
    sums: list[Sums] = ranks.kept("sums") or []
    ended = (one for one in sums if one.summary.process.state != "live")
    return {one.summary.process.folder: one for one in ended}


def seen(ranks: Ranks) -> dict[Path, Seen]:
    """Return by folder what goodput needs of processes."""
    return {folder: one.seen for folder, one in _sums(ranks).items() if one.seen is not None}


def unstated(ranks: Ranks) -> dict[Path, efficiency_view.Work]:
    """Return by folder the work of processes that said nothing of it."""
    said = [efficiency_view.MODEL, efficiency_view.FLOPS]
    return {
        folder: efficiency_view.unstated(*one.steps)
        for folder, one in _sums(ranks).items()
        if one.steps is not None and (one.noted is None or not one.noted["kind"].is_in(said).any())
    }


def events(ranks: Ranks, kinds: Collection[str]) -> pl.DataFrame | None:
    """Return the events of all processes of these kinds; None: nothing is kept of some kind."""
    sums = _sums(ranks)
    if not sums or not set(kinds) <= set(NOTED):
        return None
    processes = ranks.choose(None)
    rest = [process for process in processes if process.folder not in sums]
    read = functools.partial(one_process.read, table=schema.EVENTS, keep={"kind": kinds})
    reads = {process.folder: one for process, one in ranks.map(read, rest)}
    for folder, one in sums.items():
        if one.noted is not None:
            reads[folder] = tables.Read(one.noted)
    found = ((process, reads[process.folder]) for process in processes if process.folder in reads)
    columns = {column.name: tables.polars_type(column) for column in schema.EVENTS.columns}
    return ranks.together(found, columns).filter(pl.col("kind").is_in(list(kinds)))
