"""Which rank is late, since when, and in what: from the parts of the steps of all ranks.

Ranks that exchange gradients wait for each other within a step, so that all their steps take as
long, however late one of them is. What a rank did itself in a part of a step is what is left
without waiting; its **excess** over the median of the other ranks, summed over the parts of a step,
is how late it is in it. How long it waited is known of a deep trace (:mod:`.trace.distributed`).
Else it is taken from the phase that all ranks leave together: there each waits until the last of
them has begun it, so a rank that is slow within that very phase does not show. Of a backward pass
of DistributedDataParallel the waiting is recorded, and has been left out before
(:mod:`haiprof.traced.late`).

The steps in which a rank is late are those that bring the sum of (excess - half its level) to its
greatest (the maximum subarray), which is the change point of a step in the mean for the noise of
any one step. They count if they are worth a word and more than noise.

Times are int64 ns, shares of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.words import milliseconds, percent

#: Late by a smaller part of a step is not worth a word.
WORTH: Final = 0.05
#: Standard errors that the mean of the late steps must be away from none.
SURE: Final = 6.0
#: Of fewer steps it is not told since when.
FEWEST: Final = 5
#: A rank that is late until the last steps of the run is late for good; so many of them, or a part.
_LAST, _LAST_SHARE = 3, 0.05
#: So many late ranks are told in words.
_SAID: Final = 3
#: More than this is not held at once: steps next to each other are put together.
_MOST: Final = 4_000_000
#: From so many ranks on, the median of all is as good as that of the others.
_MANY: Final = 8
#: The level of the late steps and which they are is found from each other, so many times over.
_NARROWED: Final = 4
#: Ranks leave a phase together if their ends differ by less than this part of what starts do.
_TOGETHER: Final = 0.5

#: What kind of work a part of a step is; the rest is ``other``.
KINDS: Final = {
    "dataloader": "input", "eval_dataloader": "input",
    "forward": "compute", "backward": "compute", "optimizer": "compute", "recompute": "compute",
    "kernel": "compute", "memcpy": "compute", "memset": "compute",
    "communication": "communication", "runtime": "host", "cpu": "host",
}  # fmt: skip

PARTS: Final = {
    "rank": pl.String(),
    "step": pl.Int64(),
    "part": pl.String(),
    "duration": pl.Int64(),
    "start": pl.Int64(),
    "end": pl.Int64(),
}
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


def waited(parts: pl.DataFrame) -> pl.DataFrame:
    """Return ``parts`` without the time that ranks waited for each other in one of them.

    Args:
        parts: of all ranks on one clock: :data:`PARTS`, a row per rank, step and part; ``start``
            and ``end`` (ns) are of its last span, null for what is no span.

    Returns:
        The rows, with less ``duration`` where a rank waited. Where no part is left together,
        nobody waited as far as can be seen, and they are as they were.
    """
    known = parts.drop_nulls(["start", "end"])
    keys = ["step", "part"]
    everybody = parts["rank"].n_unique()
    met = known.group_by(keys).agg(
        pl.col("start").max().alias("last"),
        (pl.col("start").max() - pl.col("start").min()).alias("came"),
        (pl.col("end").max() - pl.col("end").min()).alias("left"),
        pl.col("rank").n_unique().alias("ranks"),
    )
    met = met.filter(pl.col("ranks") == everybody)
    spread = met.group_by("part").agg(pl.col("came", "left").median())
    spread = spread.filter(pl.col("left") < _TOGETHER * pl.col("came"))
    if everybody < 2 or not spread.height:
        return parts
    gained = (pl.col("came") - pl.col("left")).alias("gained")
    part = spread.with_columns(gained).sort("gained", "part", descending=[True, False])["part"][0]
    last = met.filter(pl.col("part") == part).select(*keys, "last")
    wait = pl.min_horizontal(pl.col("last") - pl.col("start"), "duration").clip(lower_bound=0)
    waits = pl.when(pl.col("last").is_not_null() & pl.col("start").is_not_null()).then(wait)
    return (
        parts.join(last, on=keys, how="left", maintain_order="left")
        .with_columns((pl.col("duration") - waits.fill_null(0)).alias("duration"))
        .drop("last")
    )


def imbalance(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks that are late, the worst first.

    Args:
        parts: what each rank did itself: ``rank``, ``step``, ``part``, ``duration`` (ns, without
            waiting). Steps that all ranks have count.

    Returns:
        One row per rank that is late: ``rank``, ``late`` (ns a step, the median of the steps in
        which it is), ``share`` (of the mean step without waiting), ``since`` and ``until`` (the
        first and the last of these steps; null of fewer than :data:`FEWEST`), ``persistent``
        (whether it lasts; null the same), ``part`` (where most of it is), ``in_part`` (ns a step
        of it there), ``kind`` (:data:`KINDS`) and ``steps`` (that were compared).
    """
    rows: list[tuple[object, ...]] = []
    ranks, steps, names, own = _cube(parts)
    if len(ranks) > 1 and len(steps):
        typical = float(np.median(own.sum(2)))
        for number, rank in enumerate(ranks):
            excess = own[number] - _others(own, number)
            row = _late(excess, steps, typical)
            if row is not None:
                first, last, by_part = row
                part = int(by_part.argmax())
                late = int(np.median(excess[first : last + 1].sum(1)))
                told = len(steps) >= FEWEST
                end = len(steps) - 1 - max(_LAST, int(_LAST_SHARE * len(steps)))
                rows.append(
                    (
                        rank,
                        late,
                        late / typical,
                        int(steps[first]) if told else None,
                        int(steps[last]) if told else None,
                        last >= end if told else None,
                        names[part],
                        int(by_part[part]),
                        KINDS.get(names[part], "other"),
                        len(steps),
                    )
                )
    made = pl.DataFrame(rows, SCHEMA, orient="row")
    # A rank that is late for longer counts for more.
    lasted = (pl.col("until") - pl.col("since") + 1).fill_null(1)
    return made.sort(pl.col("late") * lasted, "rank", descending=[True, False])


