"""The ledger of runs on disk, and of deep traces: its causes sum to the run of every rank."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs
import traces
from runs import MS, SECOND, T0, Row, collective, group, span, write_closed, write_process

from haiprof import Analyzer, schema
from haiprof.errors import HaiprofError


def waiting_run(run: Path, steps: int = 20) -> Path:
    """Make two ranks of a loop of 12 ms; rank 1 comes 3 ms late to a collective of each step."""
    runs.write_run(run)
    for rank in range(2):
        late = 3.0 if rank else 0.0
        rows: list[Row] = []
        for step in range(steps):
            at = 12.0 * step + 1000
            rows += [
                span(at, 12.0, "step", "step", step),
                span(at, 4.0 + late, "phase", "forward", step),
                span(at + 4 + late, 8.0 - late, "phase", "backward", step),
            ]
        folder = write_process(run, rank, ended_ns=T0 + 2 * SECOND, world_size=2)
        write_closed(folder, schema.SPANS, rows)
        asked = [
            collective(12.0 * n + 1000 + 6 + late, 5.0 - late, n + 1, step=n) for n in range(steps)
        ]
        waits = [
            collective(12.0 * n + 1000 + 6 + late, 5.0 - late, n + 1, step=n, side="wait")
            for n in range(steps)
        ]
        write_closed(folder, schema.COLLECTIVES, [*asked, *waits])
        write_closed(folder, schema.EVENTS, [group("0", [0, 1])])
    return run


def test_waiting_is_charged_to_the_late_rank_and_the_rest_is_transfer(tmp_path: Path) -> None:
    found = Analyzer(waiting_run(tmp_path / "r")).ledger(rank=0)
    spent = {cause: ns for cause, ns in found.select("cause", "duration").iter_rows()}
    assert spent["waiting"] == 20 * 3 * MS
    assert spent["transfer"] == 20 * 2 * MS
    assert spent["forward"] == 20 * 4 * MS
    assert found.filter(pl.col("cause") == "waiting")["culprit"].to_list() == [1]
    late = Analyzer(tmp_path / "r").ledger(rank=1)
    assert "waiting" not in late["cause"].to_list()


def test_the_causes_of_every_rank_sum_to_the_run(tmp_path: Path) -> None:
    run = waiting_run(tmp_path / "r")
    # A rank that began later, and was started again.
    first = run / "n0#1"
    first.rename(run / "n0#1.7")
    write_closed(
        write_process(
            run, 1, started_ns=T0 + 3 * SECOND, ended_ns=T0 + 4 * SECOND, pid=8, attempt=1
        ),
        schema.SPANS,
        [span(3500, 100, "step", "step", 0)],
    )
    opened = Analyzer(run)
    wall = opened.goodput().summary["wall_ns"].item()
    sums = opened.ledger().group_by("rank").agg(pl.col("duration").sum()).sort("rank")
    assert sums["duration"].to_list() == [wall, wall]
    down = opened.ledger().filter(pl.col("cause") == "down")
    assert down.select("rank", "pid", "duration").rows() == [(1, None, SECOND)]


def test_the_causes_of_a_step_sum_to_it(tmp_path: Path) -> None:
    opened = Analyzer(runs.make_gpu_run(tmp_path / "r", ranks=2))
    for step, duration in opened.steps(rank=1).select("step", "duration").head(5).iter_rows():
        assert opened.ledger(rank=1, step=step)["duration"].sum() == duration
    with pytest.raises(HaiprofError, match="has no step 999: it has steps 0 to 117"):
        opened.ledger(step=999)


def test_the_causes_of_traced_steps_sum_to_them(tmp_path: Path) -> None:
    for rank in range(2):
        traces.write(tmp_path / f"rank{rank}.pt.trace.json", traces.small(rank))
    opened = Analyzer(tmp_path)
    steps = opened.steps()
    sums = opened.ledger().group_by("rank").agg(pl.col("duration").sum()).sort("rank")
    want = steps.group_by("rank").agg(pl.col("duration").sum()).sort("rank")
    assert sums.rows() == want.rows()
    one = steps["step"].drop_nulls()[0]
    assert opened.ledger(step=one)["duration"].sum() == (
        steps.filter(pl.col("step") == one)["duration"].sum()
    )
    with pytest.raises(HaiprofError, match="has no step 999"):
        opened.ledger(step=999)
