"""The count of false names: what the notes of the ranks contradict is one, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from faults.late_names import judge
from runs import MS, T0, collective, loop, write_closed, write_process, write_run

from haiprof import schema

RANKS, OPERATIONS = 3, 40
STEP_MS = 30


def recorded_run(folder: Path, late: dict[int, float]) -> tuple[Path, npt.NDArray[np.int64]]:
    """Make a run, and when its ranks came to each operation."""
    run = write_run(folder)
    came = np.zeros((RANKS, OPERATIONS), np.int64)
    last = max(late.values(), default=0)
    for rank in range(RANKS):
        process = write_process(run, rank, world_size=RANKS)
        rows = []
        for n in range(OPERATIONS):
            at = STEP_MS * n + late.get(rank, 0.0)
            came[rank, n] = T0 + round(at * MS) - 1_000
            took = last + 1 - late.get(rank, 0.0)
            for side in ("work", "wait"):
                rows.append(collective(at, took, n + 1, side=side, group_size=RANKS))
        write_closed(process, schema.COLLECTIVES, rows)
        write_closed(process, schema.SPANS, loop(OPERATIONS))
    return run, came


def test_what_the_notes_confirm_is_true(tmp_path: Path) -> None:
    seen = judge(*recorded_run(tmp_path / "run", {1: 8.0}), busy=False)
    assert (seen.operations, seen.late, seen.unclear) == (OPERATIONS, OPERATIONS, 0)
    assert seen.named >= 1
    assert seen.false == []


def test_nobody_is_named_where_all_come_together(tmp_path: Path) -> None:
    seen = judge(*recorded_run(tmp_path / "run", {}), busy=False)
    assert (seen.late, seen.named, seen.false) == (0, 0, [])


@pytest.mark.parametrize(
    ("later", "why"),
    [(3.0, "was asked for before it was"), (-8.0, "cannot be confirmed")],
    ids=["it came later", "it came with the others"],
)
def test_what_the_notes_contradict_is_false(tmp_path: Path, later: float, why: str) -> None:
    run, came = recorded_run(tmp_path / "run", {1: 8.0})
    came[1] += round(later * MS)
    seen = judge(run, came, busy=False)
    assert any(why in line for line in seen.false), seen


def test_an_operation_that_was_not_recorded_is_no_healthy_run(tmp_path: Path) -> None:
    run, came = recorded_run(tmp_path / "run", {1: 8.0})
    assert judge(run, came[:, 1:], busy=False).false != []
