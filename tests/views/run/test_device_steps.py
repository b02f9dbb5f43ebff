"""Which device phase an activity starts in, by its device."""

from __future__ import annotations

import numpy as np
import runs
from gpu_frames import phases

from haiprof.views.run import device_steps as device_views


def steps_of(numbers: list[int | None]) -> list[tuple[int, float]]:
    """Return number and ms of each step of a GPU whose steps of 12 ms have these numbers."""
    rows = [
        {**row, "start": row["start"] + 12 * place * runs.MS, "step": number}
        for place, number in enumerate(numbers)
        for row in runs.device_loop(1)
    ]
    found = device_views.device_steps(phases(rows))
    return [(row["step"], (row["end"] - row["start"]) / runs.MS) for row in found.to_dicts()]


def test_a_step_begins_where_the_one_before_it_ended() -> None:
    assert steps_of([3, 4, 5]) == [(3, 10.0), (4, 12.0), (5, 12.0)]


def test_a_step_whose_predecessor_was_not_timed_begins_with_its_own_first_phase() -> None:
    rows = [row for row in runs.device_loop(40) if row["step"] % 4 == 0 or row["step"] == 21]
    found = device_views.device_steps(phases(rows))
    lasted = dict(zip(found["step"], (found["end"] - found["start"]) / runs.MS, strict=True))
    assert lasted == {step: 10.0 for step in range(0, 40, 4)} | {21: 12.0}


def test_a_count_that_starts_anew_and_phases_outside_of_steps_are_no_predecessors() -> None:
    assert steps_of([7, 0, 1]) == [(7, 10.0), (0, 10.0), (1, 12.0)]
    assert steps_of([2, None, 3]) == [(2, 10.0), (3, 10.0)]


def test_each_device_has_steps_of_its_own() -> None:
    rows = [*runs.device_loop(2), *(r for r in runs.device_loop(3, 1) if r["step"] != 1)]
    found = device_views.device_steps(phases(rows)).sort("device", "step")
    lasted = [ns / runs.MS for ns in found["end"] - found["start"]]
    assert lasted == [10.0, 12.0, 10.0, 10.0]


def test_placing_is_by_device_also_for_ordinals_that_no_phase_has() -> None:
    device = np.array([-1, 5, 0], np.int32)
    start = np.full(3, runs.T0 + 2 * runs.MS)
    at, within = device_views.place(device, start, phases([runs.device_span(0, 5, "forward", 1)]))
    assert at.tolist() == [-1, -1, 0]
    assert within.tolist() == [False, False, True]
