"""How GPUs were used, from rows that sum up steps: what they say, and when they do not say it all.

Beside what the kernels say: tests/recorder/test_device_parts.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from haiprof.sources import arrays
from haiprof.views.run import summed_use

#: Start, duration, kind, name, step and device of each row.
Row = tuple[int, int, str, str, int | None, int]
NONE = np.zeros(0, np.int64)


def step(
    number: int, begin: int, *, device: int = 0, since: int | None = None, recorded: bool = True
) -> list[Row]:
    """A step of 100 ns: 60 forward and 30 backward after 10 of nothing; idle for 25 of the 100.

    Recorded from ``since`` on.
    """
    rows: list[Row] = [
        (begin, 100, "device_step", "step", number, device),
        (begin + 10, 60, "device_phase", "forward", number, device),
        (begin + 70, 30, "device_phase", "backward", number, device),
    ]
    if not recorded:
        return rows
    low = begin if since is None else since
    idle = begin + 100 - low - 75
    return [
        *rows,
        (low, 75, "busy", "busy", number, device),
        (low, 20, "communication", "communication", number, device),
        (low, 15, "exposed", "exposed", number, device),
        (low, 5, "copying", "copying", number, device),
        (begin + 10, 45, "phase_busy", "forward", number, device),
        (begin + 10, 30, "phase_busy", "backward", number, device),
        (low, idle - 3, "idle", "dataloader", number, device),
        (low, 3, "idle", "other", number, device),
    ]


def parts(*steps: Sequence[Row]) -> arrays.Arrays:
    rows = [row for one in steps for row in one]
    return arrays.of_frame(pl.DataFrame(rows, list(summed_use.COLUMNS), orient="row"))


def test_steps_add_up() -> None:
    rows = parts(step(0, 0, recorded=False), step(1, 100, since=105), step(2, 200))
    found = summed_use.use(rows, np.array([0]), 1)
    assert found is not None
    assert (found.steps, found.step_ns) == (3, 300)
    assert found.phase_ns == {"forward": 180, "backward": 90}
    assert (found.intervals, found.recorded, found.recorded_ns) == (1, 2, 195)
    assert (found.busy_ns, found.communication_ns, found.exposed_ns) == (150, 40, 30)
    assert found.copying_ns == 10
    assert found.idle_ns == {"dataloader": 39, "other": 6}
    assert found.recorded_phase_ns == {"forward": 120, "backward": 60}
    assert found.busy_phase_ns == {"forward": 90, "backward": 60}


def test_steps_of_several_devices_add_up_and_are_counted_once() -> None:
    rows = parts(step(0, 0), step(0, 0, device=1), step(1, 100, device=1))
    found = summed_use.use(rows, np.array([0, 1]), 1)
    assert found is not None
    assert (found.steps, found.recorded, found.recorded_ns) == (3, 2, 300)


def test_evaluations_are_no_steps() -> None:
    evaluation = [(*row[:4], None, 0) for row in step(0, 100)]
    assert summed_use.use(parts(step(0, 0), evaluation, step(1, 200)), NONE, 1) == summed_use.use(
        parts(step(0, 0), step(1, 200)), NONE, 1
    )
    assert summed_use.use(parts(evaluation), NONE, 1) is None


def test_where_graphs_are_replayed_only_the_phases_are_known() -> None:
    found = summed_use.use(parts(step(0, 0), step(1, 100)), np.array([0]), None)
    assert found is not None
    assert (found.steps, found.step_ns, found.recorded, found.intervals) == (2, 200, 0, 0)
    assert found.idle_ns == {}


def test_the_kernels_have_to_be_read_where_the_rows_do_not_say_it_all() -> None:
    whole = step(0, 0)
    assert summed_use.use(parts(whole), np.array([0]), 1) is not None
    # Of another device there are kernels, but no phases, or none whose times are sure.
    assert summed_use.use(parts(whole), np.array([0, 1]), 1) is None
    # An earlier haiprof wrote neither of these.
    for lacking in ("phase_busy", "idle"):
        rows = [row for row in whole if row[2] != lacking]
        assert summed_use.use(parts(rows), np.array([0]), 1) is None
    # The file begins in the middle.
    assert summed_use.use(parts(whole[1:]), np.array([0]), 1) is None
    # No kernel was recorded: there is nothing to read.
    found = summed_use.use(parts(step(0, 0, recorded=False)), NONE, 0)
    assert found is not None
    assert (found.steps, found.recorded, found.recorded_ns) == (1, 0, 0)
