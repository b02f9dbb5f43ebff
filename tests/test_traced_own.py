"""The views of a deep trace on runs that are none: what haiprof itself recorded, much or little."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.export import csv


@pytest.fixture(params=["nothing", "kernels"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Analyzer:
    """A run of two ranks that recorded nothing, or steps and kernels but no operators."""
    run = runs.write_run(tmp_path / "run")
    for rank in range(2):
        folder = runs.write_process(run, rank)
        if request.param == "kernels":
            steps = [runs.span(10 * n, 9, "step", "step", step=n) for n in range(5)]
            gemms = [runs.activity(n, 0.5) for n in range(40)]
            rings = [runs.activity(n + 0.3, 0.5, "ncclDevKernel_X", stream=9) for n in range(40)]
            runs.write_closed(folder, schema.SPANS, steps)
            runs.write_closed(folder, schema.KERNELS, gemms + rings)
    return Analyzer(run)


def test_every_view_is_made_without_operators(recorded: Analyzer) -> None:
    for view in csv.VIEWS.values():
        made = view(recorded)
        frames = [made] if isinstance(made, pl.DataFrame) else list(made)
        assert all(isinstance(frame, pl.DataFrame) for frame in frames)
    assert recorded.problems() == []


def test_kernels_alone_tell_of_communication(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    rows = [runs.activity(0, 4), runs.activity(3, 2, "ncclDevKernel_AllReduce", stream=9)]
    runs.write_closed(runs.write_process(run), schema.KERNELS, rows)
    made = Analyzer(run).overlap().select("communication", "computation", "overlap")
    assert made.rows() == [(2 * runs.MS, 4 * runs.MS, runs.MS)]
