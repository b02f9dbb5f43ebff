"""What causes cost: of many ranks, of steps that nothing delays, and in what order."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from haiprof.views.run.slowdown import causes
from haiprof.views.run.slowdown.graph import Graph
from haiprof.views.run.slowdown.operations import Operations

MS = 1_000_000


def beside(own: list[float], ideal: float, steps: int = 1) -> Operations:
    """Operations of ranks that meet once each step: it takes as long as the longest, ms."""
    count = len(own) * steps
    frame = pl.DataFrame(
        {
            "step": [step for step in range(steps) for _ in own],
            "rank": list(range(len(own))) * steps,
            "stage": [0] * count,
            "replica": list(range(len(own))) * steps,
            "name": ["work"] * count,
        }
    )
    nothing = np.zeros(0, np.intp)
    graph = Graph(count, nothing, nothing, np.full(count, -1, np.intp))
    took = np.array(own * steps) * MS
    return Operations(
        frame, graph, took, np.full(count, ideal * MS), np.full(steps, max(own) * float(MS))
    )


def test_without_the_slowest_rank_a_step_takes_as_long_as_the_next_one() -> None:
    found = causes.of_operations(beside([10, 10, 30, 20], 10, steps=3))
    assert found.causes.select("rank", "kind", "cause", "duration", "without", "gain").rows() == [
        (None, "operation", "work", 30 * MS, 10 * MS, 20 * MS),
        (2, "rank", "rank 2", 30 * MS, 20 * MS, 10 * MS),
        (0, "rank", "rank 0", 30 * MS, 30 * MS, 0),
        (1, "rank", "rank 1", 30 * MS, 30 * MS, 0),
        (3, "rank", "rank 3", 30 * MS, 30 * MS, 0),
    ]
    assert found.causes["share"][1] == pytest.approx(1 / 3)
    assert found.causes["slowdown"].to_list() == [3, 3, 1, 1, 2]
    assert found.whole.select("steps", "ranks", "slowdown", "by_ranks").row(0) == (3, 4, 3, 0.5)


def test_of_causes_that_save_as_much_the_one_on_fewer_ranks_comes_first() -> None:
    found = causes.of_operations(beside([10, 10, 30, 10], 10))
    assert found.causes["cause"].to_list()[:2] == ["rank 2", "work"]
    assert found.causes["gain"].to_list()[:2] == [20 * MS, 20 * MS]


def test_of_many_ranks_those_with_the_most_to_save_are_replayed() -> None:
    own = [10.0 + n % 7 for n in range(200)]
    own[150] = 40.0
    found = causes.of_operations(beside(own, 10))
    assert found.causes["cause"][0] in ("rank 150", "work")
    assert found.causes.filter(pl.col("kind") == "rank").height == causes.MOST
    # The worst six of 200 ranks: the longest, and five of those with 16 ms.
    assert found.whole["by_ranks"].to_list() == [pytest.approx(24 / 30)]


@pytest.mark.parametrize("seed", range(5))
def test_all_repaired_is_ideal_and_nothing_repaired_is_as_replayed(seed: int) -> None:
    random = np.random.default_rng(seed)
    ops = beside(random.integers(5, 50, 6).astype(float).tolist(), 10, steps=4)
    found = causes.of_operations(ops)
    everything = found.causes.filter(pl.col("cause") == "work")
    assert everything["without"].to_list() == [found.whole["ideal"][0]]
    assert everything["slowdown"].to_list() == [pytest.approx(found.whole["slowdown"][0])]
    assert found.steps["measured"].to_list() == found.steps["replayed"].to_list()


def test_a_lone_rank_has_no_other_to_be_repaired_by() -> None:
    found = causes.of_operations(beside([30], 10))
    assert found.causes["kind"].to_list() == ["operation"]
    assert found.whole.select("by_ranks", "by_last_stage").row(0) == (None, None)


def test_nothing_to_replay_has_a_reason_and_no_rows() -> None:
    found = causes.nothing("because")
    assert found.why == "because"
    assert [frame.height for frame in (found.causes, found.steps, found.whole)] == [0, 0, 0]