def words(row: Mapping[str, Any], who: str) -> str:
    """Say one row of :func:`imbalance` in a sentence, without its end."""
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
    made = [
        f"{row['words']} ({row['evidence']})" if row["evidence"] else str(row["words"])
        for row in late.head(_SAID).to_dicts()
    ]
    more = late.height - _SAID
    return [*made, f"{more} more ranks are late"] if more > 0 else made


def _cube(parts: pl.DataFrame) -> tuple[list[str], npt.NDArray[np.int64], list[str], Reals]:
    """Return ranks, steps, parts, and the duration of each (rank, step, part) that all ranks have.

    Of a rank that did a step again the later one counts. Where there are too many steps, those
    next to each other are one, named by the first, with their mean.
    """
    everybody = parts["rank"].n_unique() if parts.height else 0
    wide = parts.select("rank", "step", "part", "duration").drop_nulls()
    shared = wide.group_by("step").agg(pl.col("rank").n_unique().alias("ranks"))
    shared = shared.filter(pl.col("ranks") == everybody).sort("step")
    ranks, names = wide["rank"].unique().sort().to_list(), wide["part"].unique().sort().to_list()
    steps = shared["step"].to_numpy()
    if not len(steps):
        return ranks, np.zeros(0, np.int64), names, np.zeros((len(ranks), 0, len(names)))
    width = max(1, -(-len(ranks) * len(steps) * len(names) // _MOST))
    numbered = shared.select("step").with_row_index("number")
    rows = wide.join(numbered, on="step").with_columns(pl.col("number") // width)
    rows = rows.group_by("rank", "number", "part").agg(pl.col("duration").sum())
    count = -(-len(steps) // width)
    own = np.zeros((len(ranks), count, len(names)))
    at = [
        rows[column].replace_strict(keys, range(len(keys)), return_dtype=pl.Int64()).to_numpy()
        for column, keys in (("rank", ranks), ("part", names))
    ]
    own[at[0], rows["number"].to_numpy(), at[1]] = rows["duration"].to_numpy()
    sizes = np.diff(np.append(np.arange(0, len(steps), width), len(steps)))
    return ranks, steps[::width], names, own / sizes[None, :, None]


def _others(own: Reals, number: int) -> Reals:
    others = own if len(own) >= _MANY else np.delete(own, number, 0)
    made: Reals = np.median(others, 0)
    return made


def _late(
    excess: Reals, steps: npt.NDArray[np.int64], typical: float
) -> tuple[int, int, Reals] | None:
    """Return the first and the last row in which a rank is late, and by how much in each part."""
    whole = excess.sum(1)
    if len(steps) < FEWEST:
        first, last = 0, len(steps) - 1
    else:
        # A median of five keeps changes where they are and drops single steps.
        smooth = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(whole, 2, "edge"), 5), 1)
        first, last = _heaviest(smooth - WORTH * typical)
        for _ in range(_NARROWED):
            level = float(smooth[first : last + 1].mean())
            first, last = _heaviest(smooth - max(WORTH * typical, level / 2))
        # What is there in a few steps only is in the neighbours of the change, too: no noise.
        noise = 1.4826 * float(np.median(np.abs(np.diff(whole)))) / np.sqrt(2)
        count = last - first + 1
        if count < FEWEST or float(whole[first : last + 1].mean()) * np.sqrt(count) < SURE * noise:
            return None
    if float(np.median(whole[first : last + 1])) < WORTH * typical:
        return None
    return first, last, np.median(excess[first : last + 1], 0)


def _heaviest(values: Reals) -> tuple[int, int]:
    """Return the first and the last row of the part with the greatest sum."""
    sums = np.concatenate((np.zeros(1), np.cumsum(values)))
    lowest = np.minimum.accumulate(sums)[:-1]
    last = int((sums[1:] - lowest).argmax())
    first = int(sums[: last + 1].argmin())
    return first, last
