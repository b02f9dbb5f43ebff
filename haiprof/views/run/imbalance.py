"""Which rank is late, since when, and in what: from the parts of the steps of all ranks.

Ranks that exchange gradients wait for each other within a step, so all their steps take equally
long, however late one of them is. A rank's own work in a part of a step is its time without
waiting; the **excess** over the median of the other ranks, summed over the parts of a step, is its
delay in that step. How long it waited is known in a deep trace (:mod:`.trace.distributed`).
Otherwise it is derived from the phase that all ranks leave together (:mod:`.rank_parts`): a rank
that is slow within that very phase does not show. For a backward pass of DistributedDataParallel
the waiting is recorded, and was subtracted before (:mod:`haiprof.answers.late_ranks`).

The steps in which a rank is late are those that maximize the sum of (excess - half its level) (the
maximum subarray), which is the change point of a step in the mean, given the noise of single steps.
They count if they matter and exceed the noise: of single steps, and of blocks (:mod:`.blocks`).

Times are int64 ns, shares of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.numbers import milliseconds, percent
from haiprof.views.intervals import Times
from haiprof.views.run import blocks
from haiprof.views.run.rank_parts import Cube, RankParts

#: A delay by a smaller part of a step is not worth mentioning.
WORTH: Final = 0.05
#: The mean of the late steps must exceed 0 by this many standard errors.
SURE: Final = 6.0
#: A delay matters that costs this share of all steps, or this one of those in which it is.
_OF_ALL: Final = 0.01
_MUCH: Final = 0.25
#: Of this many blocks of steps their means must exceed 0 by so many standard errors, too.
_FEWEST_BLOCKS: Final = 5
_SURE_OF_BLOCKS: Final = 4.0
#: With fewer steps, the beginning of the delay is not reported.
FEWEST: Final = 5
#: A rank that is late until the last steps of the run is late for good; this many, or this share.
_LAST, _LAST_SHARE = 3, 0.05
#: At most this many late ranks are put into words.
_SAID: Final = 3
#: At most this much is in memory at once: beyond that, neighbouring steps are combined.
_MOST: Final = 4_000_000
#: From this many ranks on, the median of all is as good as that of the others.
_MANY: Final = 8
#: The level of the late steps and their extent depend on each other: this many iterations.
_NARROWED: Final = 4

#: The kind of work in a part of a step; the rest is ``other``.
KINDS: Final = {
    "dataloader": "input", "eval_dataloader": "input",
    "forward": "compute", "backward": "compute", "optimizer": "compute", "recompute": "compute",
    "kernel": "compute", "memcpy": "compute", "memset": "compute",
    "communication": "communication", "runtime": "host", "cpu": "host",
}  # fmt: skip

SCHEMA: Final = {
    "rank": pl.String(),
    "late": pl.Int64(),
    "share": pl.Float64(),
    "since": pl.Int64(),
    "until": pl.Int64(),
    "persistent": pl.Boolean(),
    "part": pl.String(),
    "in_part": pl.Int64(),
    "kind": pl.String(),
    "steps": pl.UInt32(),
}

Reals = npt.NDArray[np.float64]


def imbalance(parts: RankParts) -> pl.DataFrame:
    """Return the ranks that are late, the worst first.

    Args:
        parts: each rank's own work. Steps that all ranks have count.

    Returns:
        One row per rank that is late: ``rank``, ``late`` (ns a step, the median of the steps in
        which it is), ``share`` (of the mean step without waiting), ``since`` and ``until`` (the
        first and the last of these steps; null with fewer than :data:`FEWEST`), ``persistent``
        (whether it lasts; null the same), ``part`` (where most of it is), ``in_part`` (ns a step
        of it there), ``kind`` (:data:`KINDS`) and ``steps`` (that were compared).
    """
    rows: list[tuple[object, ...]] = []
    ranks, names, steps, own = _cube(parts)
    if len(ranks) > 1 and len(steps):
        typical = float(np.median(own.sum(2)))
        of_all = np.median(own, 0) if len(ranks) >= _MANY else None
        for number, rank in enumerate(ranks):
            usual = np.median(np.delete(own, number, 0), 0) if of_all is None else of_all
            excess = own[number].astype(np.float64) - usual
            row = _late(excess, steps, typical)
            if row is not None:
                first, last, by_part = row
                part = int(by_part.argmax())
                late = int(np.median(excess[first : last + 1].sum(1)))
                enough = len(steps) >= FEWEST
                end = len(steps) - 1 - max(_LAST, int(_LAST_SHARE * len(steps)))
                rows.append(
                    (
                        rank,
                        late,
                        late / typical,
                        int(steps[first]) if enough else None,
                        int(steps[last]) if enough else None,
                        last >= end if enough else None,
                        names[part],
                        int(by_part[part]),
                        KINDS.get(names[part], "other"),
                        len(steps),
                    )
                )
    frame = pl.DataFrame(rows, SCHEMA, orient="row")
    # A rank that is late for longer takes precedence.
    lasted = (pl.col("until") - pl.col("since") + 1).fill_null(1)
    return frame.sort(pl.col("late") * lasted, "rank", descending=[True, False])


def words(row: Mapping[str, Any], who: str) -> str:
    """Put one row of :func:`imbalance` into a sentence, without its full stop."""
    late, share = int(row["late"]), float(row["share"])
    line = f"{who} is late by {milliseconds(late)} a step ({percent(share)} of one)"
    if row["since"] is not None and row["persistent"]:
        line += f" since step {row['since']}"
    elif row["since"] is not None:
        line += f" from step {row['since']} to {row['until']}"
    what = {
        "input": "it waits for its data",
        "contention": "others take its CPU",
        "communication": "it moves its data slower",
    }.get(str(row["kind"]))
    return f"{line}, in {row['part']}" + (f": {what}" if what else "")


def lines(late: pl.DataFrame) -> list[str]:
    """Return a sentence for each of the worst late ranks, with its evidence.

    Args:
        late: what :meth:`haiprof.analyzer.Analyzer.imbalance` returns.
    """
    sentences = [
        f"{row['words']} ({row['evidence']})" if row["evidence"] else str(row["words"])
        for row in late.head(_SAID).to_dicts()
    ]
    more = late.height - _SAID
    return [*sentences, f"{more} more ranks are late"] if more > 0 else sentences


def _cube(parts: RankParts) -> tuple[list[str], list[str], Times, Cube]:
    """Return ranks, parts, steps, and the duration of each (rank, step, part) that all ranks have.

    If there are too many steps, neighbouring ones are combined into one, named by the first, with
    their mean.
    """
    ranks, names, steps = parts.ranks, parts.names, parts.shared_steps()
    width = max(1, -(-len(ranks) * len(steps) * len(names) // _MOST))
    return ranks, names, steps[::width], parts.durations(width)


def _late(excess: Reals, steps: Times, typical: float) -> tuple[int, int, Reals] | None:
    """Return the first and the last row in which a rank is late, and how late in each part."""
    whole = excess.sum(1)
    if len(steps) < FEWEST:
        first, last = 0, len(steps) - 1
    else:
        # A median of five keeps changes in place and removes single steps.
        smooth = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(whole, 2, "edge"), 5), 1)
        first, last = _heaviest(smooth - WORTH * typical)
        for _ in range(_NARROWED):
            level = float(smooth[first : last + 1].mean())
            first, last = _heaviest(smooth - max(WORTH * typical, level / 2))
        # What occurs in a few steps only affects the change's neighbours, too: it is not noise.
        noise = 1.4826 * float(np.median(np.abs(np.diff(whole)))) / np.sqrt(2)
        count = last - first + 1
        if count < FEWEST or float(whole[first : last + 1].mean()) * np.sqrt(count) < SURE * noise:
            return None
        late = whole[first : last + 1]
        matters = float(late.sum()) >= _OF_ALL * typical * len(steps)
        if not (matters or float(late.mean()) >= _MUCH * typical) or not _in_blocks(late, typical):
            return None
    if float(np.median(whole[first : last + 1])) < WORTH * typical:
        return None
    return first, last, np.median(excess[first : last + 1], 0)


def _in_blocks(late: Reals, typical: float) -> bool:
    """Say whether a delay is sure if neighbouring steps are alike: by the means of whole blocks."""
    size = blocks.size(typical)
    count = len(late) // size
    if count < _FEWEST_BLOCKS:
        return True
    means = late[: count * size].reshape(count, size).mean(1)
    return float(means.mean() * np.sqrt(count)) >= _SURE_OF_BLOCKS * float(means.std(ddof=1))


def _heaviest(values: Reals) -> tuple[int, int]:
    """Return the first and the last row of the part with the greatest sum."""
    sums = np.concatenate((np.zeros(1), np.cumsum(values)))
    lowest = np.minimum.accumulate(sums)[:-1]
    last = int((sums[1:] - lowest).argmax())
    first = int(sums[: last + 1].argmin())
    return first, last
