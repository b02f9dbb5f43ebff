"""The pipeline view against schedules laid out by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from pipelines import (
    MS,
    chunks_breadth_first,
    chunks_interleaved,
    even,
    frame,
    gpipe,
    laid_out,
    one_f_one_b,
)

from haiprof import schema
from haiprof.sources import tables
from haiprof.views.run import pipeline as view


@pytest.mark.parametrize(
    ("order", "schedule", "chunks"),
    [
        (one_f_one_b, "1F1B", 1),
        (gpipe, "GPipe", 1),
        (chunks_interleaved, "interleaved 1F1B", 2),
        (chunks_breadth_first, "breadth first", 2),
    ],
)
def test_even_stages_have_the_ideal_bubble(order: Any, schedule: str, chunks: int) -> None:
    ranks, microbatches = 4, 8
    orders = [order(rank, ranks, microbatches) for rank in range(ranks)]
    found = view.pipeline(frame(laid_out(orders, even)))
    (step,) = found.steps.to_dicts()
    assert step["schedule"] == schedule
    assert (step["stages"], step["chunks"], step["microbatches"]) == (ranks, chunks, microbatches)
    assert step["ideal"] == pytest.approx((ranks - 1) / (chunks * microbatches + ranks - 1))
    assert step["bubble"] == pytest.approx(step["ideal"])
    assert found.lanes["busy"].to_list() == [microbatches * chunks * 30 * MS] * ranks
    assert found.lanes["bubble"].to_list() == pytest.approx([step["ideal"]] * ranks)
    idle = found.lanes.select(pl.sum_horizontal("before", "between", "after")).to_series()
    assert (idle + found.lanes["busy"] == step["duration"]).all()


@pytest.mark.parametrize("slow", range(4))
def test_the_slow_stage_is_critical_and_waited_for(slow: int) -> None:
    def cost(kind: str, rank: int) -> int:
        return even(kind, rank) * (15 if rank == slow else 10) // 10

    orders = [one_f_one_b(rank, 4, 8) for rank in range(4)]
    found = view.pipeline(frame(laid_out(orders, cost)))
    assert found.steps["critical"].to_list() == [slow]
    first = found.stages.row(0, named=True)
    assert first["stage"] == slow
    assert first["waited_for"] == found.stages["waited_for"].max()
    assert (first["busy"], first["forward"], first["backward"]) == (360 * MS, 15 * MS, 30 * MS)
    waited = found.stages["waited_for"].sum()
    # All waiting but that for the pipeline to drain is for a stage.
    idle = found.lanes.select(pl.sum_horizontal("before", "between")).to_series().sum()
    assert waited == idle


def test_two_pipelines_side_by_side_wait_for_their_own() -> None:
    rows = []
    for line in (0, 1):
        jobs = laid_out(
            [one_f_one_b(rank, 2, 4) for rank in range(2)],
            lambda kind, rank, line=line: even(kind, rank) * (3 if (line, rank) == (1, 1) else 1),
        )
        rows += [
            {**row, "rank": row["rank"] * 2 + line, "pid": row["pid"] + 10 * line} for row in jobs
        ]
    found = view.pipeline(frame(rows))
    (step,) = found.steps.to_dicts()
    assert (step["ranks"], step["stages"], step["critical"]) == (4, 2, 1)
    alone = [
        view.pipeline(frame(row for row in rows if row["rank"] % 2 == line)) for line in (0, 1)
    ]
    for stage in (0, 1):
        of = [
            each.stages.filter(pl.col("stage") == stage)["waited_for"].item()
            for each in (found, *alone)
        ]
        assert of[0] == of[1] + of[2]


def test_a_backward_in_two_parts_has_no_known_ideal() -> None:
    rows = laid_out([one_f_one_b(rank, 2, 2) for rank in range(2)], even)
    rows.append({**rows[-1], "kind": "weight", "name": "W", "start": 500 * MS})
    (step,) = view.pipeline(frame(rows)).steps.to_dicts()
    assert (step["schedule"], step["ideal"]) == ("zero bubble", None)


def test_steps_are_apart_and_one_can_be_asked_for() -> None:
    orders = [one_f_one_b(rank, 2, 2) for rank in range(2)]
    rows = laid_out(orders, even) + laid_out(orders, even, begin=300 * MS, step=1)
    rows.append({**rows[0], "step": None, "start": 250 * MS})
    both = view.pipeline(frame(rows))
    assert both.steps["start"].to_list() == [0, 300 * MS]
    assert both.jobs.height == 17
    one = view.pipeline(frame(rows), step=1)
    assert one.steps.equals(both.steps.filter(pl.col("step") == 1))
    assert one.jobs.height == 8
    none = view.pipeline(frame(rows), step=7)
    assert [each.height for each in none] == [0, 0, 0, 0]
    assert [each.schema for each in none] == [each.schema for each in both]


def test_what_overlaps_counts_once_and_communication_not_at_all() -> None:
    (row, *_) = laid_out([[("F", 0, 0)]], even)
    rows = [
        row,
        {**row, "kind": "optimizer", "name": "opt", "start": 5 * MS, "duration": 10 * MS},
        {**row, "kind": "recv", "name": "recv", "start": 15 * MS, "duration": 25 * MS},
    ]
    (lane,) = view.pipeline(frame(rows)).lanes.to_dicts()
    assert (lane["busy"], lane["recv"], lane["after"]) == (15 * MS, 25 * MS, 25 * MS)
    assert lane["bubble"] == pytest.approx(25 / 40)


def test_a_receive_belongs_to_the_job_that_it_is_for() -> None:
    last = laid_out([[("F", 0, 0), ("B", 0, 0)], [("F", 0, 0), ("B", 0, 0)]], even)
    then = laid_out([[("F", 0, 0)], [("F", 0, 0)]], even, begin=1000 * MS, step=1)
    end = max(row["start"] + row["duration"] for row in last)
    job = {"name": "recv", "kind": "recv", "microbatch": 0, "stage": 1, "chunk": None, "step": 0}
    # It begins in the step before, and waits until the first stage has sent.
    begin = min(row["start"] for row in then if row["rank"] == 1)
    whose = next(row for row in last if row["rank"] == 1)
    waits = {**whose, **job, "start": end, "duration": begin - end}
    found = view.pipeline(frame([*last, waits, *then]))
    assert found.jobs.filter(pl.col("kind") == "recv")["step"].to_list() == [1]
    first, second = found.steps.iter_rows(named=True)
    assert first["start"] + first["duration"] == end
    assert second["start"] == 1000 * MS  # not when somebody began to wait for it


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("F", "forward"), ("fwd", "forward"), ("forward-warmup", "forward"),
        ("forward_step", "forward"), ("B", "backward"), ("backward-cooldown", "backward"),
        ("full_backward", "backward"), ("backward_b", "backward"), ("W", "weight"),
        ("backward_w", "weight"), ("backward_weight", "weight"), ("recv-forward", "recv"),
        ("forward_recv", "recv"), ("send_backward", "send"), ("exchange-next", "send"),
        ("allreduce", "reduce"), ("grad_all_reduce", "reduce"), ("optimizer", "optimizer"),
        ("lr", "optimizer"), ("load", "other"), ("fuse", "other"), ("", "other"),
    ],
)  # fmt: skip
def test_names_tell_kinds(name: str, kind: str) -> None:
    assert view.kind_of(name) == kind


def test_ranges_of_the_host_tell_their_numbers_in_attributes() -> None:
    host = pl.DataFrame(
        {
            "start": [40, 20, 10],
            "duration": [5, 5, 5],
            "category": ["pipeline", "user", "user"],
            "name": ["B", "note", "F"],
            "step": [1, 1, 1],
            "attributes": [
                '{"microbatch": "many", "stage": 2', '{"text": "microbatch"}',
                '{"stage": 2, "microbatch": 7}',
            ],
        }
    )  # fmt: skip
    jobs = view.of_host(host)
    assert jobs.select("kind", "microbatch", "stage", "start").rows() == [
        ("forward", 7, 2, 10), ("backward", None, 2, 40)
    ]  # fmt: skip
    phases = pl.DataFrame(
        {
            # Before the first job of a step it only clears gradients.
            "start": [2, 30], "duration": [5, 5], "category": ["phase"] * 2,
            "name": ["optimizer"] * 2, "step": [1, 1], "attributes": [None, None],
        }
    )  # fmt: skip
    updated = view.with_updates(jobs, phases)
    assert updated["kind"].to_list() == ["forward", "optimizer", "backward"]
    assert updated.schema == jobs.schema == view.of_host(host.clear()).schema
    assert view.with_updates(jobs, phases.clear()).equals(jobs)


def test_ranges_of_a_device_without_a_microbatch_are_no_jobs() -> None:
    columns = [c for c in schema.DEVICE_SPANS.columns if c.name in view.DEVICE_COLUMNS]
    rows = pl.DataFrame(
        {
            "start": [11, 12, 13],
            "duration": [5, 5, 5],
            "category": ["user", "user", "pipeline"],
            "name": ["F", "note", "lr"],
            "step": [1, 1, 1],
            "microbatch": [7, None, None],
        }
    )
    jobs = view.of_device(pl.concat([tables.empty(columns), rows], how="diagonal_relaxed"))
    assert jobs.select("kind", "microbatch").rows() == [("forward", 7), ("optimizer", None)]
    assert view.of_device(tables.empty(columns)).schema == jobs.schema


def test_stages_that_are_numbered_through_are_chunks_of_a_rank() -> None:
    rows = laid_out([chunks_interleaved(rank, 4, 8) for rank in range(4)], even)
    through = frame({**row, "stage": row["chunk"] * 4 + row["rank"], "chunk": None} for row in rows)
    found, by_chunk = view.pipeline(through), view.pipeline(frame(rows))
    assert found.steps.drop("critical").equals(by_chunk.steps.drop("critical"))
    assert found.stages["stage"].to_list() == list(range(8))
    assert found.stages["waited_for"].sum() == by_chunk.stages["waited_for"].sum()
