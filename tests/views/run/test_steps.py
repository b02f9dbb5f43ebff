"""Steps and phases from spans: nesting, user ranges, what no phase covers, odd numbering."""

from __future__ import annotations

import polars as pl
import pytest
import runs
from hypothesis import given
from hypothesis import strategies as st

from haiprof import schema
from haiprof.sources.tables import polars_type
from haiprof.views.intervals import merge
from haiprof.views.run import steps as views


def frame(rows: list[runs.Row]) -> pl.DataFrame:
    columns = {c.name: polars_type(c) for c in schema.SPANS.columns if c.name in views.COLUMNS}
    return pl.DataFrame([{k: row[k] for k in columns} for row in rows], schema=columns)


def phases(rows: list[runs.Row]) -> pl.DataFrame:
    spans = frame(rows)
    return views.phases(spans, views.steps(spans))


def parts(rows: list[runs.Row]) -> pl.DataFrame:
    spans = frame(rows)
    return views.parts(spans, views.steps(spans))


def by_name(rows: list[runs.Row]) -> dict[tuple[int, str], float]:
    """Duration in ms by step and name."""
    found = phases(rows).select("step", "name", "duration").iter_rows()
    return {(step, str(name)): ns / runs.MS for step, name, ns in found}


def test_a_plain_step_divides_into_its_phases_and_the_rest() -> None:
    assert by_name(runs.loop(2)) == {
        (step, name): ms for step in (0, 1) for name, ms in [*runs.PHASES, ("other", 1.0)]
    }


def test_accumulation_sums_the_spans_of_a_phase_and_counts_them() -> None:
    rows = [runs.span(0, 10, "step", "step", 5)]
    rows += [runs.span(start, 2, "phase", "forward", 5) for start in (1, 4)]
    found = phases(rows).filter(pl.col("category") == "phase").row(0, named=True)
    assert found["duration"] == 4 * runs.MS
    assert found["count"] == 2
    assert found["start"] == runs.T0 + runs.MS


def test_a_phase_inside_a_phase_is_taken_out_of_the_outer_one() -> None:
    rows = [
        runs.span(0, 10, "step", "step", 1),
        runs.span(0, 8, "phase", "backward", 1),
        runs.span(2, 3, "phase", "recompute", 1),
    ]
    assert by_name(rows) == {(1, "backward"): 5, (1, "recompute"): 3, (1, "other"): 2}


def test_phases_of_a_trial_run_before_the_first_step_are_not_its_own() -> None:
    trial = [runs.span(-5 - n, 1, "phase", "forward", 0) for n in range(3)]
    rows = runs.loop(2)
    assert phases([*trial, *rows]).equals(phases(rows))


def test_pauses_of_the_garbage_collector_are_no_part_of_a_step() -> None:
    rows = runs.loop(2)
    pauses = [runs.span(start, 1, "gc", "gc 2", 0) for start in (2, 11.5)]
    assert by_name([*rows, *pauses]) == by_name(rows)
    assert parts([*rows, *pauses]).equals(parts(rows))


def test_a_phase_on_another_thread_is_not_nested() -> None:
    rows = [
        runs.span(0, 10, "step", "step", 1),
        runs.span(0, 8, "phase", "backward", 1),
        runs.span(2, 3, "phase", "dataloader", 1, thread=2),
    ]
    assert by_name(rows) == {(1, "backward"): 8, (1, "dataloader"): 3, (1, "other"): 2}


def test_user_ranges_do_not_reduce_phases_but_each_other() -> None:
    rows = [
        runs.span(0, 10, "step", "step", 1),
        runs.span(0, 8, "phase", "forward", 1),
        runs.span(1, 6, "user", "attention", 1),
        runs.span(2, 2, "user", "softmax", 1),
    ]
    assert by_name(rows) == {
        (1, "forward"): 8,
        (1, "attention"): 4,
        (1, "softmax"): 2,
        (1, "other"): 2,
    }
    assert parts(rows)["duration"].sum() == 10 * runs.MS


def test_in_a_step_without_phases_user_ranges_stand_for_them() -> None:
    rows = [runs.span(0, 10, "step", "step", 1), runs.span(1, 6, "user", "solve", 1)]
    assert by_name(rows) == {(1, "solve"): 6, (1, "other"): 4}
    assert parts(rows)["duration"].sum() == 10 * runs.MS


def test_each_step_is_split_by_itself_though_a_count_starts_anew() -> None:
    with_phases = [runs.span(0, 10, "step", "step", 0), runs.span(0, 6, "phase", "forward", 0)]
    without = [runs.span(20, 10, "step", "step", 0), runs.span(20, 6, "user", "solve", 0)]
    found = parts([*with_phases, *without]).select("row", "name").rows()
    assert found == [(0, "forward"), (0, "other"), (1, "solve"), (1, "other")]


