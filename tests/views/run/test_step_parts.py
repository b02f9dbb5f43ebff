"""The parts of steps as arrays: those of the frames, and what ranks are compared by."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from haiprof.sources.arrays import NONE, Arrays, of_frame
from haiprof.views.run import step_parts as views
from haiprof.views.run import steps as frame_views

SPANS = {
    "start": pl.Int64,
    "duration": pl.Int64,
    "category": pl.Categorical,
    "name": pl.Categorical,
    "thread": pl.UInt32,
    "step": pl.UInt32,
}
Span = tuple[int, int, str, str, int, int | None]
MS = 1_000_000


def spans(rows: list[Span]) -> pl.DataFrame:
    return pl.DataFrame(rows, SPANS, orient="row")


def step(number: int | None, start: int, duration: int = 10 * MS) -> Span:
    return (start, duration, "step", "step", 1, number)


def phase(name: str, number: int | None, start: int, duration: int) -> Span:
    return (start, duration, "phase", name, 1, number)


inner = st.tuples(
    st.integers(-5, 45),
    st.integers(-2, 12),
    st.sampled_from(["phase", "user", "gc"]),
    st.sampled_from(["forward", "backward", "gradient_sync", "other", "mine"]),
    st.integers(1, 2),
    st.none() | st.integers(0, 4),
)


@given(
    st.lists(st.tuples(st.integers(1, 12), st.none() | st.integers(0, 4)), max_size=5),
    st.lists(inner, max_size=25),
)
def test_arrays_have_the_steps_and_parts_of_frames(
    lengths: list[tuple[int, int | None]], rows: list[Span]
) -> None:
    at, whole = 0, list(rows)
    for length, number in lengths:
        whole.append((at, length, "step", "step", 1, number))
        at += length
    frame = spans(whole)
    steps = frame_views.steps(frame)
    found = views.steps(of_frame(frame))
    assert found.start.tolist() == steps["start"].to_list()
    assert found.duration.tolist() == steps["duration"].to_list()
    assert found.number.tolist() == steps["step"].cast(pl.Int64).fill_null(NONE).to_list()
    expected = frame_views.parts(frame, steps).group_by("name").agg(pl.col("duration").sum())
    assert views.sums(views.parts(of_frame(frame), found)) == dict(expected.iter_rows())


def table(rows: list[Span], device: list[Span] | None = None, most: int = 100) -> views.PartTable:
    of_device = of_frame(spans(device or []).with_columns(pl.lit(0, pl.Int64).alias("device")))
    return views.part_table(of_frame(spans(rows)), of_device, most)


def test_parts_of_numbered_steps_with_their_last_spans() -> None:
    found = table([
        step(None, 0), phase("forward", None, 1 * MS, MS),
        step(4, 10 * MS), phase("forward", 4, 10 * MS, 2 * MS),
        phase("forward", 4, 14 * MS, 3 * MS),
        step(5, 20 * MS), phase("backward", 5, 20 * MS, 6 * MS),
    ])  # fmt: skip
    assert found.steps.tolist() == [4, 5]
    assert found.names == ["backward", "forward", "other"]
    assert (found.duration // MS).tolist() == [[0, 5, 5], [6, 0, 4]]
    assert found.start[:, 1].tolist() == [14 * MS, views.NEVER]
    assert found.end[:, 1].tolist() == [17 * MS, views.NEVER]
    assert set(found.start[:, 2].tolist()) == {views.NEVER}


def test_backward_ends_where_the_waiting_for_others_begins() -> None:
    found = table([
        step(0, 0), phase("backward", 0, 1 * MS, 6 * MS), phase("gradient_sync", 0, 3 * MS, 2 * MS),
        phase("backward", 0, 8 * MS, MS),
    ])  # fmt: skip
    backward = found.names.index("backward")
    assert found.start[0, backward] == 1 * MS
    assert found.end[0, backward] == 3 * MS
    assert found.duration[0, backward] == 5 * MS


def test_of_a_count_that_restarted_the_later_step_counts() -> None:
    found = table([step(0, 0, 4 * MS), step(1, 4 * MS), step(0, 20 * MS, 7 * MS)])
    assert found.steps.tolist() == [0, 1]
    assert (found.duration[:, 0] // MS).tolist() == [7, 10]


def test_a_device_has_its_own_phases_and_what_the_host_waited_for() -> None:
    host = [
        step(0, 0), phase("dataloader", 0, 0, 4 * MS),
        step(1, 10 * MS), phase("dataloader", 1, 10 * MS, 4 * MS),
        step(3, 30 * MS),
    ]  # fmt: skip
    device = [
        phase("forward", 0, 5 * MS, 2 * MS), phase("backward", 0, 7 * MS, 3 * MS),
        phase("forward", 1, 16 * MS, 1 * MS), phase("backward", 1, 17 * MS, 3 * MS),
        phase("forward", 3, 31 * MS, 2 * MS),
    ]  # fmt: skip
    found = table(host, device)
    assert found.steps.tolist() == [0, 1, 3]
    assert found.names == ["backward", "dataloader", "forward", "other"]
    # Step 1 begins where step 0 ended; of step 3 the one before is not known.
    assert (found.duration // MS).tolist() == [[3, 0, 2, 0], [3, 4, 1, 2], [0, 0, 2, 0]]
    assert found.end[:, 0].tolist() == [10 * MS, 20 * MS, views.NEVER]


def test_device_phases_that_did_not_last_leave_the_host() -> None:
    host = [step(0, 0), phase("forward", 0, 0, 4 * MS)]
    assert table(host, [phase("forward", 0, MS, 0)]).names == ["forward", "other"]
    assert not table(host, [phase("forward", None, MS, MS)]).steps.size


def test_nothing_is_of_nothing() -> None:
    assert not table([]).steps.size
    assert views.sums(views.parts(Arrays(), views.Steps(*[np.zeros(0, np.int64)] * 3))) == {}


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 300))
def test_of_ranks_with_more_and_fewer_steps_the_same_are_left(a: int, b: int, most: int) -> None:
    left = [np.flatnonzero(views.thinned(np.arange(count), most)) for count in (a, b)]
    for steps, count in zip(left, (a, b), strict=True):
        assert min(count, most // 2) <= len(steps) <= most
    fewer, more = sorted(left, key=len)
    if a == b:
        assert fewer.tolist() == more.tolist()
    longer, shorter = (left[0], left[1]) if a >= b else (left[1], left[0])
    assert {*longer[longer < min(a, b)].tolist()} <= {*shorter.tolist()}
