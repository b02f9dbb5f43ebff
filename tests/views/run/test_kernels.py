"""GPU activities: their steps and phases, by name and by device phase."""

from __future__ import annotations

import polars as pl
import pytest
import runs
from gpu_frames import WINDOW, intervals, kernels, phases, spans
from hypothesis import given
from hypothesis import strategies as st

from haiprof.views.run import busy as busy_views
from haiprof.views.run import device_steps as device_views
from haiprof.views.run import kernels as kernel_views
from haiprof.views.run import recorded as recorded_views


def attributed(activity: list[runs.Row], device: list[runs.Row]) -> list[tuple[object, object]]:
    frame = kernel_views.described(kernels(activity), phases(device))
    return [(step, phase) for step, phase in frame.select("step", "phase").iter_rows()]


def test_an_activity_belongs_to_the_device_phase_in_which_it_starts() -> None:
    device = [runs.device_span(10, 5, "forward", 3), runs.device_span(17, 5, "backward", 3)]
    times = [9.9, 10, 14.9, 15, 16.9, 17, 22]
    assert attributed([runs.activity(t, 3) for t in times], device) == [
        (None, None),
        (3, "forward"),
        (3, "forward"),
        (3, None),
        (3, None),
        (3, "backward"),
        (None, None),
    ]


def test_between_the_phases_of_two_steps_there_is_no_step() -> None:
    device = [runs.device_span(0, 5, "optimizer", 3), runs.device_span(9, 5, "forward", 4)]
    assert attributed([runs.activity(7, 1)], device) == [(None, None)]


def test_side_streams_belong_by_time_and_other_devices_to_their_own_phases() -> None:
    device = [runs.device_span(0, 5, "forward", 3), runs.device_span(2, 5, "backward", 8, device=1)]
    rows = [runs.activity(3, 1, stream=20), runs.activity(3, 1, device=1), runs.activity(1, 1)]
    rows += [runs.activity(3, 1, device=2), runs.activity(3, 1, "Stream", "sync", device=None)]
    assert attributed(rows, device) == [
        (3, "forward"),
        (8, "backward"),
        (3, "forward"),
        (None, None),
        (None, None),
    ]


def test_without_device_phases_or_activities_nothing_is_attributed() -> None:
    assert attributed([runs.activity(3, 1)], []) == [(None, None)]
    empty = kernel_views.described(kernels([]), phases(runs.device_loop(2)))
    assert empty.columns[-4:] == list(kernel_views.DESCRIBED_SCHEMA)
    assert empty.height == 0


def test_no_kernel_is_given_to_phases_whose_times_are_not_sure() -> None:
    # As on a GPU that others use as well: a step of 10 ms is known to within 2 ms, the next is not.
    wide = 4 * runs.MS
    device = [
        runs.device_span(0, 5, "forward", 3, uncertainty=runs.MS),
        runs.device_span(5, 5, "backward", 3, uncertainty=runs.MS),
        runs.device_span(10, 5, "forward", 4, uncertainty=wide),
        runs.device_span(15, 5, "backward", 4, uncertainty=500),
        runs.device_span(20, 5, "forward", 5),
    ]
    assert attributed([runs.activity(t, 1) for t in (1, 6, 11, 16, 21)], device) == [
        (3, "forward"),
        (3, "backward"),
        (None, None),
        (None, None),
        (5, "forward"),
    ]


def test_phases_whose_times_are_not_sure_have_their_lengths_and_no_busy_time() -> None:
    rows = runs.device_loop(6)
    for row in rows:
        row["uncertainty"] = 500 if row["step"] == 2 else 5 * runs.MS
    device = phases(rows)
    on_host = recorded_views.host_steps(spans([]))
    windows = recorded_views.windows(intervals(WINDOW), device_views.device_steps(device), on_host)
    found = kernel_views.device_phases(kernels(runs.kernel_loop(2, 3)), device, windows)
    assert found.height == 18
    assert found["duration"].null_count() == 0
    assert set(found.drop_nulls("busy")["step"]) == {2}


def test_spans_of_a_run_without_uncertainties_are_sure() -> None:
    rows = [{**row, "uncertainty": None} for row in runs.device_loop(2)]
    assert phases(rows)["sure"].all()


def test_user_ranges_on_a_device_are_no_phases() -> None:
    device = [runs.device_span(0, 5, "F", 3, category="user")]
    assert attributed([runs.activity(3, 1)], device) == [(None, None)]


