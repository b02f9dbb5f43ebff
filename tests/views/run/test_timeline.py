"""One step in lanes: every activity in exactly one shape, and few shapes however many there are."""

from __future__ import annotations

import polars as pl
import runs
from hypothesis import given
from hypothesis import strategies as st

from haiprof import schema
from haiprof.sources.tables import polars_type
from haiprof.views.run import device_steps as device_views
from haiprof.views.run import kernels as kernel_views
from haiprof.views.run.timeline import LANES_SCHEMA, OTHERS, Timeline, typical_step


def timeline(
    activity: list[runs.Row], device: list[runs.Row], shapes: int = 100
) -> Timeline | None:
    kinds = {
        c.name: polars_type(c)
        for c in schema.KERNELS.columns
        if c.name in (*kernel_views.COLUMNS, "stream")
    }
    rows = pl.DataFrame([{k: row.get(k) for k in kinds} for row in activity], schema=kinds)
    kinds = {
        c.name: polars_type(c)
        for c in schema.DEVICE_SPANS.columns
        if c.name in device_views.SPAN_COLUMNS
    }
    spans = pl.DataFrame([{k: row[k] for k in kinds} for row in device], schema=kinds)
    segments = device_views.segments(spans)
    return typical_step(rows, segments, device_views.device_steps(segments), shapes)


def test_the_step_that_is_shown_is_the_median_one() -> None:
    device = [runs.device_span(0, 5, "forward", 0), runs.device_span(5, 9, "forward", 1)]
    device += [runs.device_span(14, 6, "forward", 2)]
    result = timeline([], device)
    assert result is not None
    assert (result.step, result.duration) == (2, 6 * runs.MS)
    assert result.shapes.select("lane", "name", "count").rows() == [("phases", "forward", 1)]


def test_a_usual_step_has_a_lane_of_phases_and_one_of_each_stream() -> None:
    result = timeline(runs.kernel_loop(0, 2), runs.device_loop(3))
    assert result is not None
    assert result.shapes.schema == pl.Schema(LANES_SCHEMA)
    found = result.shapes.group_by("lane", "what").agg(pl.col("count").sum()).sort("lane", "what")
    assert found.rows() == [
        ("phases", "phase", 3),
        ("stream 20", "communication", 1),
        ("stream 7", "kernel", 6),
    ]
    assert "at::native::adam_kernel<float>" in result.shapes["name"].to_list()


def test_streams_with_little_activity_share_a_lane() -> None:
    rows = [runs.activity(0, 1 + 1 / (n + 1), stream=n) for n in range(9)]
    result = timeline(rows, [runs.device_span(0, 5, "forward", 0)])
    assert result is not None
    lanes = result.shapes.filter(pl.col("what") == "kernel")["lane"].unique().to_list()
    assert len(lanes) == 6
    assert OTHERS in lanes


def test_without_recorded_steps_there_is_no_timeline() -> None:
    assert timeline(runs.kernel_loop(0, 1), []) is None


def test_a_step_without_activities_has_its_phases_only() -> None:
    result = timeline([], runs.device_loop(1))
    assert result is not None
    assert result.shapes["what"].unique().to_list() == ["phase"]


def test_a_hundred_thousand_kernels_are_a_few_hundred_shapes() -> None:
    rows = [runs.activity(i * 1e-4, 5e-5, f"k{i % 7}") for i in range(100_000)]
    result = timeline(rows, [runs.device_span(0, 10, "forward", 0)], shapes=300)
    assert result is not None
    assert result.shapes.height <= 302
    assert result.shapes.filter(pl.col("what") == "kernel")["count"].sum() == 100_000


drawn = st.tuples(
    st.integers(0, 90), st.integers(1, 9), st.integers(0, 1), st.sampled_from(["kernel", "memcpy"])
)


@given(st.lists(drawn, max_size=30), st.integers(1, 60))
def test_every_activity_lies_in_one_shape_and_shapes_are_bounded(
    rows: list[tuple[int, int, int, str]], shapes: int
) -> None:
    activity = [runs.activity(t, d, kind=kind, stream=stream) for t, d, stream, kind in rows]
    result = timeline(activity, [runs.device_span(0, 100, "forward", 0)], shapes)
    assert result is not None
    found = result.shapes.filter(pl.col("what") != "phase")
    assert found["count"].sum() == len(rows)
    kinds = len({(stream, kind) for _, _, stream, kind in rows})
    assert found.height <= shapes + 2 * kinds
    for t, d, stream, kind in rows:
        start, end = runs.T0 + t * runs.MS, runs.T0 + min(t + d, 100) * runs.MS
        holding = found.filter(
            pl.col("lane") == f"stream {stream}",
            pl.col("what") == kind,
            pl.col("start") <= start,
            pl.col("end") >= end,
        )
        assert holding.height == 1
