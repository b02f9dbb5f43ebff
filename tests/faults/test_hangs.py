"""Planted hangs: that each is one, and that a few of them are found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faults import hangs
from faults.hang_kinds import KINDS, drawn
from faults.hangs import Row

from haiprof.findings.recorded import hang_rules

#: One of each way to decide: by the graph, by a state, by stacks, and of a process of its own.
FEW = (
    "lock", "stopped", "other_size", "crossed_groups", "never_sends", "loader_worker",
    "thread_never_ends", "alone_pipe", "alone_thread_never_ends",
)  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_seed_gives_a_program_of_as_many_ranks_as_its_kind_has(name: str) -> None:
    for seed in range(5):
        case = drawn(name, seed)
        assert case == drawn(name, seed)
        compile(case.program, name, "exec")
        assert case.rank < case.ranks <= case.kind.most
        assert (case.ranks == 1) == case.kind.alone
        assert set(case.kind.kinds) <= hang_rules.KINDS
    assert len({drawn(name, seed).program for seed in range(5)}) > 1


def test_only_the_true_kind_of_the_true_ranks_is_right() -> None:
    case = drawn("lock", 0)
    (rank,) = case.culprits or ()
    true = {"kind": "rank_never_arrived", "ranks": [rank]}
    row = Row(case, true, None, 3.0)
    assert row.right(true)
    assert not row.right(None)
    assert not row.right({**true, "kind": "stopped"})
    assert not row.right({**true, "ranks": [rank + 1]})
    circle = drawn("crossed_groups", 0)
    assert Row(circle, None, None).right({"kind": "crossed_collectives", "ranks": [0, 2]})
    text = hangs.table([row, Row(drawn("lock", 1), {**true, "kind": "stopped"}, true)])
    assert "| `lock` | 2 | 1 | " in text
    assert "| nothing, rank_never_arrived, stopped |" in text
    assert "Said 3 s (at most 3 s) after it was one." in text


@pytest.mark.jobs
def test_a_few_are_found_by_the_recorder_and_by_the_command(shm: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        rows = list(pool.map(lambda name: hangs.run(drawn(name, 0), tmp_path), FEW))
    wrong = [row for row in rows if not (row.right(row.said) and row.right(row.asked))]
    assert not wrong
