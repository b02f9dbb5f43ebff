"""The critical paths of all ranks, and what less work would save, with the waiting between ranks.

Tests: tests/answers/test_traced.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import polars as pl

from haiprof.answers import one_trace
from haiprof.answers.matched import matched
from haiprof.answers.rank_columns import stacked
from haiprof.answers.ranks import Ranks
from haiprof.errors import HaiprofError
from haiprof.runs import Process
from haiprof.views.trace.critical_path import ranks as rank_view
from haiprof.views.trace.critical_path import what_if as what_if_view
from haiprof.views.trace.critical_path.path import CriticalPath


def critical_paths(
    ranks: Ranks, rank: int | None, step: int | None, inside: str | None
) -> dict[str, CriticalPath]:
    """Return the critical path of each trace by its label.

    Raises:
        HaiprofError: no trace has such a step or range.
    """
    work = functools.partial(
        one_trace.apply,
        work=functools.partial(one_trace.path_of, step=step, inside=inside),
        links=ranks.links,
        columns=None,
        allocations=False,
    )
    results = list(ranks.map(work, ranks.jobs(rank)))
    found = {process.label: path for process, path in results if not isinstance(path, str)}
    _some(ranks, results, len(found))
    waits = waited(ranks)
    return {
        label: rank_view.waiting(path, waits[label]) if label in waits else path
        for label, path in found.items()
    }


def what_if(
    ranks: Ranks,
    rank: int | None,
    step: int | None,
    inside: str | None,
    named: Mapping[str, str | None],
    factor: float | None,
) -> pl.DataFrame:
    """Return how long a step of each trace would take if some of its work took less time.

    Args:
        ranks: of the run.
        rank: of one rank only.
        step: of this step, by default of the longest.
        inside: of the first range of this name instead.
        named: by what it is, the work's name: of one only; if of none, of all candidates.
        factor: by default those of the view.

    Raises:
        HaiprofError: several are named, or no trace has such a step, range or work.
    """
    chosen = [(what, name) for what, name in named.items() if name is not None]
    if len(chosen) > 1:
        raise HaiprofError(f"what_if(): choose one of {', '.join(f'{what}=' for what in named)}")
    work = functools.partial(
        one_trace.what_if_of,
        links=ranks.links,
        step=step,
        inside=inside,
        chosen=chosen[0] if chosen else None,
        factors=what_if_view.FACTORS if factor is None else (float(factor),),
        waits=waited(ranks),
    )
    results = list(ranks.map(work, ranks.jobs(rank)))
    frames = [(process, frame) for process, frame in results if not isinstance(frame, str)]
    _some(ranks, results, len(frames))
    return stacked(frames)


def _some(ranks: Ranks, results: Sequence[tuple[Process, object]], found: int) -> None:
    """Raise what the first trace lacks, if all lack something."""
    if results and not found:
        raise HaiprofError(f"{ranks.where}: {results[0][1]}")


def waited(ranks: Ranks) -> dict[str, pl.DataFrame]:
    """Return in which collectives each rank waited for another one, by label; of one rank, nothing.

    The frames have the columns of :data:`rank_view.SCHEMA`.
    """
    return ranks.once("waited", lambda: _waited(ranks)) if len(ranks.jobs(None)) > 1 else {}


def _waited(ranks: Ranks) -> dict[str, pl.DataFrame]:
    found: dict[str, pl.DataFrame] = {}
    for session in matched(ranks).sessions:
        lasts = [rank_view.lasts(batch) for batch in session.batches()]
        if not lasts:
            continue
        last = pl.concat(lasts, how="vertical_relaxed")
        for batch in session.batches():
            for (label,), rows in rank_view.waits(batch, last).group_by("rank"):
                found[str(label)] = rows.drop("rank")
    return found
