"""The clocks of GPUs: while they were busy, with and without a reason for lower ones."""

from __future__ import annotations

import polars as pl
import pytest
import runs

from haiprof import schema
from haiprof.sources import tables
from haiprof.views.run.gpu_clocks import BRAKE, CAPPED, CLOCK, THERMAL, UTIL, Clocks, clocks

MHZ = 1e6


def frame(rows: list[runs.Row]) -> pl.DataFrame:
    columns = {c.name: tables.polars_type(c) for c in schema.SAMPLES.columns}
    return pl.DataFrame(rows, columns, orient="row") if rows else pl.DataFrame(schema=columns)


def readings(first: int, last: int, **values: float) -> list[runs.Row]:
    names = {"clock": CLOCK, "util": UTIL, "hot": THERMAL, "capped": CAPPED, "brake": BRAKE}
    return [
        runs.sample(second, names[name], value, "gpu0")
        for second in range(first, last + 1)
        for name, value in values.items()
    ]


def of(*rows: list[runs.Row]) -> Clocks:
    found = clocks(frame([row for some in rows for row in some]))
    assert list(found) == ["gpu0"]
    return found["gpu0"]


def test_without_samples_there_are_none() -> None:
    assert clocks(frame([])) == {}


def test_only_what_was_busy_counts() -> None:
    idle = readings(1, 20, clock=300 * MHZ, util=0)
    one = of(idle, readings(21, 40, clock=1980 * MHZ, util=100))
    assert (one.readings, one.busy) == (20, 0.5)
    assert one.hertz == one.free_hertz == 1980 * MHZ
    assert one.slowed == {}


def test_a_reason_lowers_the_mean_and_not_what_is_free_of_it() -> None:
    one = of(
        readings(1, 30, clock=1980 * MHZ, util=100),
        readings(31, 40, clock=990 * MHZ, util=100, hot=80, brake=0),
    )
    assert one.slowed == {THERMAL: pytest.approx(0.2)}
    assert one.free_hertz == 1980 * MHZ
    assert one.hertz == pytest.approx((30 * 1980 + 10 * 990) / 40 * MHZ)


def test_the_power_limit_is_a_reason_of_its_own() -> None:
    one = of(readings(1, 20, clock=1500 * MHZ, util=100, capped=100))
    assert (one.slowed, one.capped, one.free_hertz) == ({}, 1.0, None)


def test_a_few_readings_have_no_clock() -> None:
    assert of(readings(1, 9, clock=1500 * MHZ, util=100)).hertz is None


def test_of_a_gpu_without_a_clock_the_reasons_are_known() -> None:
    one = of(readings(1, 20, util=100, hot=50))
    assert (one.hertz, one.readings, one.slowed) == (None, 20, {THERMAL: 0.5})


def test_without_utilization_nothing_is_known_to_be_busy() -> None:
    one = of(readings(1, 20, clock=300 * MHZ, hot=100))
    assert (one.readings, one.busy, one.slowed) == (0, 0.0, {})
