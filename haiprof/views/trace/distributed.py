"""Communication of a distributed job: how much computation hides, and who waits for whom.

**Breakdown**, for each rank and step, the plugin's formula: the union of kernels that do not
communicate is computation, that of communications is communication, and ``overlap`` is what they
share. The four parts (computing alone, both, communicating alone, neither) sum to the step.

**Transfer and waiting**, the plugin's idea: a collective moves data only once all its ranks have
arrived, so the shortest time that any rank spent in it is the transfer, and a rank's time beyond
that was waiting for the others. No clocks of different hosts are compared.

**Statistics** with the bandwidths of NCCL's tests (``doc/PERFORMANCE.md`` of nccl-tests): algorithm
bandwidth is size by time, bus bandwidth that times a factor for the collective and its ranks, so
that it can be compared with the hardware's.

Times are int64 ns. Ranks are identified by any key that the caller chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import polars as pl

from haiprof.views.intervals import Times, covered, covered_per_group, intersect, merge, subtract
from haiprof.views.trace.communication import SCHEMA, communications
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import ratio, times, union

Rank = TypeVar("Rank", int, str)

#: Collectives are matched across ranks by these, in order: the n-th of the same kind in the same
#: step. A rank that lacks one in some step loses no other step.
KEYS = ("step", "group", "ranks", "op", "alike")
_TEXTS = ("op", "group", "ranks", "type")

_MATCHED = {
    "alike": pl.Int64(),
    "rank": pl.Int64(),
    "duration": pl.Int64(),
    "nth": pl.Int64(),
    "found": pl.UInt32(),
    "transfer": pl.Int64(),
    "waiting": pl.Int64(),
    "longest": pl.Int64(),
    "last": pl.UInt32(),
}


def breakdown(linked: Linked, found: pl.DataFrame | None = None) -> pl.DataFrame:
    """Break each step of one rank down into computing and communicating.

    If no device was recorded, operations of the host that do not communicate are computing.

    Args:
        linked: the rank's trace.
        found: its :func:`~haiprof.views.trace.communication.communications`, if already computed.

    Returns:
        One row per step: ``step``, ``duration``, ``compute`` (alone), ``overlap``,
        ``communication`` (alone), ``other``, in ns.
    """
    return broken_down(linked, found)[0]


def broken_down(
    linked: Linked, found: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, tuple[Times, Times]]:
    """Return :func:`breakdown`, and when the rank communicated and computed nothing.

    The latter as ``merge`` does; in the steps, it is ``communication`` of the former.
    """
    found = communications(linked) if found is None else found
    if linked.activities.height:
        computing = union(linked, np.flatnonzero(linked.in_role("kernel")), "kernel")
    else:
        computing = _host(linked, found)
    communicating = merge(*times(found))
    alone = subtract(*communicating, *computing)
    return parts(linked.steps, computing, communicating), alone


def parts(
    steps: pl.DataFrame, computing: tuple[Times, Times], communicating: tuple[Times, Times]
) -> pl.DataFrame:
    """Break steps down, given the merged intervals of computation and communication."""
    low, high = steps["start"].to_numpy(), steps["end"].to_numpy()
    compute, communication = covered(*computing, low, high), covered(*communicating, low, high)
    overlap = covered(*intersect(*computing, *communicating), low, high)
    return steps.select(
        "step",
        pl.Series("duration", high - low),
        pl.Series("compute", compute - overlap),
        pl.Series("overlap", overlap),
        pl.Series("communication", communication - overlap),
        pl.Series("other", high - low - compute - communication + overlap),
    )


def match(ranks: Mapping[Rank, pl.DataFrame]) -> pl.DataFrame:
    """Match the communications of ranks: each with the other ranks' time in the same one.

    The n-th communication of a group, collective and size in a step is the same on every rank (an
    all-to-all need not have the same size on all). If ranks differ in their number, it is unknown
    which is missing: those are not matched. Nor is a point-to-point transfer, ``send`` on one rank
    and ``recv`` on another.

    Args:
        ranks: the :func:`~haiprof.views.trace.communication.communications` of each rank.

    Returns:
        The rows of all ranks, with ``rank``, ``duration``, ``alike`` (the size, if all ranks must
        have the same), ``nth``, ``found`` (number of ranks that have it: fewer than its group if
        traces are missing, so that ``transfer`` is an upper bound) and, for those that are
        matched, ``transfer``, ``waiting`` and ``longest`` (how long the first rank waited) in ns,
        and ``last`` (how many ranks came last); else null.
    """
    frames = [
        numbered(frame).with_columns(pl.lit(rank).alias("rank"))
        for rank, frame in ranks.items()
        if frame.height
    ]
    if not frames:
        return pl.DataFrame(schema={**SCHEMA, **_MATCHED})
    meetings = Meetings()
    for frame in frames:
        meetings.add(frame)
    return meetings.matched(pl.concat(frames, how="vertical_relaxed"))


def numbered(found: pl.DataFrame) -> pl.DataFrame:
    """Number the communications of one rank, so that each has the same name on all ranks.

    Returns:
        ``found`` with ``duration`` (ns), ``alike``, ``nth`` of those with the same :data:`KEYS`,
        and ``count``: how many those are.
    """
    uneven = pl.col("op").is_in(["all_to_all"])
    return found.with_columns(
        (pl.col("end") - pl.col("start")).alias("duration"),
        pl.when(uneven.not_().fill_null(True)).then(pl.col("size")).alias("alike"),
    ).with_columns(
        pl.int_range(pl.len()).over(KEYS).alias("nth"),
        pl.len().over(KEYS).alias("count"),
    )


class Meetings:
    """The time of all ranks in each communication that they took part in together.

    One row per communication, however many ranks took part.
    """

    _SAME = (*KEYS, "nth")
    _MOST_WAITING = 100_000

    def __init__(self) -> None:
        """Start without any rank."""
        self._members: list[pl.DataFrame] = []
        self._waiting = 0
        self._known = 0

    def add(self, rank: pl.DataFrame) -> None:
        """Add the result of :func:`numbered` for one rank."""
        one = pl.lit(1, pl.UInt32())
        self._members.append(
            rank.select(
                *self._SAME,
                one.alias("found"),
                pl.col("duration").alias("shortest"),
                pl.col("duration").alias("longest"),
                one.alias("last"),
                pl.col("count").alias("fewest"),
                pl.col("count").alias("most"),
            )
        )
        self._waiting += rank.height
        # Each row is scanned a few times, not once for each rank.
        if self._waiting > max(self._MOST_WAITING, self._known):
            self._sum_up()

    def matched(self, ranks: pl.DataFrame) -> pl.DataFrame:
        """Match rows of some of the ranks: see :func:`match`.

        Args:
            ranks: result of :func:`numbered` for each, with ``rank``.
        """
        self._sum_up()
        agreed = (pl.col("fewest").min() == pl.col("most").max()).over(KEYS)
        one_sided = pl.col("op").is_in(["send", "recv"]).fill_null(False)
        met = self._members[0].with_columns(matched=agreed & (pl.col("found") > 1) & ~one_sided)
        rows = ranks.join(met, on=self._SAME, how="left", nulls_equal=True, maintain_order="left")

        def where_matched(value: pl.Expr) -> pl.Expr:
            return pl.when("matched").then(value)

        shortest = pl.col("shortest")
        return rows.with_columns(
            where_matched(shortest).alias("transfer"),
            where_matched(pl.col("duration") - shortest).alias("waiting"),
            where_matched(pl.col("longest") - shortest).alias("longest"),
            where_matched(pl.col("last")).alias("last"),
        ).drop("count", "fewest", "most", "matched", "shortest")

    def _sum_up(self) -> None:
        if len(self._members) < 2:
            return
        whole = pl.concat(self._members, how="vertical_relaxed")
        self._members.clear()
        shortest = pl.col("shortest")
        totals = whole.group_by(self._SAME).agg(
            pl.col("found").sum(),
            shortest.min(),
            pl.col("longest").max(),
            pl.col("last").filter(shortest == shortest.min()).sum(),
            pl.col("fewest").min(),
            pl.col("most").max(),
        )
        self._members.append(totals)
        self._known, self._waiting = totals.height, 0


def transfer(matched: pl.DataFrame) -> pl.DataFrame:
    """Split each rank's communication into moving data and waiting for the other ranks.

    Overlapping communications of a rank count once. The transfer is assumed to be at the end.

    Args:
        matched: result of :func:`match`.

    Returns:
        One row per rank and step: ``rank``, ``step`` (null outside of steps), ``communication``,
        ``transfer``, ``waiting`` (in ns; the first is the sum of the others), ``unmatched`` (ns of
        further communications, which matched no other rank's), ``calls`` and
        ``unmatched_calls``.
    """
    moved = pl.col("transfer").is_not_null()
    groups = matched.group_by("rank", "step", maintain_order=True).agg(
        pl.col("start").min().alias("low"),
        pl.col("end").max().alias("high"),
        pl.len().alias("calls"),
        (~moved).sum().alias("unmatched_calls"),
    )
    keys = ["rank", "step"]
    group = (
        matched.select(keys)
        .join(groups.select(keys).with_row_index("at"), on=keys, how="left", nulls_equal=True,
              maintain_order="left")["at"].cast(pl.Int64).to_numpy()
    )  # fmt: skip
    start, end = times(matched)
    known = matched["transfer"].is_not_null().to_numpy()
    shortest = matched["transfer"].fill_null(0).to_numpy()
    low, high = groups["low"].to_numpy(), groups["high"].to_numpy()
    everything = covered_per_group(group, start, end, low, high)
    in_collectives = covered_per_group(group[known], start[known], end[known], low, high)
    moving = covered_per_group(group[known], (end - shortest)[known], end[known], low, high)
    return groups.select(
        *keys,
        pl.Series("communication", in_collectives),
        pl.Series("transfer", moving),
        pl.Series("waiting", in_collectives - moving),
        pl.Series("unmatched", everything - in_collectives),
        "calls",
        "unmatched_calls",
    ).pipe(by_rank_and_step)


def waits(matched: pl.DataFrame) -> dict[str, tuple[Times, Times]]:
    """Return when each rank waited for others, by rank, and moved nothing at the same time.

    The waiting of :func:`transfer`, as intervals: ns, sorted and disjoint.

    Args:
        matched: result of :func:`match`.
    """
    known = matched.filter(pl.col("transfer").is_not_null())
    found = {}
    for (rank,), mine in known.partition_by("rank", as_dict=True).items():
        start, end = times(mine)
        moves = end - mine["transfer"].to_numpy()
        found[str(rank)] = subtract(*merge(start, moves), *merge(moves, end))
    return found


def by_rank_and_step(transfers: pl.DataFrame) -> pl.DataFrame:
    """Sort the results of :func:`transfer` for several ranks."""
    return transfers.sort("rank", "step")


def statistics(matched: pl.DataFrame) -> pl.DataFrame:
    """Summarise the collectives of each rank and group.

    Args:
        matched: result of :func:`match`.

    Returns:
        One row per rank, collective, group and type, the longest in all first: ``rank``, ``op``,
        ``group``, ``ranks``, ``group_size``, ``type``, ``calls`` (of operations), ``kernels``,
        ``bytes`` and ``bytes_mean`` (put in by this rank, of a call; null where not known), in ns
        ``total``, ``mean``, ``min``, ``max``; ``transfer`` and ``waiting`` (ns, of what is matched;
        null where nothing is); in GB/s of 10^9 bytes ``algorithm_bandwidth`` and
        ``bus_bandwidth`` (null where the collective, its ranks or its size are not known), and
        ``transfer_bus_bandwidth``, the same without waiting.
    """
    duration, sized = pl.col("duration"), pl.col("size").is_not_null()
    own = ("rank", "op", "group", "ranks", "group_size", "type")
    some = pl.col("transfer").is_not_null()
    summed = matched.group_by(own).agg(
        pl.coalesce("call", pl.col("activity").cast(pl.Int64) + (1 << 40))
        .n_unique()
        .alias("calls"),
        pl.len().alias("kernels"),
        pl.when(pl.col("bytes").is_not_null().any()).then(pl.col("bytes").sum()).alias("bytes"),
        duration.sum().alias("total"),
        duration.mean().alias("mean"),
        duration.min().alias("min"),
        duration.max().alias("max"),
        pl.when(some.any()).then(pl.col("transfer").sum()).alias("transfer"),
        pl.when(some.any()).then(pl.col("waiting").sum()).alias("waiting"),
        pl.col("size").sum().alias("sized"),
        duration.filter(sized).sum().alias("sized_time"),
        pl.col("size").filter(some).sum().alias("moved"),
        pl.col("transfer").filter(sized).sum().alias("moving_time"),
    )
    factor = bus_factor(pl.col("op"), pl.col("group_size"))
    speed = ratio(pl.col("sized"), pl.col("sized_time"))
    moving = ratio(pl.col("moved"), pl.col("moving_time"))
    known = pl.col("sized") > 0
    return (
        summed.with_columns(
            (pl.col("bytes") / pl.col("calls")).alias("bytes_mean"),
            pl.when(known).then(speed).alias("algorithm_bandwidth"),
            pl.when(known).then(speed * factor).alias("bus_bandwidth"),
            pl.when(pl.col("moved") > 0).then(moving * factor).alias("transfer_bus_bandwidth"),
        )
        .drop("sized", "sized_time", "moved", "moving_time")
        .cast(dict.fromkeys(_TEXTS, pl.String))
        .pipe(by_rank_and_time)
    )


def by_rank_and_time(statistics: pl.DataFrame) -> pl.DataFrame:
    """Sort the results of :func:`statistics` for several ranks: always in the same order."""
    return statistics.sort(
        "rank", "total", *_TEXTS, descending=[False, True, *[False] * len(_TEXTS)]
    )


def bus_factor(op: pl.Expr, ranks: pl.Expr) -> pl.Expr:
    """Return the factor from algorithm to bus bandwidth in nccl-tests, for ``ranks`` ranks."""
    others = (ranks.cast(pl.Float64) - 1) / ranks
    return (
        pl.when(op == "all_reduce")
        .then(2 * others)
        .when(op.is_in(["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"]))
        .then(others)
        .when(op.is_in(["broadcast", "reduce", "send", "recv", "send_recv"]))
        .then(pl.lit(1.0))
    )


def _host(linked: Linked, found: pl.DataFrame) -> tuple[Times, Times]:
    calls = linked.of("op", "user")
    calls[found["call"].drop_nulls().to_numpy()] = False
    return merge(linked.start[calls], linked.end[calls])
