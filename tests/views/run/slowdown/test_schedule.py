"""Steps of which every operation is known: one laid out by hand, and those of the study."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from real_data import DATA, need

from haiprof.analyzer import Analyzer
from haiprof.views.run.pipeline import JOBS
from haiprof.views.run.slowdown import causes, schedule
from haiprof.views.run.slowdown.operations import CannotReplay

MS = 1_000_000
Row = tuple[int, int, str, int, int]
#: Two microbatches on two stages, of which the second takes twice as long: rank, stage, name, start
#: and end in ms. A message takes 1 ms from when both ranks are there.
BY_HAND: list[Row] = [
    (0, 0, "forward-compute", 0, 10),
    (0, 0, "forward-send", 10, 11),
    (0, 0, "forward-compute", 10, 20),
    (0, 0, "forward-send", 20, 32),
    (0, 0, "backward-recv", 10, 52),
    (0, 0, "backward-compute", 52, 62),
    (0, 0, "backward-recv", 62, 92),
    (0, 0, "backward-compute", 92, 102),
    (0, 0, "optimizer-clip-main-grad", 102, 103),
    (0, 0, "optimizer", 103, 105),
    (1, 1, "forward-recv", 0, 11),
    (1, 1, "forward-compute", 11, 31),
    (1, 1, "backward-compute", 31, 51),
    (1, 1, "forward-recv", 31, 32),
    (1, 1, "backward-send", 51, 52),
    (1, 1, "forward-compute", 51, 71),
    (1, 1, "backward-compute", 71, 91),
    (1, 1, "backward-send", 91, 92),
    (1, 1, "optimizer-clip-main-grad", 91, 103),
    (1, 1, "optimizer", 103, 105),
]


def jobs(rows: list[Row], step: int = 7) -> pl.DataFrame:
    columns: list[dict[str, Any]] = [
        {
            "rank": rank, "step": step, "kind": "", "name": name, "microbatch": None,
            "stage": stage, "chunk": None, "start": start * MS, "duration": (end - start) * MS,
        }
        for rank, stage, name, start, end in rows
    ]  # fmt: skip
    return pl.DataFrame(columns, {"rank": pl.Int64(), **JOBS})


def test_a_step_by_hand() -> None:
    found = causes.of_operations(schedule.operations(jobs(BY_HAND)))
    # A forward and a backward take 15 ms on average: then the step ends after 95 ms.
    (step,) = found.steps.rows()
    assert step == (7, 105 * MS, 105 * MS, 95 * MS, pytest.approx(105 / 95))
    rows = {row["cause"]: row for row in found.causes.to_dicts()}
    assert found.causes["cause"][0] == "rank 1"
    assert rows["rank 1"]["without"] == 85 * MS
    assert rows["rank 1"]["gain"] == 20 * MS
    assert rows["rank 1"]["slowdown"] == pytest.approx(115 / 95)
    assert rows["rank 1"]["words"] == (
        "Without the delays of rank 1 a step takes 85 ms instead of 105 ms"
    )
    # Rank 0 is faster than the average: with that it would be slower.
    assert rows["rank 0"]["without"] == 115 * MS
    assert rows["optimizer"]["gain"] == rows["forward messages"]["gain"] == 0
    assert found.causes["gain"][-1] == found.causes["gain"].min()
    (whole,) = found.whole.to_dicts()
    assert (whole["steps"], whole["ranks"]) == (1, 2)
    assert whole["by_ranks"] == whole["by_last_stage"] == pytest.approx(2.0)
    assert found.why is None


def test_a_step_that_nothing_delays_has_no_slowdown() -> None:
    ops = schedule.operations(jobs(BY_HAND))
    found = causes.of_operations(ops._replace(ideal=ops.own))
    assert found.whole["slowdown"].to_list() == [1.0]
    assert found.causes["gain"].unique().to_list() == [0]
    assert found.whole.select("by_ranks", "by_last_stage").row(0) == (None, None)


def test_replicas_wait_for_each_other_where_they_reduce_gradients() -> None:
    def replica(rank: int, forward: int, reduced: int) -> list[Row]:
        return [
            (rank, 0, "params-all-gather", 0, 2),
            (rank, 0, "forward-compute", 2, 2 + forward),
            (rank, 0, "backward-compute", 2 + forward, 12 + forward),
            (rank, 0, "grads-reduce-scatter", 12 + forward, reduced),
            (rank, 0, "optimizer", reduced, reduced + 1),
        ]

    ops = schedule.operations(jobs([*replica(0, 10, 46), *replica(1, 30, 46)]))
    took = dict(ops.frame.with_columns(pl.Series("own", ops.own)).select("rank", "own").filter(
        ops.frame["name"] == "grads-reduce-scatter").rows())  # fmt: skip
    assert took == {0: 4 * MS, 1: 4 * MS}
    found = causes.of_operations(ops)
    assert found.steps.select("measured", "replayed", "ideal").row(0) == (47 * MS, 47 * MS, 37 * MS)
    assert found.causes["cause"][0] == "rank 1"
    assert found.causes["without"][0] == 37 * MS
    assert found.whole["by_last_stage"].to_list() == [None]


def test_reductions_beside_the_backward_do_not_delay_it() -> None:
    rows: list[Row] = [
        (rank, 0, name, start, end)
        for rank in (0, 1)
        for name, start, end in (
            ("forward-compute", 0, 10),
            ("backward-compute", 10, 30),
            ("grads-reduce-scatter", 30, 40),
            ("layernorm-grads-all-reduce", 40, 41),
            ("separate-grads-all-reduce", 41, 44),
            ("optimizer", 44, 45),
        )
    ]
    found = causes.of_operations(schedule.operations(jobs(rows)))
    assert found.steps["replayed"].to_list() == [45 * MS]


def test_each_chunk_of_a_stage_sends_to_the_next_one() -> None:
    # Two chunks on each of two stages; each computing has a message, also where no peer is.
    rows: list[Row] = [
        (0, 0, "forward-compute", 0, 10), (0, 0, "forward-send", 10, 11),
        (1, 1, "forward-recv", 0, 11), (1, 1, "forward-compute", 11, 21),
        (1, 1, "forward-send", 21, 22), (0, 0, "forward-recv", 10, 22),
        (0, 0, "forward-compute", 22, 32), (0, 0, "forward-send", 32, 33),
        (1, 1, "forward-recv", 21, 33), (1, 1, "forward-compute", 33, 53),
        (1, 1, "optimizer", 53, 54), (0, 0, "optimizer", 32, 33),
    ]  # fmt: skip
    seen: dict[int, int] = {}
    chunks = []
    for rank, _, name, _, _ in rows:
        number = seen.get(rank, 0)
        chunks.append(number if name == "forward-compute" else None)
        seen[rank] = number + (name == "forward-compute")
    found = causes.of_operations(
        schedule.operations(jobs(rows).with_columns(pl.Series("chunk", chunks, pl.UInt32())))
    )
    assert found.steps["replayed"].to_list() == [54 * MS]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[:1] + rows[2:], "rank 0 has 1 operations forward-send in step 7 for 2"),
        (lambda rows: [(*rows[0][:3], 1000, 1010), *rows[1:]], "wait for each other"),
    ],
)
def test_a_step_that_lacks_something_is_not_replayed(change: Any, why: str) -> None:
    with pytest.raises(CannotReplay, match=why):
        schedule.operations(jobs(change(BY_HAND)))


def test_operations_without_a_rank_are_not_replayed() -> None:
    with pytest.raises(CannotReplay, match="without a rank"):
        schedule.operations(jobs(BY_HAND).with_columns(pl.lit(None, pl.Int64()).alias("rank")))


@pytest.mark.parametrize(("job", "first"), [("AR", "rank 0"), ("ST", "stage 3")])
def test_the_jobs_of_the_study_are_slowed_down_as_it_says(job: str, first: str) -> None:
    folder = need(DATA / "other" / "straggler")
    expected, by_ranks, by_stage = (
        json.loads((folder / f"{name}-{job}.json").read_text()) for name in ("result", "mw", "ms")
    )
    found = Analyzer(folder / f"trace-{job}.parquet").slowdown()
    (whole,) = found.whole.to_dicts()
    assert whole["slowdown"] == pytest.approx(expected["blocking_slowdown"], rel=1e-5)
    assert whole["replayed"] == pytest.approx(by_ranks["tori"] * 1e9, rel=1e-5)
    assert whole["ideal"] == pytest.approx(by_ranks["tideal"] * 1e9, rel=1e-5)
    assert whole["by_ranks"] == pytest.approx(by_ranks["Mw"], rel=1e-4)
    assert whole["by_last_stage"] == pytest.approx(by_stage["Ms"], rel=1e-3)
    alone = dict(found.causes.select("cause", "slowdown").iter_rows())
    groups = {
        "replica {}": expected["blocking_decompose_by_dp_rank"],
        "stage {}": expected["blocking_decompose_by_stage"],
        "{}": {
            name.replace("-pp-comm", " messages"): value
            for name, value in expected["blocking_decompose_by_optype"].items()
        },
    }
    for name, values in groups.items():
        for number, value in values.items():
            assert alone[name.format(number)] == pytest.approx(value, rel=1e-5)
    steps = dict(found.steps.select("step", "slowdown").iter_rows())
    assert steps == pytest.approx(
        {int(step): value for step, value in expected["blocking_step_slowdown"].items()}, rel=1e-5
    )
    assert found.causes["cause"][0] == first
