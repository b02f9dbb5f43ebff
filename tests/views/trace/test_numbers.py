"""Every number of the views of a trace, for all recorded ones, against a plain count of rows."""

from __future__ import annotations

from typing import Any

import pytest
from trace_numbers import PARTS, Recorded

from haiprof.views.trace.kernels import kernels
from haiprof.views.trace.operators import operators
from haiprof.views.trace.overview import overview


def close(value: Any) -> Any:
    return value if value is None or isinstance(value, bool) else pytest.approx(value, rel=1e-9)


def test_steps_and_what_they_are_spent_on(recorded: Recorded) -> None:
    steps = overview(recorded.linked).steps
    wanted = recorded.plain
    assert list(
        zip(steps["step"], steps["start"], steps["start"] + steps["duration"], strict=True)
    ) == (wanted.steps)
    rows = [{part: row[part] for part in (*PARTS, "other")} for row in steps.iter_rows(named=True)]
    assert rows == wanted.breakdown()
    assert (steps.select((*PARTS, "other")).sum_horizontal() == steps["duration"]).all()


def test_how_busy_each_device_is(recorded: Recorded) -> None:
    result = overview(recorded.linked)
    wanted = recorded.plain
    numbers = {row["device"] for row in wanted.activities if row["kind"] == "kernel"} - {None}
    assert set(result.devices["device"]) == numbers
    for row in result.devices.iter_rows(named=True):
        for name, value in wanted.device(row["device"]).items():
            assert row[name] == close(value), name
    assert result.tensor_core == close(wanted.tensor_core())


def test_what_operators_cost(recorded: Recorded) -> None:
    by_name = {row.pop("name"): row for row in operators(recorded.linked).iter_rows(named=True)}
    wanted = recorded.plain.operators()
    for row in by_name.values():
        row.pop("tensor_core_self_share"), row.pop("tensor_core_total_share")
    assert by_name == wanted


def test_what_kernels_cost(recorded: Recorded) -> None:
    by_name = {row.pop("name"): row for row in kernels(recorded.linked).iter_rows(named=True)}
    wanted = recorded.plain.kernels()
    assert set(by_name) == set(wanted)
    for name, row in by_name.items():
        row.pop("share")
        assert row == {key: close(value) for key, value in wanted[name].items()}, name
