"""Why devices and streams of all ranks were idle."""

from __future__ import annotations

import functools

import polars as pl

from haiprof.answers.linked_traces import Links, link_of
from haiprof.answers.matched import Intervals, matched
from haiprof.answers.rank_columns import stacked
from haiprof.answers.ranks import Ranks
from haiprof.runs import Process
from haiprof.views.trace.idle_causes import frames


def with_waits(ranks: Ranks, processes: list[Process]) -> list[tuple[Process, Intervals | None]]:
    """Pair processes with when they waited for other ranks; None where no other was traced."""
    if len(ranks.jobs(None)) < 2:
        return [(process, None) for process in processes]
    together = matched(ranks)
    return [(process, together.waits(process)) for process in processes]


def idle(ranks: Ranks, rank: int | None, by: frames.By, drop_last_step: bool) -> pl.DataFrame:
    """Return the idle time of each stream by cause (``by="cause"``), or of each device."""
    known = ranks.kept(f"losses {rank}")
    if by == "device" and not drop_last_step and known is not None:
        frame: pl.DataFrame = known.idle
        return frame.clone()
    work = functools.partial(_idle, links=ranks.links, by=by, drop_last_step=drop_last_step)
    found = ranks.map(work, with_waits(ranks, ranks.jobs(rank)))
    return stacked((process, frame) for (process, _), frame in found)


def _idle(
    item: tuple[Process, Intervals | None],
    links: Links | None,
    by: frames.By,
    drop_last_step: bool,
) -> pl.DataFrame:
    process, waits = item
    view = frames.by_device if by == "device" else frames.by_stream
    return view(link_of(process, links), waits, drop_last_step=drop_last_step)
