"""GPU activity: steps and phases of it, busy and exposed time against models painted by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import runs
from hypothesis import given
from hypothesis import strategies as st

from haiprof import schema
from haiprof.sources.tables import polars_type
from haiprof.views import kernels as views
from haiprof.views import steps as step_views

ALL_REDUCE = runs.ALL_REDUCE


def frame(table: schema.Table, columns: tuple[str, ...], rows: list[runs.Row]) -> pl.DataFrame:
    kinds = {c.name: polars_type(c) for c in table.columns if c.name in columns}
    return pl.DataFrame([{k: row.get(k) for k in kinds} for row in rows], schema=kinds)


def kernels(rows: list[runs.Row]) -> pl.DataFrame:
    return frame(schema.KERNELS, (*views.COLUMNS, "correlation", "graph_node"), rows)


def phases(rows: list[runs.Row]) -> pl.DataFrame:
    return views.segments(frame(schema.DEVICE_SPANS, views.SPAN_COLUMNS, rows))


def spans(rows: list[runs.Row]) -> pl.DataFrame:
    return frame(schema.SPANS, step_views.COLUMNS, rows)


def events(rows: list[runs.Row]) -> pl.DataFrame:
    return frame(schema.EVENTS, ("time", "kind", "text", "attributes"), rows)


def intervals(
    rows: list[runs.Row],
    host: list[runs.Row] | None = None,
    device: list[runs.Row] | None = None,
    ended_ms: float | None = None,
    last_ms: float | None = None,
) -> pl.DataFrame:
    return views.recorded(
        events(rows),
        views.host_steps(spans(host or [])),
        views.device_steps(phases(device or [])),
        None if ended_ms is None else runs.T0 + round(ended_ms * runs.MS),
        None if last_ms is None else runs.T0 + round(last_ms * runs.MS),
    )


def use_of(
    activity: list[runs.Row],
    host: list[runs.Row],
    device: list[runs.Row],
    told: list[runs.Row],
) -> views.Use:
    found = kernels(activity)
    return views.use(found, spans(host), phases(device), intervals(told, host, device))


def attributed(activity: list[runs.Row], device: list[runs.Row]) -> list[tuple[object, object]]:
    made = views.described(kernels(activity), phases(device))
    return [(step, phase) for step, phase in made.select("step", "phase").iter_rows()]


WINDOW = [runs.recording_begins(24), runs.recording_ends(48, 2, 3)]


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
    empty = views.described(kernels([]), phases(runs.device_loop(2)))
    assert empty.columns[-4:] == list(views.DESCRIBED_SCHEMA)
    assert empty.height == 0


def test_user_ranges_on_a_device_are_no_phases() -> None:
    device = [runs.device_span(0, 5, "F", 3, category="user")]
    assert attributed([runs.activity(3, 1)], device) == [(None, None)]


def test_kernels_of_one_graph_launch_are_each_where_they_start() -> None:
    device = [runs.device_span(0, 6, "forward", 3), runs.device_span(6, 4, "backward", 3)]
    rows = [runs.activity(i, 0.5, correlation=77, graph=1, graph_node=i) for i in range(10)]
    assert attributed(rows, device) == [(3, "forward")] * 6 + [(3, "backward")] * 4
    found = views.totals(kernels(rows), phases(device)).row(0, named=True)
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


def test_recorded_intervals_have_their_whole_steps() -> None:
    rows = [*WINDOW, runs.recording_begins(100), runs.recording_ends(101, None, None, "handover")]
    found = intervals(rows).to_dicts()
    assert [(r["first_step"], r["last_step"], r["steps"]) for r in found] == [
        (2, 3, 2),
        (None, None, None),
    ]
    assert [(r["begun_by"], r["ended_by"]) for r in found] == [
        ("window", "window"),
        ("window", "handover"),
    ]
    assert found[0]["end"] - found[0]["start"] == 24 * runs.MS


def test_an_end_whose_beginning_was_lost_still_tells_its_steps() -> None:
    found = intervals(WINDOW[1:]).row(0, named=True)
    assert (found["start"], found["first_step"], found["last_step"]) == (None, 2, 3)
    made = use_of(runs.kernel_loop(2, 3), runs.loop(6), runs.device_loop(6), WINDOW[1:])
    assert made.busy_ns == 18 * runs.MS
    assert made.recorded_ns == 24 * runs.MS


def test_an_interval_cut_by_a_crash_has_the_steps_whose_kernels_all_arrived() -> None:
    told = WINDOW[:1]
    host, device = runs.loop(10), runs.device_loop(10)
    # Kernels of step 4 arrived until 4 * 12 + 8 ms; the GPU ends it at 4 * 12 + 11.5 ms.
    found = intervals(told, host, device, ended_ms=130, last_ms=56).row(0, named=True)
    assert (found["first_step"], found["last_step"], found["ended_by"]) == (2, 3, None)
    assert found["end"] == runs.T0 + 130 * runs.MS


def test_a_step_that_only_the_host_had_ended_before_a_crash_is_not_whole() -> None:
    host = runs.loop(10)
    # The GPU ends step 3 at 3 * 12 + 14.5 ms, 2.5 ms after the host.
    lagging = [{**row, "start": row["start"] + 3 * runs.MS} for row in runs.device_loop(10)]
    for last_ms, last_step in ((49, 2), (50.5, 3)):
        found = intervals(WINDOW[:1], host, lagging, ended_ms=60, last_ms=last_ms)
        assert found["last_step"].to_list() == [last_step]
    found = intervals(WINDOW[:1], host, [], ended_ms=60, last_ms=49)
    assert found["last_step"].to_list() == [3]


def test_an_interval_that_nothing_arrived_of_has_no_steps() -> None:
    found = intervals(WINDOW[:1], runs.loop(10), runs.device_loop(10)).row(0, named=True)
    assert (found["end"], found["steps"]) == (None, None)


def test_an_end_that_was_lost_is_where_the_next_interval_begins() -> None:
    rows = [runs.recording_begins(0), *WINDOW]
    found = intervals(rows)
    assert found["end"].to_list() == [runs.T0 + 24 * runs.MS, runs.T0 + 48 * runs.MS]
    assert found["steps"].to_list() == [None, 2]


@pytest.mark.parametrize("text", [None, "", "{", "[]", "3", '{"recording": "yes"}', "[" * 99_999])
def test_an_event_that_cannot_be_read_is_passed_over(text: str | None) -> None:
    broken = {**runs.event(0.03, "kernels", "?"), "attributes": text}
    assert intervals([WINDOW[0], broken, WINDOW[1]])["steps"].to_list() == [2]


@pytest.mark.parametrize(
    "steps", [(-1, 3), (5, 3), (0, 2**32 - 1), (2, 2**40), (True, 3), ("2", 3)]
)
def test_numbers_of_steps_that_make_no_sense_are_unknown(steps: tuple[int, int]) -> None:
    found = intervals([WINDOW[0], runs.recording_ends(48, *steps)])
    assert found["steps"].to_list() == [None]


def test_busy_and_exposed_time_of_a_usual_step() -> None:
    made = use_of(runs.kernel_loop(2, 3), runs.loop(6), runs.device_loop(6), WINDOW)
    assert made.recorded == 2
    # The GPU is done with step 1 half a millisecond before the recording begins.
    assert made.recorded_ns == 23.5 * runs.MS
    assert made.busy_ns == 18 * runs.MS
    assert made.communication_ns == 4 * runs.MS
    assert made.exposed_ns == 2 * runs.MS
    assert made.idle_ns["dataloader"] == 2 * runs.MS
    assert sum(made.idle_ns.values()) == made.recorded_ns - made.busy_ns
    assert made.recorded_phase_ns["forward"] - made.busy_phase_ns["forward"] == 2 * runs.MS
    assert made.phase_ns == {
        "forward": 24 * runs.MS,
        "backward": 30 * runs.MS,
        "optimizer": 6 * runs.MS,
    }


def test_waits_of_the_host_and_overhead_keep_no_gpu_busy() -> None:
    rows = [runs.activity(24, 24, "Stream", "sync"), runs.activity(24, 24, "Buffer", "overhead")]
    made = use_of(rows, runs.loop(6), runs.device_loop(6), WINDOW)
    assert (made.busy_ns, made.recorded) == (0, 2)


def test_without_device_phases_the_steps_of_the_host_count() -> None:
    made = use_of(runs.kernel_loop(2, 3), runs.loop(6), [], WINDOW)
    assert made.recorded_ns == 24 * runs.MS
    assert made.busy_ns == 18 * runs.MS
    assert (made.steps, made.phase_ns) == (0, {})


def test_each_of_two_devices_is_counted() -> None:
    device = runs.device_loop(6) + runs.device_loop(6, device=1)
    one = use_of(runs.kernel_loop(2, 3), runs.loop(6), runs.device_loop(6), WINDOW)
    two = use_of(
        runs.kernel_loop(2, 3) + runs.kernel_loop(2, 3, device=1), runs.loop(6), device, WINDOW
    )
    assert (two.recorded, two.steps) == (one.recorded, 2 * one.steps)
    assert two.busy_ns == 2 * one.busy_ns
    assert two.recorded_ns == 2 * one.recorded_ns


def test_a_device_without_phases_beside_one_with_them_has_the_steps_of_the_host() -> None:
    both = runs.kernel_loop(2, 3) + runs.kernel_loop(2, 3, device=1)
    made = use_of(both, runs.loop(6), runs.device_loop(6), WINDOW)
    assert made.recorded_ns == 47.5 * runs.MS
    assert made.busy_ns == 36 * runs.MS


def test_what_was_not_recorded_is_no_idle_time() -> None:
    made = use_of([], runs.loop(6), runs.device_loop(6), [])
    assert (made.recorded, made.recorded_ns, made.idle_ns) == (0, 0, {})
    assert made.share(made.busy_ns) is None
    assert made.steps == 6


def test_a_pause_before_a_recorded_step_is_told_of_from_the_recording_on() -> None:
    # Evaluation for a second between steps 1 and 2, which nobody recorded the kernels of.
    def later(rows: list[runs.Row]) -> list[runs.Row]:
        return [
            {**row, "start": row["start"] + (runs.SECOND if row["step"] >= 2 else 0)}
            for row in rows
        ]

    told = [runs.recording_begins(1024), runs.recording_ends(1048, 2, 3)]
    busy = [{**row, "start": row["start"] + runs.SECOND} for row in runs.kernel_loop(2, 3)]
    made = use_of(busy, later(runs.loop(6)), later(runs.device_loop(6)), told)
    assert made.recorded_ns == 23.5 * runs.MS


def test_a_step_that_the_gpu_ends_after_the_recording_is_left_out() -> None:
    lagging = [{**row, "start": row["start"] + 3 * runs.MS} for row in runs.device_loop(6)]
    made = use_of(runs.kernel_loop(2, 3), runs.loop(6), lagging, WINDOW)
    assert made.recorded_ns == 12 * runs.MS
    assert set(made.recorded_phase_ns.values()) == {4 * runs.MS, 5 * runs.MS, 1 * runs.MS}


def test_a_count_that_starts_anew_has_only_the_recorded_steps_of_its_number() -> None:
    again = [{**row, "start": row["start"] + runs.SECOND} for row in runs.device_loop(6)]
    made = use_of(
        runs.kernel_loop(2, 3),
        runs.loop(6),
        runs.device_loop(6) + again,
        [*WINDOW, runs.recording_begins(1_500), runs.recording_ends(1_501, None, None)],
    )
    assert made.busy_ns == 18 * runs.MS
    table = views.windows(intervals(WINDOW), views.device_steps(phases(runs.device_loop(6))))
    assert table["step"].to_list() == [2, 3]


def test_device_phases_are_null_where_kernels_were_not_recorded() -> None:
    device = phases(runs.device_loop(6))
    told = views.windows(intervals(WINDOW), views.device_steps(device))
    found = views.device_phases(kernels(runs.kernel_loop(2, 3)), device, told)
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
    found = views.device_phases(kernels([]), device, views.device_steps(device).clear())
    assert found.select("name", "duration").rows() == [
        ("forward", 4 * runs.MS),
        ("b", 2 * runs.MS),
    ]


def test_no_rows_give_empty_frames_with_their_columns() -> None:
    nothing = phases([])
    assert views.device_steps(nothing).columns == list(views.WINDOWS_SCHEMA)
    assert intervals([]).columns == list(views.RECORDED_SCHEMA)
    assert views.totals(kernels([]), nothing).columns == list(views.TOTALS_SCHEMA)
    table = views.device_phases(kernels([]), nothing, views.device_steps(nothing))
    assert table.schema == pl.Schema(views.PHASES_SCHEMA)
    assert views.last_end(kernels([])) is None


def test_totals_are_by_readable_name_with_its_phases() -> None:
    found = views.totals(kernels(runs.kernel_loop(2, 3)), phases(runs.device_loop(6)))
    first = found.row(0, named=True)
    assert first["demangled"] == "void at::native::backward_kernel<float>(float*, int)"
    assert (first["calls"], first["total"], first["phases"]) == (2, 8 * runs.MS, ["backward"])
    assert (first["min"], first["max"], first["mean"]) == (4 * runs.MS, 4 * runs.MS, 4 * runs.MS)
    assert found["share"].sum() == pytest.approx(1)


def test_totals_without_a_name_are_kept() -> None:
    rows = [runs.activity(0, 2), {**runs.activity(0, 1), "name": None}]
    found = views.totals(kernels(rows), phases([]))
    assert found["calls"].sum() == 2


drawn_activity = st.tuples(
    st.integers(0, 40),
    st.integers(0, 12),
    st.sampled_from(["gemm", ALL_REDUCE]),
    st.sampled_from(["kernel", "memcpy", "memset", "sync", "overhead"]),
    st.integers(0, 1),
)


@given(st.lists(drawn_activity, max_size=14))
def test_busy_exposed_and_idle_time_are_those_painted_by_hand(
    drawn: list[tuple[int, int, str, str, int]],
) -> None:
    rows = [
        runs.activity(start, length, name, kind, device=device, stream=start % 3)
        for start, length, name, kind, device in drawn
    ]
    # Two steps of 20 ms, of which the host fetches for 5; the device's phases take 15.
    host = [runs.span(20 * s, 20, "step", "step", s) for s in (0, 1)]
    host += [runs.span(20 * s, 5, "phase", "dataloader", s) for s in (0, 1)]
    device = [
        runs.device_span(20 * s + 5, 15, "forward", s, device=d) for d in (0, 1) for s in (0, 1)
    ]
    told = [runs.recording_begins(0), runs.recording_ends(60, 0, 1)]
    made = use_of(rows, host, device, told)

    busy = exposed = communication = waiting = 0
    for number in (0, 1):
        # The first step of a device begins with its first phase.
        for instant in range(5, 40):
            running = [
                (name, kind)
                for start, length, name, kind, on in drawn
                if on == number and start <= instant < start + length
                if kind in views.BUSY_KINDS
            ]
            comm = [r for r in running if r == (ALL_REDUCE, "kernel")]
            busy += bool(running)
            communication += bool(comm)
            exposed += bool(comm) and len(comm) == len(running)
            waiting += not running and instant % 20 < 5
    assert made.recorded_ns == 2 * 35 * runs.MS
    assert made.busy_ns == busy * runs.MS
    assert made.communication_ns == communication * runs.MS
    assert made.exposed_ns == exposed * runs.MS
    assert made.idle_ns["dataloader"] == waiting * runs.MS
    assert sum(made.idle_ns.values()) + made.busy_ns == made.recorded_ns


def test_placing_is_by_device_also_for_ordinals_that_no_phase_has() -> None:
    device = np.array([-1, 5, 0], np.int32)
    start = np.full(3, runs.T0 + 2 * runs.MS)
    at, within = views.place(device, start, phases([runs.device_span(0, 5, "forward", 1)]))
    assert at.tolist() == [-1, -1, 0]
    assert within.tolist() == [False, False, True]
