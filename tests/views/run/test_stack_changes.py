"""What a step spends in each function, before and after."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs

from haiprof.analyzer import Analyzer
from haiprof.views.run.stack_changes import changes


def made(folder: Path, loads: int, step_ms: float = 100.0) -> Analyzer:
    return Analyzer(runs.make_sampled_run(folder, loads, step_ms))


def test_what_became_slower_comes_first_with_its_error(tmp_path: Path) -> None:
    before, after = made(tmp_path / "a", 20, 100.0), made(tmp_path / "b", 60, 200.0)
    found = before.stack_changes(after, 0)
    assert found.select("function", "before", "after", "verdict").rows() == [
        ("load", 20e6, 120e6, "slower"),
        ("Model.forward", 80e6, 80e6, "no difference shown"),
    ]
    # sqrt(p (1 - p) / n) of a step: 4.0 of 100 ms and 4.9 of 200 ms
    assert found["error"][0] == pytest.approx(10.6e6, rel=0.05)
    assert after.stack_changes(before)["verdict"].to_list()[-1] == "faster"


def test_chance_is_no_difference(tmp_path: Path) -> None:
    found = made(tmp_path / "a", 20).stack_changes(made(tmp_path / "b", 28))
    assert set(found["verdict"]) == {"no difference shown"}


def test_what_is_only_in_one_run_is_there(tmp_path: Path) -> None:
    found = made(tmp_path / "a", 0).stack_changes(made(tmp_path / "b", 50))
    assert found.filter(function="load").select("before", "after", "verdict").row(0) == (
        0.0,
        50e6,
        "slower",
    )
    by_line = made(tmp_path / "c", 0).stack_changes(made(tmp_path / "d", 50), by="line")
    assert by_line.filter(function="load")["line"].to_list() == [88]


def test_without_stacks_or_steps_there_is_nothing(tmp_path: Path) -> None:
    run = Analyzer(runs.make_run(tmp_path / "r"))
    assert run.stack_changes(run).height == 0
    assert changes(pl.DataFrame(), pl.DataFrame()).height == 0
