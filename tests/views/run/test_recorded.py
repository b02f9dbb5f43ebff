"""When kernels were recorded: whole steps, crashes, lost and broken events."""

from __future__ import annotations

import pytest
import runs
from gpu_frames import WINDOW, events, intervals

from haiprof.views.run import recorded


def test_recorded_intervals_have_their_whole_steps() -> None:
    rows = [*WINDOW, runs.recording_begins(100), runs.recording_ends(101, why="handover")]
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


def test_an_interval_has_the_steps_that_the_host_began_and_ended_within_it() -> None:
    host = runs.loop(10)
    for begin, end, steps in (
        (24, 48, (2, 3, 2)),
        (24.001, 48, (3, 3, 1)),
        (24, 47.999, (2, 2, 1)),
        (25, 47, (None, None, None)),
        (-50, 500, (0, 9, 10)),
    ):
        rows = [runs.recording_begins(begin), runs.recording_ends(end)]
        found = intervals(rows, host).row(0, named=True)
        assert (found["first_step"], found["last_step"], found["steps"]) == steps


def test_steps_that_an_event_carries_count_as_it_tells_them() -> None:
    found = intervals([WINDOW[0], runs.recording_ends(60, 2, 3)], runs.loop(10))
    assert found.select("first_step", "last_step", "steps").row(0) == (2, 3, 2)


def test_how_often_recording_began_is_how_many_intervals_there_are() -> None:
    again = runs.recording_begins(100)
    for rows, count in (
        ([], 0),
        (WINDOW, 1),
        (WINDOW[:1], 1),
        (WINDOW[1:], 1),
        ([*WINDOW, again], 2),
        ([*WINDOW, again, again, runs.recording_ends(101), runs.recording_ends(102)], 4),
    ):
        assert intervals(rows).height == count
        assert recorded.begun(events(rows)) == count


def test_an_interval_whose_beginning_was_lost_has_no_steps() -> None:
    found = intervals([runs.recording_ends(48)], runs.loop(10)).row(0, named=True)
    assert (found["start"], found["steps"]) == (None, None)


def test_a_step_whose_span_was_lost_is_not_counted() -> None:
    host = [row for row in runs.loop(10) if row["step"] != 4]
    rows = [runs.recording_begins(24), runs.recording_ends(84)]
    found = intervals(rows, host).row(0, named=True)
    assert (found["first_step"], found["last_step"], found["steps"]) == (2, 6, 4)


def test_an_interval_cut_by_a_crash_has_the_steps_whose_kernels_all_arrived() -> None:
    unended = WINDOW[:1]
    host, device = runs.loop(10), runs.device_loop(10)
    # Kernels of step 4 arrived until 4 * 12 + 8 ms; the GPU ends it at 4 * 12 + 11.5 ms.
    found = intervals(unended, host, device, ended_ms=130, last_ms=56).row(0, named=True)
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
