"""Steps of ranks that wait for each other once, by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from haiprof.views.run.slowdown import data_parallel
from haiprof.views.run.slowdown.causes import Slowdown
from haiprof.views.run.slowdown.usual import repaired

MS = 1_000_000
PARTS = ["backward", "forward"]


def found(own: list[list[list[float]]], rest: float = 2.0, late: float = 0.0) -> Slowdown:
    """Return the answer for parts of the steps of ranks, ms; the last rank's steps end later."""
    values = np.array(own, float)
    took = np.tile(values.sum(2).max(0) + rest, (len(own), 1))
    took[-1] += late
    ranks = {f"rank {n}": n for n in range(len(own))}
    return data_parallel.of_parts(
        ranks, PARTS, np.arange(values.shape[1]) + 5, values * MS, took * MS
    )


def test_without_the_slow_rank_a_step_is_as_long_as_the_next_one_needs() -> None:
    slow = found([[[4, 2], [4, 2]], [[4, 2], [5, 2]], [[4, 8], [4, 8]], [[4, 2], [4, 2]]])
    assert slow.why is None
    assert slow.causes.select("rank", "kind", "cause", "without", "gain").rows()[:3] == [
        (2, "rank", "rank 2", 8.5 * MS, 5.5 * MS),
        (None, "phase", "forward", 8.5 * MS, 5.5 * MS),
        (None, "phase", "backward", 14 * MS, 0),
    ]
    assert slow.causes["words"][0] == (
        "Without the delays of rank 2 a step takes 8.5 ms instead of 14 ms"
    )
    assert slow.steps.select("step", "measured", "replayed", "ideal").rows() == [
        (5, 14 * MS, 14 * MS, 8 * MS),
        (6, 14 * MS, 14 * MS, 8 * MS),
    ]
    (whole,) = slow.whole.to_dicts()
    assert (whole["slowdown"], whole["by_last_stage"]) == (1.75, None)
    assert whole["by_ranks"] == pytest.approx(5.5 / 6)
    alone = dict(slow.causes.select("cause", "slowdown").iter_rows())
    assert alone["rank 2"] == 1.75
    assert alone["rank 1"] == pytest.approx(8.5 / 8)


def test_two_ranks_are_repaired_by_each_other() -> None:
    two = found([[[4, 2]] * 3, [[4, 6]] * 3])
    assert two.causes.select("cause", "without").row(0) == ("rank 1", 8 * MS)
    assert two.causes.filter(pl.col("cause") == "rank 0")["gain"].to_list() == [0]


def test_ranks_that_take_their_own_time_do_not_wait_for_each_other() -> None:
    alone = found([[[4, 2]] * 3, [[4, 2]] * 3], late=4.0)
    assert alone.why == data_parallel.NOT_TOGETHER
    assert not alone.causes.height


def test_ranks_that_nobody_saw_waiting_are_not_replayed() -> None:
    # All of the step is work of either: one of them waits somewhere in it.
    seen = found([[[4, 6]] * 3, [[8, 2]] * 3], rest=0.0)
    assert seen.why == data_parallel.NO_WAITING
    assert not seen.causes.height


def test_of_many_ranks_the_slow_one_is_found() -> None:
    own = [[[4.0, 2.0]] * 2 for _ in range(300)]
    own[123] = [[4.0, 9.0]] * 2
    many = found(own)
    assert many.causes.select("cause", "without").row(0) == ("rank 123", 8 * MS)
    assert many.whole["by_ranks"].to_list() == [1.0]


@pytest.mark.parametrize("ranks", [3, 40])
def test_a_repaired_rank_is_as_fast_as_the_others_or_as_it_was(ranks: int) -> None:
    own = np.full((ranks, 2), 10.0)
    own[0] = [30, 5]
    fixed = repaired(own)
    assert fixed[0].tolist() == [10, 5]
    assert (fixed[1:, 0] == 10).all()


def test_what_no_other_rank_has_stays_as_it_is() -> None:
    own = np.array([[10.0, 7.0], [20.0, np.nan]])
    assert np.array_equal(repaired(own), np.array([[10.0, 7.0], [10.0, np.nan]]), equal_nan=True)
