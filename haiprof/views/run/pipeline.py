"""The pipeline of a job: what each rank did with each microbatch, bubbles, and the critical stage.

A *job* is one interval of a rank in the pipeline: a forward of a microbatch, a backward, a send, an
optimizer step. Times are int64 ns UTC, durations ns.

The *window* of a step lasts from the first computing job of any rank to the end of the last job,
but begins no earlier than the previous window ends. A receive belongs to the step of the job that
needs it. A rank is *busy* while it computes: forward, backward, optimizer; communicating and
waiting are not. The rest of the window is the *bubble*:
``1 - busy / (ranks * window)``.

The ideal bubble of a schedule assumes that all stages take the same time and communicate in none,
for p stages, m microbatches and v chunks of the model on each rank:

* GPipe (all forwards, then all backwards) and 1F1B: (p - 1) / (m + p - 1). Huang et al., GPipe,
  2019, section 2.3; Narayanan et al., PipeDream, 2019.
* interleaved 1F1B, and its breadth-first variant: (p - 1) / (v m + p - 1). Narayanan et al.,
Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021, section 2.2
(there as a ratio to the time without bubble, (p - 1) / (v m)).

For schedules with a backward in two parts (zero bubble) it depends on how long the parts take, and
is null.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final, NamedTuple

import polars as pl

from haiprof.views.run import pipeline_waits as waits

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
WEIGHT: Final = "weight"
OPTIMIZER: Final = "optimizer"
#: What a rank does for its stage.
STAGE_KINDS: Final = (FORWARD, BACKWARD, WEIGHT)
BUSY_KINDS: Final = (*STAGE_KINDS, OPTIMIZER)
#: The kind of a job by its name in lower case; the first matching rule applies.
KINDS: Final = (
    ("send", re.compile(r"(.*[-_ ])?send([-_ ].*)?|exchange.*")),
    ("recv", re.compile(r"(.*[-_ ])?(recv|receive)([-_ ].*)?")),
    ("reduce", re.compile(r"(.*[-_ ])?(all)?[-_]?reduce([-_ ].*)?")),
    (WEIGHT, re.compile(r"w|wgrad|(backward|bwd)[-_ ]?(w|weight)([-_ ].*)?|weight.*")),
    (FORWARD, re.compile(r"f|fp|fwd|forward([-_ ].*)?|fwd[-_ ].*")),
    (BACKWARD, re.compile(r"b|i|bp|bwd|dgrad|(full[-_ ])?backward([-_ ].*)?|bwd[-_ ].*")),
    (OPTIMIZER, re.compile(r"opt|optimi[sz]er([-_ ].*)?|update|lr")),
)
OTHER: Final = "other"
ZERO_BUBBLE: Final = "zero bubble"

#: The categories of both tables that contain jobs, and the columns that are read of each.
CATEGORIES: Final = ("user", "pipeline")
DEVICE_COLUMNS: Final = (
    "start", "duration", "category", "name", "step", "microbatch", "stage", "chunk",
)  # fmt: skip
SPAN_COLUMNS: Final = ("start", "duration", "category", "name", "step", "attributes")
JOBS: Final = {
    "step": pl.UInt32(),
    "kind": pl.String(),
    "name": pl.String(),
    "microbatch": pl.UInt32(),
    "stage": pl.UInt32(),
    "chunk": pl.UInt32(),
    "start": pl.Int64(),
    "duration": pl.Int64(),
}
_WHO: Final = ["node", "rank", "pid"]
#: At most this many steps are examined for waits between stages.
_WAITED_STEPS: Final = 16
#: The direction of a job through the stages; the second part of a backward has none.
_DIRECTION: Final = {FORWARD: 1, BACKWARD: -1, WEIGHT: 0}


class Pipeline(NamedTuple):
    """The pipeline of a run, over all ranks that take part in it.

    ``jobs``: process, ``step``, ``kind`` (:data:`KINDS`), ``name``, ``microbatch``, ``stage`` (the
    rank if there is none), ``chunk``, ``start``, ``duration``: the lanes of a timeline, one per
    rank.

    ``lanes``: for each step and rank its ``stage`` (the first of several), ``forward``,
    ``backward``, ``weight``, ``optimizer``, ``send``, ``recv``, ``busy`` (overlapping jobs count
    once), ``before`` (from the window's start until it is first busy), ``between``, ``after``,
    ``bubble`` (a share).

    ``steps``: for each step its window's ``start`` and ``duration``, ``ranks``, ``busy`` of all,
    ``bubble``, ``schedule``, ``stages``, ``chunks``, ``microbatches``, ``ideal`` (bubble; null if
    unknown), ``critical`` (the stage that computes longest).

    ``stages``: for each stage, the critical one first, mean times per rank and step: ``busy`` (for
    the stage), ``forward`` and ``backward`` of one microbatch, ``waited_for``: how long the other
    ranks in total waited until it was done, directly or through stages between.
    """

    jobs: pl.DataFrame
    lanes: pl.DataFrame
    steps: pl.DataFrame
    stages: pl.DataFrame


def kind_of(name: str) -> str:
    """Return the kind of a job by its name."""
    lower = name.lower()
    return next((kind for kind, rule in KINDS if rule.fullmatch(lower)), OTHER)


def of_device(device_spans: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs of one process from a schedule, or from ranges timed on a GPU.

    Args:
        device_spans: with :data:`DEVICE_COLUMNS`; ranges without a microbatch are no jobs.
    """
    category = pl.col("category").cast(pl.String)
    ranges = (category == "user") & pl.col("microbatch").is_not_null()
    return _named(device_spans.filter((category == "pipeline") | ranges))


def of_host(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the jobs of one process from its ranges on the host, if it has none on a device.

    Args:
        spans: with :data:`SPAN_COLUMNS`; ranges whose attributes have no microbatch are no jobs.
    """
    attributes = pl.col("attributes").cast(pl.String)
    ranges = attributes.str.contains('"microbatch":', literal=True)
    return _named(
        spans.filter((pl.col("category").cast(pl.String) == "pipeline") | ranges).with_columns(
            # Not parsed as JSON: truncated text must not take the others with it.
            attributes.str.extract(f'"{each}": ?(\\d+)').cast(pl.UInt32, strict=False).alias(each)
            for each in ("microbatch", "stage", "chunk")
        )
    )


def with_updates(jobs: pl.DataFrame, updates: pl.DataFrame) -> pl.DataFrame:
    """Return jobs and the phases in which the optimizer worked, of a device or of the host.

    Before a step's first job the optimizer only clears gradients, which delays no stage.
    """
    first = jobs.group_by("step").agg(pl.col("start").min().alias("first"))
    updates = (
        updates.join(first, on="step", how="left", maintain_order="left")
        .filter(~(pl.col("start") < pl.col("first")).fill_null(False))
        .drop("first")
    )
    return pl.concat([jobs, _named(updates)]).sort("start", maintain_order=True)


def _named(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return rows of either table as jobs."""
    name = pl.col("name").cast(pl.String)
    known = {each: kind_of(each) for each in jobs.select(name.unique()).to_series()}
    kinds = name.replace_strict(known, return_dtype=pl.String) if known else name
    lacks = [pl.lit(None).alias(each) for each in JOBS if each not in (*jobs.columns, "kind")]
    return (
        jobs.with_columns(name, kinds.alias("kind"), *lacks)
        .select(pl.col(column).cast(kind) for column, kind in JOBS.items())
        .sort("start", maintain_order=True)
    )


def pipeline(jobs: pl.DataFrame, step: int | None = None) -> Pipeline:
    """Return the pipeline formed by the jobs of all ranks.

    Args:
        jobs: the jobs of all ranks in one frame, with the columns of their process in front.
        step: of this step only.
    """
    if not jobs.height:
        return _empty(jobs)
    own = pl.col("rank").cast(pl.UInt32, strict=False).fill_null(0)
    by_stage = pl.col("kind").is_in(STAGE_KINDS)
    placed = _with_what_they_need(jobs).with_columns(
        pl.when(by_stage).then(pl.col("stage").fill_null(own)).otherwise(pl.col("stage"))
    )
    windows = _windows(placed)
    if step is not None:
        windows = windows.filter(pl.col("step") == step)
        placed = placed.filter(pl.col("step") == step)
        if not placed.height:
            return _empty(jobs)
    lanes = _lanes(placed, windows)
    return Pipeline(placed, lanes, _steps(placed, lanes, windows), _stages(placed))


def _empty(jobs: pl.DataFrame) -> Pipeline:
    none = jobs.clear()
    windows = _windows(none)
    lanes = _lanes(none, windows)
    return Pipeline(none, lanes, _steps(none, lanes, windows), _stages(none))


def _with_what_they_need(jobs: pl.DataFrame) -> pl.DataFrame:
    """Move receives into the step of the next job: a step begins with that, and not before it."""
    needing = pl.when(pl.col("kind").is_in(STAGE_KINDS)).then("step")
    following = needing.fill_null(strategy="backward").over(_WHO, order_by="start")
    is_recv = pl.col("kind") == "recv"
    return jobs.with_columns(
        pl.when(is_recv).then(pl.coalesce(following, "step")).otherwise("step").alias("step")
    )


def _windows(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return ``step``, ``begin`` and ``end`` of the window of each step."""
    return (
        jobs.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(
            pl.coalesce(
                pl.col("start").filter(pl.col("kind").is_in(BUSY_KINDS)).min(),
                pl.col("start").min(),
            ).alias("begin"),
            (pl.col("start") + pl.col("duration")).max().alias("end"),
        )
        .sort("step")
        .with_columns(pl.max_horizontal("begin", pl.col("end").shift(1)).alias("begin"))
    )


def _lanes(jobs: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    kinds = (*BUSY_KINDS, "send", "recv")
    inside = _in_windows(jobs, windows)
    busy = pl.col("kind").is_in(BUSY_KINDS)
    covered = (
        inside.filter(busy)
        .sort("start")
        .with_columns(
            pl.max_horizontal("start", pl.col("end").cum_max().shift(1).over("step", *_WHO)).alias(
                "from"
            )
        )
        .group_by("step", *_WHO)
        .agg(
            (pl.col("end") - pl.col("from")).clip(lower_bound=0).sum().alias("busy"),
            pl.col("start").min().alias("first"),
            pl.col("end").max().alias("last"),
        )
    )
    length = pl.col("end") - pl.col("start")
    window = pl.col("end") - pl.col("begin")
    return (
        inside.group_by("step", *_WHO)
        .agg(
            pl.col("stage").min(),
            *(length.filter(pl.col("kind") == kind).sum().alias(kind) for kind in kinds),
        )
        .join(covered, on=["step", *_WHO], how="left", nulls_equal=True)
        .join(windows, on="step")
        .sort("step", "stage", "rank")
        .select(
            *_WHO,
            "step",
            "stage",
            *kinds,
            pl.col("busy").fill_null(0),
            (pl.col("first") - pl.col("begin")).fill_null(window).alias("before"),
            (pl.col("last") - pl.col("first") - pl.col("busy")).fill_null(0).alias("between"),
            (pl.col("end") - pl.col("last")).fill_null(0).alias("after"),
            (1 - pl.col("busy").fill_null(0) / window).fill_nan(None).alias("bubble"),
        )
    )


def _in_windows(jobs: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Cut jobs at the ends of windows; a part that begins early is in the window before."""
    before = windows.select(
        "step",
        pl.col("step").shift(1).alias("earlier"),
        pl.col("begin").shift(1).alias("least"),
        pl.col("end").shift(1).alias("most"),
    )
    cut = (
        jobs.filter(pl.col("step").is_not_null())
        .with_columns((pl.col("start") + pl.col("duration")).alias("end"))
        .join(windows.select("step", "begin"), on="step")
        .join(before, on="step")
    )
    early = cut.filter(pl.col("start") < pl.col("begin"), pl.col("earlier").is_not_null())
    return pl.concat(
        [
            cut.with_columns(
                pl.max_horizontal("start", "begin").alias("start"),
                pl.max_horizontal("end", "begin").alias("end"),
            ),
            early.with_columns(
                pl.col("earlier").alias("step"),
                pl.max_horizontal("start", "least").alias("start"),
                pl.max_horizontal("start", "least", pl.min_horizontal("end", "most")).alias("end"),
            ),
        ]
    )


def _steps(jobs: pl.DataFrame, lanes: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    plan = _plan(jobs)
    # A rank without jobs in a step was idle in it.
    ranks = jobs.select(_WHO).n_unique() if jobs.height else 0
    window = pl.col("end") - pl.col("begin")
    return (
        windows.join(lanes.group_by("step").agg(pl.col("busy").sum()), on="step", how="left")
        .join(plan, on="step", how="left")
        .sort("step")
        .select(
            "step",
            pl.col("begin").alias("start"),
            window.alias("duration"),
            pl.lit(ranks, pl.UInt32()).alias("ranks"),
            "busy",
            (1 - pl.col("busy") / (window * ranks)).fill_nan(None).alias("bubble"),
            *plan.columns[1:],
        )
    )


def _plan(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return for each step its schedule and its size, its ideal bubble, and the critical stage."""
    staged = jobs.filter(pl.col("step").is_not_null(), pl.col("kind").is_in(STAGE_KINDS))
    is_forward, is_backward = pl.col("kind") == FORWARD, pl.col("kind") == BACKWARD
    place = pl.struct("stage", "chunk")
    whole = staged.group_by("step").agg(
        place.n_unique().alias("places"), (pl.col("kind") == WEIGHT).any().alias("in_two")
    )
    chunks = staged.group_by("step", *_WHO).agg(place.n_unique().alias("chunks"))
    microbatches = (
        staged.filter(is_forward)
        .group_by("step", *_WHO, "stage", "chunk")
        .agg(pl.col("microbatch").n_unique().alias("microbatches"))
    )
    # The order of work on the last stage distinguishes schedules.
    last = (
        staged.sort(pl.col("chunk").fill_null(0), "stage", descending=True, maintain_order=True)
        .group_by("step", maintain_order=True)
        .agg(pl.col(*_WHO).first())
        .join(staged, on=["step", *_WHO], nulls_equal=True)
        .group_by("step")
        .agg(
            is_forward.sum().alias("forwards"),
            is_backward.any().alias("has_backward"),
            (is_forward & (pl.col("start") < pl.col("start").filter(is_backward).min()))
            .sum()
            .alias("first"),
        )
    )
    critical = (
        staged.group_by("step", "stage")
        .agg(pl.col("duration").sum())
        .sort("step", "duration", "stage", descending=[False, True, False])
        .group_by("step")
        .agg(pl.col("stage").first().alias("critical"))
    )
    p = (pl.col("places") // pl.col("chunks")).clip(lower_bound=1)
    v, m = pl.col("chunks"), pl.col("microbatches")
    # With one microbatch there is only one order.
    breadth = (pl.col("first") >= pl.col("forwards")) & (m > 1)
    schedule = (
        pl.when((pl.col("stages") < 2) | (m == 0))
        .then(None)
        .when(pl.col("in_two"))
        .then(pl.lit(ZERO_BUBBLE))
        .when(~pl.col("has_backward"))
        .then(pl.lit("forward only"))
        .when(v > 1)
        .then(pl.when(breadth).then(pl.lit("breadth first")).otherwise(pl.lit("interleaved 1F1B")))
        .otherwise(pl.when(breadth).then(pl.lit("GPipe")).otherwise(pl.lit("1F1B")))
    )
    ideal = (pl.col("stages") - 1) / (v * m + pl.col("stages") - 1)
    return (
        whole.join(chunks.group_by("step").agg(pl.col("chunks").max()), on="step")
        .join(
            microbatches.group_by("step").agg(pl.col("microbatches").max()), on="step", how="left"
        )
        .join(last, on="step")
        .join(critical, on="step")
        .with_columns(p.cast(pl.Int64).alias("stages"), v.cast(pl.Int64), m.fill_null(0))
        .with_columns(schedule.alias("schedule"))
        .select(
            "step",
            "schedule",
            pl.col("stages", "chunks", "microbatches").cast(pl.UInt32),
            pl.when(pl.col("schedule").is_not_null() & (pl.col("schedule") != ZERO_BUBBLE))
            .then(ideal)
            .alias("ideal"),
            "critical",
        )
    )


def _stages(jobs: pl.DataFrame) -> pl.DataFrame:
    staged = jobs.filter(pl.col("step").is_not_null(), pl.col("kind").is_in(STAGE_KINDS))
    steps = staged["step"].unique().sort()
    looked = steps.gather_every(max(1, -(-len(steps) // _WAITED_STEPS)))
    waited: dict[int, int] = defaultdict(int)
    mine = staged.filter(pl.col("step").is_in(looked.implode())).sort("step", "start")
    for _, step in mine.group_by("step", maintain_order=True):
        for stage, ns in _waited_for(step).items():
            waited[stage] += ns
    of_one = [
        (
            pl.col("duration").filter(pl.col("kind") == kind).sum()
            / pl.struct("step", *_WHO, "chunk", "microbatch")
            .filter(pl.col("kind") == kind)
            .n_unique()
        )
        for kind in (FORWARD, BACKWARD)
    ]
    return (
        staged.group_by("stage")
        .agg(
            (pl.col("duration").sum() / pl.struct("step", *_WHO).n_unique()).alias("busy"),
            of_one[0].alias(FORWARD),
            of_one[1].alias(BACKWARD),
        )
        .with_columns(
            pl.col("stage")
            .replace_strict(waited, default=0, return_dtype=pl.Int64)
            .truediv(max(1, len(looked)))
            .alias("waited_for")
        )
        .with_columns(
            pl.col(each).fill_nan(None).round().cast(pl.Int64)
            for each in ("busy", FORWARD, BACKWARD, "waited_for")
        )
        .sort("busy", "stage", descending=[True, False])
    )


def _waited_for(jobs: pl.DataFrame) -> dict[int, int]:
    """Return for each stage how long the other ranks waited for it in one step, ns."""
    stages = jobs["stage"].unique().sort().to_list()
    number = {stage: n for n, stage in enumerate(stages)}
    columns = (*_WHO, "start", "duration", "kind", "microbatch", "stage", "chunk")
    rows = [
        (tuple(who), start, start + duration, _DIRECTION[kind], microbatch, stage, chunk or 0)
        for *who, start, duration, kind, microbatch, stage, chunk in jobs.select(
            columns
        ).iter_rows()
    ]
    # If a stage has several ranks, the first of each form one pipeline, the second another.
    ranks: dict[tuple[int, int], set[tuple[object, ...]]] = defaultdict(set)
    for who, *_, stage, chunk in rows:
        ranks[stage, chunk].add(who)
    line = {who: n for lanes in ranks.values() for n, who in enumerate(sorted(lanes, key=_order))}
    waited = waits.waited_for(
        waits.Job(
            who, line[who], start, end, direction, microbatch, number[stage] + chunk * len(stages)
        )
        for who, start, end, direction, microbatch, stage, chunk in rows
    )
    found: dict[int, int] = defaultdict(int)
    for place, ns in waited.items():
        found[stages[place % len(stages)]] += ns
    return found


def _order(who: tuple[object, ...]) -> tuple[bool, int, str]:
    rank = who[1]
    return (rank is None, rank if isinstance(rank, int) else 0, str(who))