def test_a_span_without_a_step_number_goes_where_it_started() -> None:
    rows = [*runs.loop(2), runs.span(12.5, 1, "user", "mine"), runs.span(500, 1, "user", "late")]
    found = by_name(rows)
    assert found[1, "mine"] == 1
    assert not any(name == "late" for _, name in found)


def test_phases_of_a_step_that_never_ended_are_left_out() -> None:
    rows = [*runs.loop(1), runs.span(12, 5, "phase", "forward", 1)]
    assert {step for step, _ in by_name(rows)} == {0}


def test_a_count_that_starts_anew_keeps_its_steps_apart() -> None:
    later = [{**row, "start": row["start"] + runs.SECOND} for row in runs.loop(2)]
    found = phases([*runs.loop(2), *later])
    assert found.height == 4 * 5
    assert found.filter(pl.col("name") == "forward")["duration"].to_list() == [4 * runs.MS] * 4


def test_of_a_phase_that_reaches_over_the_step_only_what_is_in_it_counts() -> None:
    rows = [runs.span(5, 10, "step", "step", 1), runs.span(0, 40, "phase", "forward", 1)]
    assert by_name(rows) == {(1, "forward"): 10, (1, "other"): 0}


def test_no_spans_give_empty_frames_with_their_columns() -> None:
    assert phases([]).columns == list(views.PHASES_SCHEMA)
    assert views.steps(frame([])).columns == list(views.STEPS_SCHEMA)
    assert phases(runs.loop(3)[:-1]).height > 0


spans = st.tuples(st.integers(0, 40), st.integers(0, 20), st.sampled_from(["phase", "user"]))


@given(st.lists(spans, max_size=10), st.integers(1, 40))
def test_the_parts_of_a_step_cover_it_exactly_when_one_thread_runs_it(
    drawn: list[tuple[int, int, str]], length: int
) -> None:
    rows = [runs.span(0, length, "step", "step", 1)]
    for start, duration, category in drawn:
        start = min(start, length)
        rows.append(runs.span(start, min(duration, length - start), category, f"x{start}", 1))
    found = parts(rows)["duration"]
    assert found.sum() == length * runs.MS
    assert found.min() >= 0


def test_bands_keep_the_mean_step_when_steps_share_a_bin() -> None:
    spans_ = frame(runs.loop(10))
    steps = views.steps(spans_)
    found = views.bands(views.parts(spans_, steps), steps, ["forward", "none"], bins=3)
    assert found["first"].unique().sort().to_list() == [0, 4, 8]
    assert found["last"].unique().sort().to_list() == [3, 7, 9]
    forward = found.filter(pl.col("name") == "forward")["duration"]
    assert forward.to_list() == pytest.approx([4 * runs.MS] * 3)
    assert found.filter(pl.col("name") == "none")["duration"].to_list() == [0, 0, 0]


def test_bands_of_a_count_that_starts_anew_have_each_step_once() -> None:
    later = [{**row, "start": row["start"] + runs.SECOND} for row in runs.loop(4)]
    spans_ = frame([*runs.loop(4), *later])
    steps = views.steps(spans_)
    found = views.bands(views.parts(spans_, steps), steps, ["forward"], bins=100)
    assert found["duration"].to_list() == [4 * runs.MS] * 8


drawn_spans = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.integers(-3, 10),
        st.sampled_from(["step", "phase", "compile"]),
        st.sampled_from(["forward", "optimizer"]),
        st.sampled_from([1, 2]),
    ),
    max_size=12,
)


@given(drawn_spans)
def test_what_ran_when_is_what_each_set_has_on_its_own(
    drawn: list[tuple[int, int, str, str, int]],
) -> None:
    spans_ = frame(
        [
            {**runs.span(start, duration, category, name, 1), "thread": thread}
            for start, duration, category, name, thread in drawn
        ]
    )
    sets = {"compiler": pl.col("category") == "compile", "forward": pl.col("name") == "forward"}
    found = views.ran(spans_, sets)
    for name, inside in sets.items():
        some = spans_.filter(inside)
        start = some["start"].to_numpy()
        alone = merge(start, start + some["duration"].to_numpy())
        assert [side.tolist() for side in found[name]] == [side.tolist() for side in alone]


@given(drawn_spans)
def test_the_loop_is_the_threads_that_have_steps(
    drawn: list[tuple[int, int, str, str, int]],
) -> None:
    spans_ = frame(
        [
            {**runs.span(start, duration, category, name, 1), "thread": thread}
            for start, duration, category, name, thread in drawn
        ]
    )
    of_steps = spans_.filter(pl.col("category") == "step")
    mine = pl.col("thread").is_in(of_steps["thread"].to_list())
    assert views.of_loop(spans_).equals(spans_.filter(mine))
