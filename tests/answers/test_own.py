"""The views of a deep trace on runs that are none: what haiprof itself recorded, much or little."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.answers import one_trace
from haiprof.export import csv
from haiprof.views.trace import communication


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
        answer = view(recorded)
        parts = [answer] if isinstance(answer, pl.DataFrame) else list(answer)
        # Beside the frames of one there may be a text: why there is nothing in them.
        frames = [part for part in parts if part is not None and not isinstance(part, str)]
        assert frames
        assert all(isinstance(frame, pl.DataFrame) for frame in frames)
    assert recorded.problems() == []


def test_kernels_alone_tell_of_communication(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    rows = [runs.activity(0, 4), runs.activity(3, 2, "ncclDevKernel_AllReduce", stream=9)]
    runs.write_closed(runs.write_process(run), schema.KERNELS, rows)
    analyzer = Analyzer(run).overlap().select("communication", "computation", "overlap")
    assert analyzer.rows() == [(2 * runs.MS, 4 * runs.MS, runs.MS)]


def test_few_columns_of_kernels_tell_all_of_communication(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    folder = runs.write_process(run, world_size=8)
    steps = [runs.span(10 * n, 9, "step", "step", step=n) for n in range(5)]
    rings = [runs.activity(n, 0.5, runs.ALL_REDUCE, stream=9) for n in range(0, 60, 3)]
    copies = [runs.activity(n, 0.2, "Memcpy HtoD", "memcpy") for n in range(40)]
    runs.write_closed(folder, schema.SPANS, steps)
    runs.write_closed(folder, schema.EVENTS, [runs.recording_begins(0)])
    runs.write_closed(folder, schema.KERNELS, [*copies, *rings])
    (process,) = Analyzer(run).run.processes
    every = one_trace.communications_of(process, None)
    few = one_trace.communications_of(process, None, communication.COLUMNS)
    assert few.equals(every)
    assert few.height == 20
    # Each is of the step that it began in; after the last there is none.
    assert few["step"].to_list() == [n // 10 if n < 50 else None for n in range(0, 60, 3)]


@pytest.fixture
def windowed(tmp_path: Path) -> Analyzer:
    """Ten steps of 10 ms, 8 ms of each busy; kernels were recorded in the first and last two."""
    run = runs.write_run(tmp_path / "run")
    folder = runs.write_process(run, ended_ns=runs.T0 + 100 * runs.MS)
    steps = [runs.span(10 * n, 10, "step", "step", step=n) for n in range(10)]
    events = [
        runs.recording_begins(0), runs.recording_ends(20, 0, 1),
        runs.recording_begins(80), runs.recording_ends(100, 8, 9),
    ]  # fmt: skip
    runs.write_closed(folder, schema.SPANS, steps)
    runs.write_closed(folder, schema.EVENTS, events)
    runs.write_closed(folder, schema.KERNELS, [runs.activity(10 * n, 8) for n in (0, 1, 8, 9)])
    return Analyzer(run)


def test_what_was_not_recorded_is_not_idle(windowed: Analyzer) -> None:
    temporal = windowed.temporal()
    assert temporal.select("span", "compute", "idle").rows() == [
        (36 * runs.MS, 32 * runs.MS, 4 * runs.MS)
    ]
    gaps = windowed.idle().filter(pl.col("count") > 0)
    assert gaps.select("count", "idle", "max").rows() == [(2, 4 * runs.MS, 2 * runs.MS)]


def test_a_device_is_as_busy_as_it_was_while_it_was_recorded(windowed: Analyzer) -> None:
    overview = windowed.overview()
    assert overview.steps["step"].to_list() == [0, 1, 8, 9]
    assert overview.devices["utilization"].to_list() == [pytest.approx(0.8)]
    at = ((overview.timeline["start"] - runs.T0) // runs.MS).to_list()
    busy = dict(zip(at, overview.timeline["utilization"].to_list(), strict=True))
    assert [busy[ms] for ms in (0, 7, 8, 19, 80, 97, 98)] == [1, 1, 0, 0, 1, 1, 0]
    assert {busy[ms] for ms in range(20, 80)} == {None}
    assert "utilization" not in windowed.recommendations()["kind"].to_list()


def test_views_of_few_columns_and_of_all_say_the_same(windowed: Analyzer) -> None:
    views = (Analyzer.temporal, lambda run: run.kernels(by="launch"), lambda run: run.overview()[1])
    narrow = [view(Analyzer(windowed.run.folder)) for view in views]
    windowed.launches()
    assert all(a.equals(view(windowed)) for a, view in zip(narrow, views, strict=True))
    again = Analyzer(windowed.run.folder)
    assert all(a.equals(view(again)) for a, view in zip(narrow, views, strict=True))
    assert again.launches().equals(windowed.launches())
