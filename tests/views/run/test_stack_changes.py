"""What a step spends in each function, before and after."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs
from runs import FRAMES, Row, span, stack

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.views.run.stack_changes import changes


def make(folder: Path, name: str, loads: int, step_ms: float = 100.0) -> Analyzer:
    """Make a run of 100 steps with a sample each; ``loads`` of these are in a loader."""
    run = runs.write_run(folder / name)
    process = runs.write_process(run)
    steps = [span(step_ms * n, step_ms, "step", "step", n) for n in range(100)]
    steps += [span(step_ms * n, step_ms, "phase", "forward", n) for n in range(100)]
    runs.write_closed(process, schema.SPANS, steps)
    runs.write_closed(process, schema.FRAMES, FRAMES)
    stacks: list[Row] = [stack(step_ms * n + 1, 1 if n < loads else 2) for n in range(100)]
    runs.write_closed(process, schema.STACKS, stacks)
    return Analyzer(run)


def test_what_became_slower_comes_first_with_its_error(tmp_path: Path) -> None:
    before, after = make(tmp_path, "a", 20, 100.0), make(tmp_path, "b", 60, 200.0)
    found = before.stack_changes(after, 0)
    assert found.select("function", "before", "after", "verdict").rows() == [
        ("load", 20e6, 120e6, "slower"),
        ("Model.forward", 80e6, 80e6, "no difference shown"),
    ]
    # sqrt(p (1 - p) / n) of a step: 4.0 of 100 ms and 4.9 of 200 ms
    assert found["error"][0] == pytest.approx(10.6e6, rel=0.05)
    assert after.stack_changes(before)["verdict"].to_list()[-1] == "faster"


def test_chance_is_no_difference(tmp_path: Path) -> None:
    found = make(tmp_path, "a", 20).stack_changes(make(tmp_path, "b", 28))
    assert set(found["verdict"]) == {"no difference shown"}


def test_what_is_only_in_one_run_is_there(tmp_path: Path) -> None:
    found = make(tmp_path, "a", 0).stack_changes(make(tmp_path, "b", 50))
    assert found.filter(function="load").select("before", "after", "verdict").row(0) == (
        0.0,
        50e6,
        "slower",
    )
    by_line = make(tmp_path, "c", 0).stack_changes(make(tmp_path, "d", 50), by="line")
    assert by_line.filter(function="load")["line"].to_list() == [88]


def test_without_stacks_or_steps_there_is_nothing(tmp_path: Path) -> None:
    run = Analyzer(runs.make_run(tmp_path / "r"))
    assert run.stack_changes(run).height == 0
    assert changes(pl.DataFrame(), pl.DataFrame()).height == 0
