"""Late ranks: planted in the parts of steps, and found with their time, part and sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from haiprof.views.run.imbalance import FEWEST, imbalance, words
from haiprof.views.run.rank_parts import PARTS, RankParts

MS = 1_000_000
#: A rank's own work in a step, in ms, and how much of it varies from step to step.
WORK = {"dataloader": 1.0, "forward": 4.0, "backward": 5.0, "optimizer": 2.0}


def job(
    ranks: int = 4,
    steps: int = 100,
    late: dict[tuple[int, int, int, str], float] | None = None,
    noise: float = 0.05,
    seed: int = 0,
    lasting: float = 0.0,
) -> pl.DataFrame:
    """Steps of ranks that leave backward together.

    Args:
        ranks: how many.
        steps: how many.
        late: (rank, first step, last step, part) -> ms more there.
        noise: standard deviation of each part, as a share of it.
        seed: of the noise.
        lasting: standard deviation of what a rank takes more or less for 50 steps, as a share.
    """
    random = np.random.default_rng(seed)
    rows = []
    now = np.zeros(ranks)
    slower = np.ones(ranks)
    for step in range(steps):
        if step % 50 == 0:
            slower = 1 + lasting * random.standard_normal(ranks)
        for part, usual in WORK.items():
            took = usual * slower * (1 + noise * random.standard_normal(ranks))
            for (rank, first, last, where), more in (late or {}).items():
                if first <= step <= last and where == part:
                    took[rank] += more
            start, now = now, now + took
            if part == "backward":
                now = np.full(ranks, now.max()) + 0.02 * random.random(ranks)
            rows += [
                {
                    "rank": f"rank {rank}",
                    "step": step,
                    "part": part,
                    "duration": round((now[rank] - start[rank]) * MS),
                    "start": round(start[rank] * MS),
                    "end": round(now[rank] * MS),
                }
                for rank in range(ranks)
            ]
    return pl.DataFrame(rows, PARTS)


def together(parts: pl.DataFrame) -> RankParts:
    rank_parts = RankParts()
    for (rank,), frame in parts.partition_by("rank", as_dict=True).items():
        rank_parts.add(str(rank), frame)
    return rank_parts


def found(parts: pl.DataFrame) -> list[dict[str, Any]]:
    rank_parts = together(parts)
    rank_parts.leave_waiting_out()
    return imbalance(rank_parts).to_dicts()


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
@pytest.mark.parametrize(("part", "kind"), [("dataloader", "input"), ("forward", "compute")])
def test_a_late_rank_is_reported_whatever_the_steps_take(ranks: int, part: str, kind: str) -> None:
    parts = job(ranks, late={(1, 40, 99, part): 6.0})
    # All steps take as long: their length says nothing.
    lengths = parts.group_by("rank").agg(pl.col("duration").sum())["duration"].to_list()
    assert max(lengths) / min(lengths) < 1.01
    (row,) = found(parts)
    assert (row["rank"], row["part"], row["kind"]) == ("rank 1", part, kind)
    assert abs(row["since"] - 40) <= 1
    assert (row["until"], row["persistent"], row["steps"]) == (99, True, 100)
    assert row["late"] == pytest.approx(6 * MS, rel=0.1)
    assert row["in_part"] == pytest.approx(6 * MS, rel=0.1)
    assert row["share"] == pytest.approx(0.5, rel=0.1)


def test_what_passes_is_reported_as_passing_and_what_comes_later_too() -> None:
    late = {(0, 10, 29, "forward"): 5.0, (3, 50, 69, "dataloader"): 8.0}
    rows = found(job(late=late))
    assert [(r["rank"], r["kind"], r["persistent"]) for r in rows] == [
        ("rank 3", "input", False),
        ("rank 0", "compute", False),
    ]
    assert [(r["since"], r["until"]) for r in rows] == [(50, 69), (10, 29)]
    assert words(rows[0], "Rank 3") == (
        f"Rank 3 is late by {rows[0]['late'] / MS:.3g} ms a step "
        f"({rows[0]['share'] * 100:.0f} % of one) from step 50 to 69, in dataloader: "
        "it waits for its data"
    )


def test_a_rank_that_is_always_a_bit_late_and_then_much_is_reported_from_then_on() -> None:
    late = {(3, 0, 99, "forward"): 1.0, (3, 70, 99, "forward"): 11.0}
    (row,) = found(job(late={**late, (3, 20, 20, "forward"): 200.0}))
    assert (row["rank"], row["since"], row["until"]) == ("rank 3", 70, 99)
    assert row["late"] == pytest.approx(11 * MS, rel=0.15)


def test_nobody_is_late_by_chance() -> None:
    for seed in range(20):
        assert not found(job(seed=seed, noise=0.2))


def test_nobody_is_late_by_neighbours_that_come_and_go() -> None:
    counts = [len(found(job(ranks=2, steps=1500, seed=seed, lasting=0.08))) for seed in range(10)]
    assert sum(counts) <= 1


def test_one_slow_step_is_none() -> None:
    assert not found(job(late={(2, 50, 50, "forward"): 200.0}))


def test_ranks_that_do_not_meet_are_compared_by_their_steps() -> None:
    parts = job(late={(2, 0, 99, "optimizer"): 3.0})
    (row,) = found(parts.filter(pl.col("part") != "backward"))
    assert (row["rank"], row["part"]) == ("rank 2", "optimizer")


def test_steps_that_not_all_ranks_have_are_left_out() -> None:
    parts = job(late={(1, 40, 99, "forward"): 6.0})
    cut = parts.filter((pl.col("rank") != "rank 0") | (pl.col("step") < 80))
    (row,) = found(cut)
    assert (row["rank"], row["steps"], row["until"]) == ("rank 1", 80, 79)


def test_of_few_steps_it_is_not_reported_since_when() -> None:
    (row,) = found(job(steps=FEWEST - 1, late={(1, 0, 99, "forward"): 6.0}))
    assert (row["rank"], row["since"], row["until"], row["persistent"]) == (
        "rank 1", None, None, None,
    )  # fmt: skip
    assert " since " not in words(row, "Rank 1")


def test_many_steps_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("haiprof.views.run.imbalance._MOST", 4 * 4 * 30)
    (row,) = found(job(late={(1, 40, 99, "forward"): 6.0}))
    assert row["rank"] == "rank 1"
    assert abs(row["since"] - 40) <= 4
    assert row["late"] == pytest.approx(6 * MS, rel=0.1)


def test_one_rank_and_no_rank_have_no_peers() -> None:
    assert not found(job(ranks=1))
    assert not found(pl.DataFrame(schema=PARTS))
