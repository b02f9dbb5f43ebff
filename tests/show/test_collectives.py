"""Collectives in the report: for whom the others waited, and what each group did."""

from __future__ import annotations

from pathlib import Path

import runs

from haiprof.analyzer import Analyzer


def test_the_late_rank_and_the_groups_are_tables(tmp_path: Path) -> None:
    shown = Analyzer(runs.make_gpu_run(tmp_path / "r", ranks=2)).show_overview()
    grids = {grid.title: grid for grid in shown.grids}
    (late,) = grids["Ranks that others waited for"].rows
    assert tuple(late[:9]) == (
        *("1", "0", "all_reduce", "10", "30 ms", "100 %", "3 ms", "3 ms"),
        "backward",
    )
    (group,) = grids["Collectives by group"].rows
    assert tuple(group) == (
        *("0", "other", "all_reduce", "2", "10", "3.91 KiB", "30 ms", "10 ms", "1 ms"),
        "4 MB/s",
    )


def test_a_run_without_any_has_none(tmp_path: Path) -> None:
    shown = Analyzer(runs.make_run(tmp_path / "r", ranks=2)).show_overview()
    assert not [grid.title for grid in shown.grids if "ollectives" in grid.title]