def test_kernels_of_one_graph_launch_are_each_where_they_start() -> None:
    device = [runs.device_span(0, 6, "forward", 3), runs.device_span(6, 4, "backward", 3)]
    rows = [runs.activity(i, 0.5, correlation=77, graph=1, graph_node=i) for i in range(10)]
    assert attributed(rows, device) == [(3, "forward")] * 6 + [(3, "backward")] * 4
    found = kernel_views.totals(kernels(rows), phases(device)).row(0, named=True)
    assert (found["calls"], found["phases"]) == (10, ["forward", "backward"])


a_phase = st.tuples(
    st.integers(0, 30), st.integers(0, 8), st.sampled_from([0, 1, 2, None]), st.sampled_from("fbo")
)


@given(st.lists(a_phase, max_size=8), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40))))
def test_attribution_is_that_of_a_search_by_hand(
    drawn: list[tuple[int, int, int | None, str]], starts: list[tuple[int, int]]
) -> None:
    # One after the other, as a stream runs them; they may touch and be empty.
    device, now = [], 0
    for gap, length, step, name in drawn:
        now += gap % 4
        device.append(runs.device_span(now, length, name, step, device=gap % 2))
        now += length
    expected = []
    for on, instant in starts:
        mine = [p for p in device if p["device"] == on and p["duration"] > 0]
        time = runs.T0 + instant * runs.MS
        inside = [p for p in mine if p["start"] <= time < p["start"] + p["duration"]]
        before = [p for p in mine if p["start"] + p["duration"] <= time]
        after = [p for p in mine if p["start"] > time]
        if inside:
            expected.append((inside[0]["step"], inside[0]["name"]))
        elif before and after and before[-1]["step"] == after[0]["step"]:
            expected.append((before[-1]["step"], None))
        else:
            expected.append((None, None))
    rows = [runs.activity(instant, 1, device=on) for on, instant in starts]
    assert attributed(rows, device) == expected


def test_device_phases_are_null_where_kernels_were_not_recorded() -> None:
    device = phases(runs.device_loop(6))
    on_host = recorded_views.host_steps(spans([]))
    windows = recorded_views.windows(intervals(WINDOW), device_views.device_steps(device), on_host)
    found = kernel_views.device_phases(kernels(runs.kernel_loop(2, 3)), device, windows)
    assert found.height == 18
    known = found.filter(pl.col("busy").is_not_null())
    assert known.select("step", "name", "kernels").rows() == [
        (step, name, count)
        for step in (2, 3)
        for name, count in (("forward", 4), ("backward", 2), ("optimizer", 1))
    ]
    assert (known["busy"] + known["idle"] == known["duration"]).all()
    assert found.select(pl.col("busy", "idle", "kernels").null_count()).row(0) == (12, 12, 12)


def test_accumulation_adds_the_spans_of_a_phase() -> None:
    device = phases(
        [runs.device_span(t, 2, name, 1) for t, name in ((0, "forward"), (2, "b"), (4, "forward"))]
    )
    found = kernel_views.device_phases(
        kernels([]), device, device_views.device_steps(device).clear()
    )
    assert found.select("name", "duration").rows() == [
        ("forward", 4 * runs.MS),
        ("b", 2 * runs.MS),
    ]


def test_no_rows_give_empty_frames_with_their_columns() -> None:
    nothing = phases([])
    assert device_views.device_steps(nothing).columns == list(device_views.STEPS_SCHEMA)
    assert intervals([]).columns == list(recorded_views.RECORDED_SCHEMA)
    assert kernel_views.totals(kernels([]), nothing).columns == list(kernel_views.TOTALS_SCHEMA)
    table = kernel_views.device_phases(kernels([]), nothing, device_views.device_steps(nothing))
    assert table.schema == pl.Schema(kernel_views.PHASES_SCHEMA)
    assert busy_views.last_end(kernels([])) is None


def test_totals_are_by_readable_name_with_its_phases() -> None:
    found = kernel_views.totals(kernels(runs.kernel_loop(2, 3)), phases(runs.device_loop(6)))
    first = found.row(0, named=True)
    assert first["demangled"] == "void at::native::backward_kernel<float>(float*, int)"
    assert (first["calls"], first["total"], first["phases"]) == (2, 8 * runs.MS, ["backward"])
    assert (first["min"], first["max"], first["mean"]) == (4 * runs.MS, 4 * runs.MS, 4 * runs.MS)
    assert found["share"].sum() == pytest.approx(1)


def test_totals_without_a_name_are_kept() -> None:
    rows = [runs.activity(0, 2), {**runs.activity(0, 1), "name": None}]
    found = kernel_views.totals(kernels(rows), phases([]))
    assert found["calls"].sum() == 2
