"""Steps and phases of one process, from its spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from haiprof.sources.arrays import NONE
from haiprof.views.intervals import Times, covered_per_group, merge
from haiprof.views.run import step_parts
from haiprof.views.run.step_parts import Steps, self_times_by_thread, step_of

#: Categories of spans that these views need.
CATEGORIES = ("step", "phase", "user")
#: Columns of spans that these views need.
COLUMNS = ("start", "duration", "category", "name", "thread", "step")

#: Name of the part of a step that no phase covers.
OTHER = step_parts.OTHER

STEPS_SCHEMA = {"step": pl.UInt32(), "start": pl.Int64(), "duration": pl.Int64()}
PHASES_SCHEMA = {
    "step": pl.UInt32(),
    "name": pl.Categorical(),
    "category": pl.Categorical(),
    "duration": pl.Int64(),
    "count": pl.UInt32(),
    "start": pl.Int64(),
}


def steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Return one row per complete step: ``step``, ``start`` (ns UTC), ``duration`` (ns)."""
    return (
        spans.lazy()
        .filter(pl.col("category") == "step")
        .select("step", "start", pl.col("duration").clip(lower_bound=0))
        .sort("start")
        .collect()
    )


def of_loop(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of the threads that run steps."""
    of_steps = (spans["category"] == "step").to_numpy()
    thread = spans["thread"].to_numpy()
    mine = np.isin(thread, thread[of_steps])
    return spans if mine.all() else spans.filter(pl.Series(mine))


def ran(spans: pl.DataFrame, sets: Mapping[str, pl.Expr]) -> dict[str, tuple[Times, Times]]:
    """Return when any span of each set ran, as :func:`haiprof.views.intervals.merge` returns it.

    One expression for all sets: of a rank with few spans, it is calls of polars that take time.

    Args:
        spans: ``start`` and ``duration``, and what the sets need.
        sets: says of each set which spans are in it; null is no.
    """
    rows = spans.select(
        "start",
        (pl.col("start") + pl.col("duration")).alias("end"),
        *(inside.fill_null(value=False).alias(name) for name, inside in sets.items()),
    )
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    found = {}
    for name in sets:
        some = rows[name].to_numpy()
        found[name] = merge(start[some], end[some])
    return found


def phases(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return one row per complete step and phase.

    Columns: ``step``, ``name``, ``category`` (``phase``, ``user``, ``other``), ``duration`` (ns:
    self time, that is without the phases, or user ranges, nested in it on its thread), ``count``
    (spans) and ``start`` (ns UTC, of the first). The row ``other`` is the part of the step under
    no phase - or, in a step without phases, under no user range.
    """
    rows = _phases_by_row(spans, steps)
    numbers = steps["step"].gather(rows["row"])
    return rows.with_columns(numbers.alias("step")).select(
        pl.col(name).cast(kind) for name, kind in PHASES_SCHEMA.items()
    )


def parts(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the disjoint parts of each step: ``row`` of the step, ``name``, ``duration``.

    Those are the torch phases and ``other``; in a step without phases, user ranges and ``other``.
    """
    rows = _phases_by_row(spans, steps)
    without = ~(pl.col("category") == "phase").any().over("row")
    split = rows.lazy().filter((pl.col("category") != "user") | without)
    return split.select("row", pl.col("name").cast(pl.String), "duration").collect()


def _phases_by_row(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Like :func:`phases`, with the step's ``row`` in ``steps``: numbers may restart."""
    if not steps.height:
        return pl.DataFrame(schema={"row": pl.Int64(), **PHASES_SCHEMA}).drop("step")
    spans = spans.filter(pl.col("category").is_in(["phase", "user"]))
    start = spans["start"].to_numpy()
    end = start + np.maximum(spans["duration"].to_numpy(), 0)
    is_phase = (spans["category"] == "phase").to_numpy()
    number = spans["step"].cast(pl.Int64).fill_null(NONE).to_numpy()
    numbers = steps["step"].cast(pl.Int64).fill_null(NONE).to_numpy()
    found = Steps(numbers, steps["start"].to_numpy(), steps["duration"].to_numpy())
    which = step_of(number, start, end, found)
    inside = which >= 0
    low = steps["start"].to_numpy()
    high = low + steps["duration"].to_numpy()
    # A recording that stops in the middle of a phase ends the step, too, but not the phase.
    begin, end = (np.where(inside, np.clip(at, low[which], high[which]), at) for at in (start, end))
    own = self_times_by_thread(begin, end, spans["thread"].to_numpy(), is_phase)

    named = (
        spans[["name", "category"]]
        .hstack([pl.Series("row", which), pl.Series("duration", own), pl.Series("start", start)])
        .lazy()
        .filter(pl.col("row") >= 0)
        .group_by("row", "category", "name")
        .agg(
            pl.col("duration").sum(), pl.len().cast(pl.UInt32).alias("count"), pl.col("start").min()
        )
        .collect()
    )

    has_phase = np.zeros(len(low), bool)
    has_phase[which[inside & is_phase]] = True
    counts = np.flatnonzero(inside)
    counts = counts[is_phase[counts] | ~has_phase[which[counts]]]
    covered = covered_per_group(which[counts], start[counts], end[counts], low, high)
    rest = pl.DataFrame(
        {
            "row": np.arange(len(low)),
            "category": pl.Series([OTHER], dtype=pl.Categorical()).new_from_index(0, len(low)),
            "name": pl.Series([OTHER], dtype=pl.Categorical()).new_from_index(0, len(low)),
            "duration": high - low - covered,
            "count": pl.Series([0], dtype=pl.UInt32()).new_from_index(0, len(low)),
            "start": pl.Series([None], dtype=pl.Int64()).new_from_index(0, len(low)),
        }
    )
    order = ["row", "category", "name", "duration", "count", "start"]
    return pl.concat([named[order], rest[order]]).sort(
        "row", "start", nulls_last=True, maintain_order=True
    )


def bands(
    parts: pl.DataFrame, steps: pl.DataFrame, names: Sequence[str], bins: int
) -> pl.DataFrame:
    """Return mean durations (ns a step) by phase over time, in at most ``bins`` groups of steps.

    ``parts`` is what :func:`parts` gives for ``steps``. Columns: ``start`` (of the group's first
    step, ns UTC), ``first`` and ``last`` (step numbers), ``name``, ``duration``: in each group all
    of ``names`` in their order. A phase that no step of the group had is 0 there.
    """
    width = -(-steps.height // bins) if steps.height else 1
    numbered = steps.with_columns(pl.Series("bin", np.arange(steps.height) // width))
    groups = numbered.group_by("bin").agg(
        pl.col("start").min(),
        pl.col("step").first().alias("first"),
        pl.col("step").last().alias("last"),
        pl.len().alias("steps"),
    )
    sums = (
        parts.with_columns((pl.col("row") // width).alias("bin"))
        .group_by("bin", "name")
        .agg(pl.col("duration").sum())
    )
    return (
        groups.join(pl.DataFrame({"name": names}, {"name": pl.String()}), how="cross")
        .join(sums, on=["bin", "name"], how="left")
        .with_columns(pl.col("duration").fill_null(0) / pl.col("steps"))
        .sort("bin", maintain_order=True)
        .select("start", "first", "last", "name", "duration")
    )
