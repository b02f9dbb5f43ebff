"""How GPUs were used: busy, exposed and idle time against a model painted by hand."""

from __future__ import annotations

import runs
from gpu_frames import WINDOW, intervals, kernels, phases, spans
from hypothesis import given
from hypothesis import strategies as st

from haiprof.views.run import busy as busy_views
from haiprof.views.run import device_steps as device_views
from haiprof.views.run import gpu_use as use_views
from haiprof.views.run import recorded as recorded_views


def use_of(
    activity: list[runs.Row],
    host: list[runs.Row],
    device: list[runs.Row],
    events: list[runs.Row],
) -> use_views.Use:
    found = kernels(activity)
    return use_views.use(found, spans(host), phases(device), intervals(events, host, device))


def test_an_end_whose_beginning_was_lost_still_tells_its_steps() -> None:
    found = intervals(WINDOW[1:]).row(0, named=True)
    assert (found["start"], found["first_step"], found["last_step"]) == (None, 2, 3)
    use = use_of(runs.kernel_loop(2, 3), runs.loop(6), runs.device_loop(6), WINDOW[1:])
    assert use.busy_ns == 18 * runs.MS
    assert use.recorded_ns == 24 * runs.MS


def test_busy_and_exposed_time_of_a_usual_step() -> None:
    use = use_of(runs.kernel_loop(2, 3), runs.loop(6), runs.device_loop(6), WINDOW)
    assert use.recorded == 2
    # The GPU is done with step 1 half a millisecond before the recording begins.
    assert use.recorded_ns == 23.5 * runs.MS
    assert use.busy_ns == 18 * runs.MS
    assert use.communication_ns == 4 * runs.MS
    assert use.exposed_ns == 2 * runs.MS
    assert use.idle_ns["dataloader"] == 2 * runs.MS
    assert sum(use.idle_ns.values()) == use.recorded_ns - use.busy_ns
    assert use.recorded_phase_ns["forward"] - use.busy_phase_ns["forward"] == 2 * runs.MS
    assert use.phase_ns == {
        "forward": 24 * runs.MS,
        "backward": 30 * runs.MS,
        "optimizer": 6 * runs.MS,
    }


def test_waits_of_the_host_and_overhead_keep_no_gpu_busy() -> None:
    rows = [runs.activity(24, 24, "Stream", "sync"), runs.activity(24, 24, "Buffer", "overhead")]
    use = use_of(rows, runs.loop(6), runs.device_loop(6), WINDOW)
    assert (use.busy_ns, use.recorded) == (0, 2)


def test_without_device_phases_the_steps_of_the_host_count() -> None:
    use = use_of(runs.kernel_loop(2, 3), runs.loop(6), [], WINDOW)
    assert use.recorded_ns == 24 * runs.MS
    assert use.busy_ns == 18 * runs.MS
    assert (use.steps, use.phase_ns) == (0, {})


def test_where_the_times_of_device_phases_are_not_sure_the_steps_of_the_host_count() -> None:
    device = [{**row, "uncertainty": 10 * runs.MS} for row in runs.device_loop(6)]
    use = use_of(runs.kernel_loop(2, 3), runs.loop(6), device, WINDOW)
    assert use.recorded_ns == 24 * runs.MS
    assert use.busy_ns == 18 * runs.MS
    # How long they were is known all the same.
    assert use.phase_ns["backward"] == 30 * runs.MS
    assert use.recorded_phase_ns == {}


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
    use = use_of(both, runs.loop(6), runs.device_loop(6), WINDOW)
    assert use.recorded_ns == 47.5 * runs.MS
    assert use.busy_ns == 36 * runs.MS


def test_what_was_not_recorded_is_no_idle_time() -> None:
    use = use_of([], runs.loop(6), runs.device_loop(6), [])
    assert (use.recorded, use.recorded_ns, use.idle_ns) == (0, 0, {})
    assert use.share(use.busy_ns) is None
    assert use.steps == 6


def test_a_pause_before_a_recorded_step_is_reported_from_the_recording_on() -> None:
    # Evaluation for a second between steps 1 and 2, which nobody recorded the kernels of.
    def later(rows: list[runs.Row]) -> list[runs.Row]:
        return [
            {**row, "start": row["start"] + (runs.SECOND if row["step"] >= 2 else 0)}
            for row in rows
        ]

    events = [runs.recording_begins(1024), runs.recording_ends(1048)]
    busy = [{**row, "start": row["start"] + runs.SECOND} for row in runs.kernel_loop(2, 3)]
    use = use_of(busy, later(runs.loop(6)), later(runs.device_loop(6)), events)
    assert use.recorded_ns == 23.5 * runs.MS


