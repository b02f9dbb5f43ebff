"""The count of named delays: only those that the ranks' notes show, named by who was late."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from faults.late_plants import Score, score
from runs import MS, T0, collective, loop, write_closed, write_process, write_run

from haiprof import schema

RANKS, OPERATIONS, STEP_MS = 2, 6, 100
#: Rank 1 comes so much later, ms, to one operation in two from the second on.
LATE_MS = 8.0
FIRST, EACH = 1, 2


def scored(folder: Path, noted_by: dict[int, float]) -> Score:
    """Score a run in which rank 1 is late, by notes of how much later each rank came, ms."""
    run = write_run(folder)
    came = np.zeros((RANKS, OPERATIONS), np.int64)
    for rank in range(RANKS):
        process = write_process(run, rank, world_size=RANKS)
        rows = []
        for n in range(OPERATIONS):
            delayed = n >= FIRST and (n - FIRST) % EACH == 0
            by = LATE_MS if delayed and rank == 1 else 0.0
            noted = noted_by.get(rank, 0.0) if delayed else 0.0
            came[rank, n] = T0 + round((STEP_MS * n + noted) * MS)
            rows += [
                collective(STEP_MS * n + by, 10.0 - by, n + 1, side=side, group_size=RANKS)
                for side in ("work", "wait")
            ]
        write_closed(process, schema.COLLECTIVES, rows)
        write_closed(process, schema.SPANS, loop(OPERATIONS))
    return score(run, came, FIRST, EACH)


def test_delays_of_who_is_named_are_right(tmp_path: Path) -> None:
    assert scored(tmp_path / "run", {1: LATE_MS}) == Score(shown=3, named=3)


def test_delays_of_another_rank_are_not(tmp_path: Path) -> None:
    assert scored(tmp_path / "run", {0: LATE_MS}) == Score(shown=3, named=0)


def test_what_the_notes_do_not_show_is_not_counted(tmp_path: Path) -> None:
    assert scored(tmp_path / "run", {1: 1.0}) == Score(shown=0, named=0)
