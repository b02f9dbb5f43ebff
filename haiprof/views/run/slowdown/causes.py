"""What each cause costs a step: the step replayed without it, and with nothing else.

A *cause* is a set of operations: those of a rank, of a stage, of a replica (one of the pipelines
that train the same model beside each other), or of one kind. A step without a cause is replayed
with the ideal time of these operations (:mod:`.schedule`, :mod:`.staged`); a step with it alone is
replayed with the measured time of these, and the ideal time of all others.

With ``T`` the mean time of a step as replayed, and ``T_ideal`` with all operations repaired, the
*slowdown* is ``T / T_ideal``; ``by_ranks`` is the part of it, ``(T - T_without) / (T - T_ideal)``,
that the worst 3 % of the ranks explain, and ``by_last_stage`` that which the last stage explains:
``S``, ``M_W`` and ``M_S`` of Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis", OSDI 2025. The worst ranks are those with the largest slowdown of their stage
alone, or of their replica alone, the smaller of the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.numbers import milliseconds
from haiprof.views.run.slowdown.graph import Reals
from haiprof.views.run.slowdown.operations import Operations

RANK: Final = "rank"
STAGE: Final = "stage"
REPLICA: Final = "replica"
OPERATION: Final = "operation"
#: How many ranks, stages and replicas are replayed at most, those with the most time to save.
MOST: Final = 64
#: The share of the ranks that ``by_ranks`` repairs.
_WORST: Final = 0.03
#: Of causes that save as much, the one on fewer ranks is closer to the reason.
_FOR_WIDTH: Final = 0.1

CAUSES: Final = {
    "rank": pl.Int64(),
    "kind": pl.String(),
    "cause": pl.String(),
    "duration": pl.Int64(),
    "without": pl.Int64(),
    "gain": pl.Int64(),
    "share": pl.Float64(),
    "slowdown": pl.Float64(),
    "words": pl.String(),
}
STEPS: Final = {
    "step": pl.UInt32(),
    "measured": pl.Int64(),
    "replayed": pl.Int64(),
    "ideal": pl.Int64(),
    "slowdown": pl.Float64(),
}
WHOLE: Final = {
    "steps": pl.UInt32(),
    "ranks": pl.UInt32(),
    "measured": pl.Int64(),
    "replayed": pl.Int64(),
    "ideal": pl.Int64(),
    "slowdown": pl.Float64(),
    "by_ranks": pl.Float64(),
    "by_last_stage": pl.Float64(),
}

Mask = npt.NDArray[np.bool_]


class Slowdown(NamedTuple):
    """What slows the steps of a run down.

    ``causes``: one row per cause, the one without which a step is shortest first: ``rank`` (of the
    kind ``rank``), ``kind``, ``cause`` (``rank 12``, ``stage 3``, ``forward-compute``),
    ``duration`` (ns, of a step as replayed), ``without`` (ns, of a step without it), ``gain`` (ns),
    ``share`` (of ``duration``), ``slowdown`` (of a step with this cause alone; null where nothing
    tells) and ``words``.

    ``steps``: of each step its time as ``measured``, ``replayed`` and ``ideal``, ns, and its
    ``slowdown``.

    ``whole``: of all steps their means, ``slowdown``, ``by_ranks`` and ``by_last_stage``; no row
    if nothing can be replayed, and then ``why`` says why.
    """

    causes: pl.DataFrame
    steps: pl.DataFrame
    whole: pl.DataFrame
    why: str | None = None


class Cause(NamedTuple):
    """Operations that may be repaired together; ``width`` is the share of ranks that have some."""

    kind: str
    name: str
    rank: int | None
    width: float


def nothing(why: str) -> Slowdown:
    """Return the answer about a run of which nothing can be replayed."""
    causes, steps, whole = (pl.DataFrame(schema=schema) for schema in (CAUSES, STEPS, WHOLE))
    return Slowdown(causes, steps, whole, why)


def of_operations(ops: Operations) -> Slowdown:
    """Return what slows down the steps that consist of these operations."""

    def wide(mask: Mask) -> float:
        return float(ops.frame["rank"].filter(pl.Series(mask)).n_unique() / len(score))

    replay = _Replay(ops)
    base, best = replay.times(ops.own), replay.times(ops.ideal)
    ideal = float(best.mean())
    stages, replicas = _groups(ops, STAGE), _groups(ops, REPLICA)
    alone = {
        (kind, number): replay.mixed(~mask) / ideal
        for kind, found in ((STAGE, stages), (REPLICA, replicas))
        for number, mask in found.items()
    }
    score = _scores(ops, alone)
    ranks = _groups(ops, RANK, score)
    for number, mask in ranks.items():
        alone[RANK, number] = replay.mixed(~mask) / ideal
    # Where a stage is one rank, or a replica is one, the rank says it all.
    groups = {
        RANK: ranks,
        STAGE: stages if len(stages) < len(score) else {},
        REPLICA: replicas if len(replicas) < len(score) else {},
    }
    rows = []
    for kind, found in groups.items():
        for number, mask in found.items():
            cause = Cause(kind, f"{kind} {number}", number if kind == RANK else None, wide(mask))
            rows.append((cause, replay.mixed(mask), alone[kind, number]))
    for name in ops.frame["name"].unique().sort():
        mask = (ops.frame["name"] == name).to_numpy()
        cause = Cause(OPERATION, str(name), None, wide(mask))
        rows.append((cause, replay.mixed(mask), replay.mixed(~mask) / ideal))
    time = float(base.mean())
    worst = list(ranks)[: worst_of(len(score))]
    last = (ops.frame["stage"] == ops.frame["stage"].max()).to_numpy()
    of_ranks = replay.mixed(ops.frame["rank"].is_in(worst).to_numpy()) if ranks else None
    of_last = replay.mixed(last) if stages else None
    explained = [
        (time - each) / (time - ideal) if each is not None and time > ideal else None
        for each in (of_ranks, of_last)
    ]
    steps = in_steps(replay.steps, ops.measured, base, best)
    return Slowdown(in_order(time, rows), steps, whole(steps, len(score), *explained))


class _Replay:
    """Replays of the same operations with different durations."""

    def __init__(self, ops: Operations) -> None:
        self._ops = ops
        step = ops.frame["step"].to_numpy()
        self._begins = np.flatnonzero(np.concatenate((np.ones(1, bool), step[1:] != step[:-1])))
        self.steps = pl.Series("step", step[self._begins], pl.UInt32())

    def times(self, durations: Reals) -> Reals:
        """Return how long each step takes, ns."""
        return np.maximum.reduceat(self._ops.graph.ends(durations), self._begins)

    def mixed(self, repaired: Mask) -> float:
        """Return the mean time of a step with these operations repaired."""
        return float(self.times(np.where(repaired, self._ops.ideal, self._ops.own)).mean())


def _groups(
    ops: Operations, column: str, score: Mapping[int, float] | None = None
) -> dict[int, Mask]:
    """Return the operations of each rank, stage or replica, those with the most to save first.

    Args:
        ops: of all.
        column: by which.
        score: of each; by default the time that it takes above the ideal.
    """
    by = ops.frame[column]
    if score is None:
        above = pl.DataFrame({"by": by, "above": np.maximum(ops.own - ops.ideal, 0)})
        score = dict(above.group_by("by").agg(pl.col("above").sum()).iter_rows())
    if len(score) < 2:
        return {}
    chosen = sorted(score, key=lambda number: (-score[number], number))[:MOST]
    return {number: (by == number).to_numpy() for number in chosen}


def _scores(ops: Operations, alone: Mapping[tuple[str, int], float]) -> dict[int, float]:
    """Return the slowdown of each rank: of its stage or its replica, the smaller one."""
    places = ops.frame.select("rank", "stage", "replica").unique("rank")
    found = {}
    for rank, stage, replica in places.iter_rows():
        known = [
            alone.get((kind, number), 0.0)
            for kind, number in ((STAGE, stage), (REPLICA, replica))
            if any(each == kind for each, _ in alone)
        ]
        found[rank] = min(known, default=1.0)
    return found


def worst_of(ranks: int) -> int:
    """Return how many of so many ranks are the worst ones."""
    return math.ceil(ranks * _WORST)


def in_order(time: float, rows: Sequence[tuple[Cause, float, float | None]]) -> pl.DataFrame:
    """Return a row for each cause, the one without which a step is shortest first.

    Args:
        time: of a step, ns.
        rows: each cause, the time of a step without it, and the slowdown with it alone.
    """

    def counts(row: tuple[Cause, float, float | None]) -> tuple[float, str]:
        cause, without, _ = row
        gain = time - without
        return -gain * (1 - _FOR_WIDTH * cause.width), cause.name

    columns = [
        (
            cause.rank,
            cause.kind,
            cause.name,
            round(time),
            round(without),
            round(time - without),
            (time - without) / time if time else None,
            alone,
            words(cause.name, time, without),
        )
        for cause, without, alone in sorted(rows, key=counts)
    ]
    return pl.DataFrame(columns, CAUSES, orient="row")


def words(cause: str, time: float, without: float) -> str:
    """Put a cause into a sentence, without its full stop."""
    now, then = milliseconds(time), milliseconds(without)
    line = f"Without the delays of {cause} a step takes"
    return f"{line} as long, {now}" if now == then else f"{line} {then} instead of {now}"


def in_steps(steps: pl.Series, measured: Reals, replayed: Reals, ideal: Reals) -> pl.DataFrame:
    """Return the times of each step, ns, and its slowdown."""
    times = {"measured": measured, "replayed": replayed, "ideal": ideal}
    return pl.DataFrame({"step": steps, **times}).select(
        pl.col("step").cast(pl.UInt32),
        *(pl.col(each).round().cast(pl.Int64) for each in times),
        pl.when(pl.col("ideal") > 0).then(pl.col("replayed") / pl.col("ideal")).alias("slowdown"),
    )


def whole(
    steps: pl.DataFrame, ranks: int, by_ranks: float | None, by_last_stage: float | None
) -> pl.DataFrame:
    """Return the one row about all steps."""
    times = ("measured", "replayed", "ideal")
    return steps.select(
        pl.len().cast(pl.UInt32).alias("steps"),
        pl.lit(ranks, pl.UInt32()).alias("ranks"),
        *(pl.col(each).mean().round().cast(pl.Int64) for each in times),
        (pl.col("replayed").mean() / pl.col("ideal").mean()).alias("slowdown"),
        pl.lit(by_ranks, pl.Float64()).alias("by_ranks"),
        pl.lit(by_last_stage, pl.Float64()).alias("by_last_stage"),
    )
