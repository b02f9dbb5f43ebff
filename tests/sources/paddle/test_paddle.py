"""Worker logs of Paddle: their jobs and steps, exactly, of one machine and of several."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import other_tools
import polars as pl
import pytest

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError

MS = 1_000_000
BEGIN = 1_697_793_307_000
"""ms since the epoch."""


def line(kind: str, microbatch: int, start: float, end: float, job: int = 0) -> str:
    return (
        f"I1020 09:15:07.265326 22317 standalone_executor.cc:217] Profiler Info: Job ({job}), "
        f"type = {kind}, micro_batch_id = {microbatch}, job_start_time = {BEGIN + start:.6f}, "
        f"job_end_time = {BEGIN + end:.6f}\n"
    )


def write(log: Path, lines: Iterable[str]) -> Path:
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(lines))
    return log


def two_steps(offset: float) -> list[str]:
    return [
        line("forward", 0, offset, offset + 10),
        line("backward", 0, offset + 20, offset + 40),
        line("optimizer", 0, offset + 40, offset + 45),
        line("forward", 0, offset + 45, offset + 55),
    ]


def test_the_log_is_reproduced_exactly(tmp_path: Path) -> None:
    folder = other_tools.unpack("paddle", tmp_path / "logs")
    expected = json.loads((folder / "expected.json").read_text())
    run = Analyzer(folder)
    assert run.ranks == [0, 1]
    assert run.problems() == []
    # Both stages compute equally long; that rank 0 begins first and ends last makes none late.
    assert run.imbalance().height == 0
    found = run.pipeline()
    assert (
        found.jobs.group_by("rank").len().sort("rank")["len"].to_list()
        == (expected["jobs_per_rank"])
    )
    steps = found.steps
    assert steps["step"][0] == expected["first_step"]
    recorded = [
        (f"step{step}", start, start + duration, duration)
        for step, start, duration in steps.select("step", "start", "duration").iter_rows()
    ]
    # Integer us in the file; today's ns exceed a float's precision.
    assert recorded == [
        (step, *(int(us) * 1000 for us in times)) for step, *times in expected["steps"]
    ]
    for rank, bubbles in expected["expected_bubble"].items():
        mine = found.lanes.filter(pl.col("rank") == int(rank)).sort("step")
        assert mine["bubble"].round(6).to_list() == bubbles
    assert steps["bubble"].round(6).to_list() == expected["expected_bubble"]["0"]
    assert steps.select("schedule", "stages", "microbatches", "ideal").row(0) == ("1F1B", 2, 4, 0.2)
    first = found.jobs.sort("rank", "start").row(0, named=True)
    assert (first["start"], first["duration"]) == (BEGIN * MS, 10 * MS)


def test_real_lines_that_begin_within_a_step(tmp_path: Path) -> None:
    folder = other_tools.unpack("paddle", tmp_path / "data")
    log = tmp_path / "logs" / "workerlog.3"
    log.parent.mkdir()
    log.write_bytes((folder / "real_lines.log").read_bytes())
    spans = Analyzer(log).device_spans().sort("microbatch")
    assert spans["microbatch"].to_list() == [2, 3]
    assert spans["step"].to_list() == [None, None]
    assert spans["start"].to_list() == [1697793307213760986, 1697793307214742920]
    assert spans["duration"].to_list() == [40245118, 4426025]
    assert spans["device"].to_list() == [3, 3]


@pytest.mark.parametrize("machines", [("machine0", "machine1"), ("machine9", "machine10")])
def test_machines_are_numbered_on(tmp_path: Path, machines: tuple[str, str]) -> None:
    for number, machine in enumerate(machines):
        for device in (0, 1):
            write(tmp_path / machine / f"workerlog.{device}", two_steps(5.0 * number + device))
    run = Analyzer(tmp_path)
    spans = run.device_spans().filter(pl.col("name") == "optimizer").sort("rank")
    assert spans["rank"].to_list() == [0, 1, 2, 3]
    assert spans["stage"].to_list() == [0, 1, 2, 3]
    assert spans["device"].to_list() == [0, 1, 0, 1]
    assert spans["node"].to_list() == [machines[0]] * 2 + [machines[1]] * 2
    windows = run.pipeline().steps.select("start", "duration").rows()
    # The second step of the first machine begins while the last rank is still in the first one.
    assert windows == [(BEGIN * MS, 51 * MS), ((BEGIN + 51) * MS, 10 * MS)]


def test_a_job_that_begins_early_counts_where_it_was(tmp_path: Path) -> None:
    for device in (0, 1):
        write(tmp_path / f"workerlog.{device}", two_steps(6.0 * device))
    lanes = Analyzer(tmp_path).pipeline().lanes.sort("step", "rank")
    assert lanes["busy"].to_list() == [(35 + 6) * MS, 35 * MS, 4 * MS, 10 * MS]
    assert lanes["bubble"].round(9).to_list() == [
        round(1 - 41 / 51, 9), round(1 - 35 / 51, 9), 0.6, 0.0
    ]  # fmt: skip


def test_what_the_log_says_in_other_ways(tmp_path: Path) -> None:
    log = write(
        tmp_path / "workerlog.0",
        [
            "Schedule Profiler start at step 7 and end at step 9\n",
            line("default", 0, 0, 1),
            line("lr", 0, 1, 2),
            line("forward1", 0, 2, 4).replace(".000000", ",000000"),
            line("send_forward0", 0, 4, 5),
            line("backward_w1", 0, 5, 6).replace(".000000", ""),
            line("lr", 0, 9, 10),
            "Schedule Profiler start at step 99 and end at step 100\n",
        ],
    )
    spans = Analyzer(log).device_spans().sort("start")
    assert spans["name"].to_list() == [
        "default", "lr", "forward", "send_forward", "backward_w", "lr"
    ]  # fmt: skip
    assert spans["chunk"].to_list() == [None, None, 1, 0, 1, None]
    assert spans["step"].to_list() == [None, 7, 7, 7, 7, 8]
    assert spans["start"].to_list() == [(BEGIN + ms) * MS for ms in (0, 1, 2, 4, 5, 9)]
    kinds = Analyzer(log).pipeline().jobs["kind"].to_list()
    assert kinds == ["other", "optimizer", "forward", "send", "weight", "optimizer"]


def test_lines_that_are_no_jobs_are_reported(tmp_path: Path) -> None:
    log = write(
        tmp_path / "workerlog.0",
        [
            line("forward", 0, 0, 1),
            line("forward", 1, 5, 4),
            line("forward", 2, 5, 6)[:120] + "\n",
            "\xff\x00 nothing of ours\n",
        ],
    )
    run = Analyzer(log)
    assert run.device_spans().height == 1
    (problem,) = run.problems()
    assert str(log) in problem
    assert "in 2 lines" in problem


def test_a_log_without_jobs_says_what_to_turn_on(tmp_path: Path) -> None:
    log = write(tmp_path / "workerlog.0", ["LAUNCH INFO\n"])
    with pytest.raises(HaiprofError, match="contains no job of a schedule: turn the job schedule"):
        Analyzer(log)
    with pytest.raises(HaiprofError, match="read from disk only"):
        Analyzer("memory://logs/workerlog.0")
