"""Gains of repairs: what is planted, what is measured, and what is predicted of a run."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest
from faults import repairs
from faults.record import PROGRAMS
from faults.repairs import FIRST, STEPS, Seen, drawn, seen, shown
from runs import span, write_closed, write_process, write_run

from haiprof import schema

MORE_MS, USUAL_MS = 60, 40


def recorded_run(folder: Path, repaired: int) -> Path:
    """Make a run of two ranks, of which rank 1 is slow until a step."""
    run = write_run(folder)
    for rank in range(2):
        rows, at = [], 0
        for step in range(FIRST + 2 * STEPS):
            longest = USUAL_MS + (MORE_MS if FIRST <= step < repaired else 0)
            own = longest if rank == 1 else USUAL_MS
            rows += [
                span(at, longest + 12, "step", "step", step),
                span(at, own, "phase", "forward", step),
                span(at + own, longest - own + 10, "phase", "backward", step),
                span(at + longest + 10, 2, "phase", "optimizer", step),
            ]
            at += longest + 12
        process = write_process(run, rank, world_size=2)
        write_closed(process, schema.SPANS, rows)
    return run


def test_a_step_without_the_delays_takes_what_it_takes_once_they_are_gone(tmp_path: Path) -> None:
    found = seen(recorded_run(tmp_path / "run", FIRST + STEPS), 1, "a job")
    assert found.first
    assert (found.slow, found.repaired) == (112e6, 52e6)
    assert found.predicted == pytest.approx(52e6, rel=1e-3)
    assert found.error < 0.001


def test_of_a_rank_that_stays_slow_no_prediction_is_right(tmp_path: Path) -> None:
    found = seen(recorded_run(tmp_path / "run", FIRST + 2 * STEPS), 1, "a job")
    assert found.predicted < found.slow == found.repaired
    assert found.error == math.inf


def test_the_table_has_each_job_and_what_they_come_to() -> None:
    rows = [Seen("one", 100e6, 50e6, 52e6, True), Seen("two", 100e6, 50e6, 80e6, False)]
    lines = shown(rows).splitlines()
    assert lines[2] == "| one | 100.0 | 50.0 | 52.0 | 4.0% | yes |"
    assert lines[3] == "| two | 100.0 | 50.0 | 80.0 | 60.0% | no |"
    assert lines[-1] == "1 of 2 within 10%, median 32.0% (target 5%), 1 named first"


def test_what_is_planted_ends_and_is_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    known = importlib.import_module("parts.tasks").KINDS
    cases = [drawn(seed) for seed in range(20)]
    assert cases == [drawn(seed) for seed in range(20)]
    assert {case.style for case in cases} == {"parallel", "staged"}
    for case in cases:
        usual, slow = case.job["tasks"]
        assert {usual["do"], slow["do"]} <= set(known)
        assert (slow["since"], slow["until"]) == (repairs.FIRST, repairs.FIRST + repairs.STEPS)
        assert slow["ranks"] == list(case.ranks)
        assert case.job["steps"] >= repairs.FIRST + 2 * repairs.STEPS
