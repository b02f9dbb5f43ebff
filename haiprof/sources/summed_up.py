"""Spans and samples that were removed, as what was summed up of them shows them.

Of a step in which each phase, or range, ran once, the spans are those that were recorded, to the
nanosecond. Where one ran several times its time is exact, and when it ran is not: the parts of such
a step stand one after the other. Of a minute of samples there is its mean, at its end, and its
greatest value a nanosecond later, which a mean over time does not notice.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof import schema

_MINUTE_NS: Final = 60_000_000_000
_STEPS: Final = ("step", "inference_step")
#: Which nest among each other in a step.
_LANES: Final = ("phase", "user")
_ALONE: Final = ("gc", "checkpoint", "compile")
#: Categories of spans that are summed up.
CATEGORIES: Final = (*_STEPS, *_LANES, *_ALONE)
#: What these views need of ``step_parts`` and of ``minutes``.
PART_COLUMNS: Final = ("start", "duration", "kind", "name", "step", "count", "last")
MINUTE_COLUMNS: Final = ("time", "metric", "instance", "mean", "max", "flags")


def spans(parts: pl.DataFrame, until: int, thread: int) -> tuple[pl.DataFrame, int]:
    """Return the spans of the steps that began before ``until``, and when the next step began.

    Args:
        parts: the columns of :data:`PART_COLUMNS` of one process, in their order.
        until: ns UTC: spans that were recorded later are there.
        thread: kernel thread id, for the column ``thread``.

    Returns:
        ``start``, ``duration``, ``category``, ``name``, ``thread`` and ``step``; and the time, ns
        UTC, from which on recorded spans are to be taken.
    """
    kind = pl.col("kind").cast(pl.String)
    rows = parts.with_columns(kind.alias("kind"), pl.col("name").cast(pl.String))
    of_steps = pl.col("kind").is_in(_STEPS)
    # The rows of a step follow its own; others belong to none.
    rows = rows.with_columns(of_steps.cum_sum().alias("row"))
    begun = rows.filter(of_steps)["start"]
    since = begun.filter(begun >= until).min()
    boundary = int(since) if isinstance(since, int) else _end(rows.filter(of_steps), until)
    steps = rows.filter(of_steps, pl.col("start") < boundary)
    kept = steps.select("row", low="start", whole="duration")
    inside = rows.filter(pl.col("kind").is_in(_LANES)).join(kept, on="row", maintain_order="left")
    alone = rows.filter(pl.col("kind").is_in(_ALONE), pl.col("start") < boundary)
    shown = [each.select("start", "duration", "kind", "name", "step") for each in (steps, alone)]
    shown.append(_placed(inside))
    found = pl.concat(shown).select(
        "start",
        "duration",
        pl.col("kind").cast(pl.Categorical).alias("category"),
        pl.col("name").cast(pl.Categorical),
        pl.lit(thread, pl.UInt32).alias("thread"),
        "step",
    )
    return found.sort("start", maintain_order=True), boundary


def _end(steps: pl.DataFrame, until: int) -> int:
    """Return when the last step ended, at least ``until``."""
    end = steps.select((pl.col("start") + pl.col("duration")).max()).item()
    return max(until, end or until)


def _placed(inside: pl.DataFrame) -> pl.DataFrame:
    """Give each part its place in its step: ``row``, ``low`` and ``whole`` are the step's."""
    once = (pl.col("count") == 1).all().over("row", "kind")
    before = pl.col("duration").cum_sum().over("row", "kind") - pl.col("duration")
    room = pl.max_horizontal(pl.col("whole") - before, pl.lit(0, pl.Int64))
    return inside.select(
        pl.when(once).then("start").otherwise(pl.col("low") + before).alias("start"),
        pl.when(once)
        .then(pl.coalesce("last", "duration"))
        .otherwise(pl.min_horizontal("duration", room))
        .alias("duration"),
        "kind",
        "name",
        "step",
    )


def samples(minutes: pl.DataFrame, until: int) -> tuple[pl.DataFrame, int]:
    """Return samples for the minutes that began before ``until``, and when the last of them ended.

    Args:
        minutes: the columns of :data:`MINUTE_COLUMNS` of one process.
        until: ns UTC: samples that were taken later are there.

    Returns:
        The columns of ``samples``; and the time, ns UTC, from which on those that were taken are to
        be used.
    """
    boundary = -(-until // _MINUTE_NS) * _MINUTE_NS
    found = minutes.filter(pl.col("time") < boundary)
    end = pl.col("time") + _MINUTE_NS
    columns = [column.name for column in schema.SAMPLES.columns]
    mean = found.with_columns((end - 2).alias("time"), pl.col("mean").alias("value"))
    most = found.filter(pl.col("max") > pl.col("mean")).with_columns(
        (end - 1).alias("time"), pl.col("max").alias("value")
    )
    shown = pl.concat([mean.select(columns), most.select(columns)])
    return shown.sort("time", maintain_order=True), boundary


def newer(frame: pl.DataFrame, boundary: int) -> pl.DataFrame:
    """Return the rows of a table that are not summed up before ``boundary``, ns UTC.

    Args:
        frame: ``time``, or ``start`` and ``category``.
        boundary: what :func:`spans` or :func:`samples` returned.
    """
    if "time" in frame.columns:
        return frame.filter(pl.col("time") >= boundary)
    summed_up = pl.col("category").cast(pl.String).is_in(CATEGORIES)
    return frame.filter((pl.col("start") >= boundary) | ~summed_up)