def test_a_step_that_the_gpu_ends_after_the_recording_is_left_out() -> None:
    lagging = [{**row, "start": row["start"] + 3 * runs.MS} for row in runs.device_loop(6)]
    use = use_of(runs.kernel_loop(2, 3), runs.loop(6), lagging, WINDOW)
    assert (use.recorded, use.recorded_ns) == (1, 12 * runs.MS)
    assert set(use.recorded_phase_ns.values()) == {4 * runs.MS, 5 * runs.MS, 1 * runs.MS}


def test_a_count_that_starts_anew_has_only_the_recorded_steps_of_its_number() -> None:
    again = [{**row, "start": row["start"] + runs.SECOND} for row in runs.device_loop(6)]
    use = use_of(
        runs.kernel_loop(2, 3),
        runs.loop(6),
        runs.device_loop(6) + again,
        [*WINDOW, runs.recording_begins(1_500), runs.recording_ends(1_501)],
    )
    assert use.busy_ns == 18 * runs.MS
    table = recorded_views.windows(
        intervals(WINDOW),
        device_views.device_steps(phases(runs.device_loop(6))),
        recorded_views.host_steps(spans(runs.loop(6))),
    )
    assert table["step"].to_list() == [2, 3]


def test_a_count_that_starts_anew_while_kernels_are_recorded_has_all_its_whole_steps() -> None:
    def twice(rows: list[runs.Row]) -> list[runs.Row]:
        return rows + [{**row, "start": row["start"] + 72 * runs.MS} for row in rows]

    host, device = twice(runs.loop(6)), twice(runs.device_loop(6))
    # Steps 4 and 5, then 0 to 5 again: 4 and 5 are whole both times, and so are those between.
    events = [runs.recording_begins(48), runs.recording_ends(144)]
    found = intervals(events, host).row(0, named=True)
    assert (found["first_step"], found["last_step"], found["steps"]) == (4, 5, 8)
    use = use_of(runs.kernel_loop(4, 11), host, device, events)
    assert (use.recorded, use.busy_ns) == (8, 72 * runs.MS)
    # Steps 5 and 0 alone: the last number is less than the first.
    events = [runs.recording_begins(60), runs.recording_ends(84)]
    use = use_of(runs.kernel_loop(5, 6), host, device, events)
    assert (use.recorded, use.busy_ns) == (2, 18 * runs.MS)


def test_a_step_of_an_earlier_count_that_the_gpu_ends_in_a_recording_is_not_recorded() -> None:
    # The GPU is 20 ms behind, so step 2 of the first count ends after the recording has begun.
    host = runs.loop(3) + [{**row, "start": row["start"] + 36 * runs.MS} for row in runs.loop(6)]
    lagging = [{**row, "start": row["start"] + 20 * runs.MS} for row in runs.device_loop(3)]
    lagging += [{**row, "start": row["start"] + 56 * runs.MS} for row in runs.device_loop(6)]
    events = [runs.recording_begins(36), runs.recording_ends(108)]
    use = use_of([runs.activity(36, 72)], host, lagging, events)
    # Of the six steps that are whole on the host, the GPU ends the last two later.
    assert use.recorded == 4
    assert use.recorded_phase_ns["forward"] == 4 * 4 * runs.MS


drawn_activity = st.tuples(
    st.integers(0, 40),
    st.integers(0, 12),
    st.sampled_from(["gemm", runs.ALL_REDUCE]),
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
    events = [runs.recording_begins(0), runs.recording_ends(60)]
    use = use_of(rows, host, device, events)

    busy = exposed = communication = copying = waiting = 0
    for number in (0, 1):
        # The first step of a device begins with its first phase.
        for instant in range(5, 40):
            running = [
                (name, kind)
                for start, length, name, kind, on in drawn
                if on == number and start <= instant < start + length
                if kind in busy_views.BUSY_KINDS
            ]
            comm = [r for r in running if r == (runs.ALL_REDUCE, "kernel")]
            busy += bool(running)
            communication += bool(comm)
            exposed += bool(comm) and len(comm) == len(running)
            copying += bool(running) and all(kind != "kernel" for _, kind in running)
            waiting += not running and instant % 20 < 5
    assert use.recorded_ns == 2 * 35 * runs.MS
    assert use.busy_ns == busy * runs.MS
    assert use.communication_ns == communication * runs.MS
    assert use.exposed_ns == exposed * runs.MS
    assert use.copying_ns == copying * runs.MS
    assert use.idle_ns.get("dataloader", 0) == waiting * runs.MS
    assert sum(use.idle_ns.values()) + use.busy_ns == use.recorded_ns
