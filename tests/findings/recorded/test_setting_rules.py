"""Settings for finding faults that were left on."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from charged_lives import span
from recorded_cases import found, kinds, life, rank, torch_lines

ON = {"profiler": True}


def of(*seen: tuple[int, dict[str, Any]], steps: int = 300, **more: Any) -> Any:
    """Return a rank of which these settings were seen, each before a step."""
    own = life(steps=steps, **more)
    facts = [{"time": int(own.start[step]), **each} for step, each in seen]
    grows = pl.DataFrame({"time": own.start[::5], "value": 1e9 + 1e7 * np.arange(0.0, steps, 5)})
    return rank(own, torch_lines(100), facts={"autograd": facts}, memory=grows)


def test_anomaly_detection_is_named() -> None:
    leak, finding = found(of((0, {"anomaly_detection": True})))
    assert (leak.kind, finding.kind) == ("memory_leak", "debugging")
    assert finding.lost_ns is None
    assert "set_detect_anomaly(False)" in finding.advice


def test_a_profiler_that_was_left_on_is_why_memory_grows() -> None:
    (finding,) = found(of((20, ON)))
    assert finding.kind == "debugging"
    assert finding.problem.startswith("torch.profiler is on all the time")
    assert finding.evidence[0].value == 280


@pytest.mark.parametrize(
    "seen",
    [
        (),
        ((0, {"anomaly_detection": False, "profiler": False}),),
        ((0, {"anomaly_detection": True}), (5, {"anomaly_detection": False})),
        ((20, ON), (50, {"profiler": False})),
        # Of so few steps it may be one of its windows.
        ((200, ON),),
        # Of a damaged file.
        ((0, {"anomaly_detection": "yes", "profiler": 1}),),
    ],
)
def test_what_is_off_was_turned_off_or_is_a_window_is_not(seen: Any) -> None:
    assert kinds(of(*seen)) == ["memory_leak"]


def test_a_deep_trace_of_haiprof_is_not() -> None:
    traced = span(150, 40, "phase", "deep_trace", 0)
    assert kinds(of((20, ON), spans=[traced])) == ["memory_leak"]
