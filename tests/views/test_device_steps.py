"""Which device phase an activity starts in, by its device."""

from __future__ import annotations

import numpy as np
import runs
from gpu_frames import phases

from haiprof.views import device_steps as device_views


def test_placing_is_by_device_also_for_ordinals_that_no_phase_has() -> None:
    device = np.array([-1, 5, 0], np.int32)
    start = np.full(3, runs.T0 + 2 * runs.MS)
    at, within = device_views.place(device, start, phases([runs.device_span(0, 5, "forward", 1)]))
    assert at.tolist() == [-1, -1, 0]
    assert within.tolist() == [False, False, True]
