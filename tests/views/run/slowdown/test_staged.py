"""Pipelines of which only the computing is known: as measured, and without a slow rank."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from pipelines import MS, chunks_interleaved, even, frame, gpipe, laid_out, one_f_one_b

from haiprof.views.run.slowdown import causes, staged
from haiprof.views.run.slowdown.operations import CannotReplay

RANKS, MICROBATCHES = 4, 8


def orders(order: Any) -> list[Any]:
    return [order(rank, RANKS, MICROBATCHES) for rank in range(RANKS)]


def steps(order: Any, slow: int | None) -> pl.DataFrame:
    """Three steps, in which one rank takes half as much time again."""

    def cost(kind: str, rank: int) -> int:
        return even(kind, rank) * (15 if rank == slow else 10) // 10

    rows = []
    for step in range(3):
        rows += laid_out(orders(order), cost, begin=step * 10_000 * MS + 7, step=step)
    return frame(rows)


def lasts(jobs: pl.DataFrame) -> list[int]:
    end = (pl.col("start") + pl.col("duration")).max()
    return jobs.group_by("step", maintain_order=True).agg(end - pl.col("start").min())[
        "start"
    ].to_list()  # fmt: skip


@pytest.mark.parametrize("slow", range(RANKS))
@pytest.mark.parametrize("order", [one_f_one_b, gpipe, chunks_interleaved])
def test_without_a_slow_rank_the_step_is_that_of_even_ranks(order: Any, slow: int) -> None:
    jobs, healthy = steps(order, slow), steps(order, None)
    found = causes.of_operations(staged.operations(jobs))
    assert found.steps["measured"].to_list() == found.steps["replayed"].to_list()
    (length,) = set(lasts(healthy))
    first = found.causes.row(0, named=True)
    assert (first["rank"], first["cause"]) == (slow, f"rank {slow}")
    assert first["without"] == length
    assert set(found.steps["ideal"]) == {length}
    assert found.whole["by_ranks"].to_list() == [1.0]


#: Rank, kind, microbatch, start and end in ms.
Row = tuple[int, str, int | None, float, float]


def jobs(*rows: Row) -> pl.DataFrame:
    return frame(
        {
            "node": "n", "rank": rank, "pid": rank, "step": 1, "kind": kind, "name": kind,
            "microbatch": microbatch, "stage": rank, "chunk": None, "start": round(start * MS),
            "duration": round((end - start) * MS),
        }
        for rank, kind, microbatch, start, end in rows
    )  # fmt: skip


def without(found: pl.DataFrame) -> dict[str, int]:
    """Return how long a step takes without each cause, ms."""
    rows = causes.of_operations(staged.operations(found)).causes
    return {cause: ns // MS for cause, ns in rows.select("cause", "without").iter_rows()}


def test_what_passes_between_jobs_stays_as_it_is() -> None:
    # A message takes 2 ms, and the host 3 ms before the optimizer.
    one = jobs(
        (0, "forward", 0, 0, 20),
        (1, "forward", 0, 22, 32),
        (1, "backward", 0, 32, 42),
        (0, "backward", 0, 44, 64),
        (0, "optimizer", None, 67, 68),
        (1, "optimizer", None, 45, 46),
    )
    found = causes.of_operations(staged.operations(one))
    assert found.steps["replayed"].to_list() == [68 * MS]
    assert without(one)["rank 0"] == 68 - 10 - 10
    assert without(one)["rank 1"] == 68


def test_waiting_inside_of_a_job_is_not_its_own_work() -> None:
    # The forward on rank 1 begins at once, and waits for its input itself.
    one = jobs(
        (0, "forward", 0, 0, 30),
        (1, "forward", 0, 1, 40),
        (1, "backward", 0, 40, 60),
        (0, "backward", 0, 60, 80),
    )
    assert without(one) == {"rank 0": 60, "rank 1": 80, "forward": 60, "backward": 80}


def test_optimizers_that_always_wait_for_all_ranks_still_do() -> None:
    # Beside each other, without any message: only the optimizers meet.
    def beside(waits: bool) -> pl.DataFrame:
        rows: list[Row] = []
        for rank, length in ((0, 10), (1, 30)):
            end = 2 * length
            start = 60 if waits else end
            rows += [
                (rank, "forward", None, 0, length),
                (rank, "backward", None, length, end),
                (rank, "optimizer", None, start, start + 5 + 3 * (1 - rank)),
            ]
        return jobs(*rows)

    assert without(beside(True))["rank 1"] == 20 + 8
    # Else rank 1 alone is what takes long, and the optimizer of rank 0 is done before.
    assert without(beside(False))["rank 1"] == 20 + 8
    found = causes.of_operations(staged.operations(beside(True)))
    assert found.steps["replayed"].to_list() == [68 * MS]


def test_jobs_without_a_rank_are_not_replayed() -> None:
    lost = jobs((0, "forward", 0, 0, 20)).with_columns(pl.lit(None, pl.Int64()).alias("rank"))
    with pytest.raises(CannotReplay, match="without a rank"):
        staged.operations(lost)
