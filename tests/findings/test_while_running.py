"""What was said while a job ran is in its headline where the end does not say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer

LATE = {
    "kind": "slow_loader", "ranks": [0], "line": None, "share": 0.3, "over": False,
    "since_ns": runs.T0, "advice": "look",
}  # fmt: skip
EVEN = (("dataloader", 0.2), ("forward", 4.8), *runs.PHASES[2:])
TEXT = "A step takes 20 ms instead of 12 ms in the minute before. The loop waits"


def added(folder: Path, *said: Any, phases: tuple[tuple[str, float], ...]) -> list[str]:
    run = runs.make_run(folder / "r", steps=400, phases=phases)
    rows = [runs.event(2, "finding", TEXT, attributes=attributes) for attributes in said]
    runs.write_closed(run / "n0", schema.EVENTS, rows)
    return Analyzer(run).headline()[3:]


def test_it_is_the_line_behind_the_others(tmp_path: Path) -> None:
    (line,) = added(tmp_path, {**LATE, "share": 0.1}, LATE, phases=EVEN)
    assert line.startswith("From ")
    assert line.endswith(f" UTC on: {TEXT}")


def test_what_the_end_says_is_not_said_twice(tmp_path: Path) -> None:
    phases = (("dataloader", 5.0), ("forward", 4.0), ("backward", 2.0))
    assert added(tmp_path, LATE, phases=phases) == []


@pytest.mark.parametrize(
    "odd", [{"over": True}, {}, [], 5, {**LATE, "share": "x"}, {**LATE, "since_ns": 10**30}, None]
)
def test_what_is_none_is_left_out(tmp_path: Path, odd: Any) -> None:
    assert added(tmp_path, odd, phases=EVEN) == []
