"""The measured overhead: the newest counts, unknown is null, and words say it."""

from __future__ import annotations

import polars as pl
import pytest
import runs

from haiprof import schema
from haiprof.sources.tables import polars_type
from haiprof.views.run import overhead


def frame(rows: list[runs.Row]) -> pl.DataFrame:
    kinds = {c.name: polars_type(c) for c in schema.EVENTS.columns if c.name != "step"}
    return pl.DataFrame([{k: row.get(k) for k in kinds} for row in rows], schema=kinds)


def newest(rows: list[runs.Row]) -> runs.Row:
    return overhead.newest(frame(rows)).row(0, named=True)


def test_the_newest_measurement_counts() -> None:
    rows = [runs.measured(9, 0.004), runs.measured(5, 0.2), runs.event(10, "mark", "x")]
    assert newest(rows)["overhead"] == 0.004
    line = "measured overhead 0.4 % (95 %: 0.1 … 0.7 %)"
    assert overhead.in_words(newest(rows)) == line


def test_before_enough_windows_it_is_unknown() -> None:
    row = newest([runs.measured(5, None, windows=1)])
    assert (row["overhead"], row["low"], row["high"]) == (None, None, None)
    assert overhead.in_words(row) == "overhead not measured yet (1 window so far)"


def test_the_part_of_the_time_that_it_is_of_is_reported() -> None:
    row = newest([runs.measured(5, share=0.034)])
    assert overhead.in_words(row) == (
        "measured overhead 0.4 % (95 %: 0.1 … 0.7 %) in the 3.4 % of the time with kernels recorded"
    )


def test_where_there_is_nothing_to_compare_with_the_metered_part_is_reported() -> None:
    row = newest([runs.measured(5, None, windows=0, share=1, spent=0.0021, mode="all")])
    assert overhead.in_words(row) == "CUPTI and haiprof's thread took 0.21 % of the time"


def test_a_step_down_is_reported() -> None:
    row = newest([runs.measured(5, 0.09, stepped_down_to="off")])
    assert overhead.in_words(row) == (
        "measured overhead 9 % (95 %: 8.7 … 9.3 %), "
        "so kernels are now recorded less (--kernels off)"
    )


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_measurement_that_cannot_be_read_leaves_the_one_before(text: str | None) -> None:
    broken = {**runs.measured(9), "attributes": text}
    assert newest([runs.measured(5, 0.01), broken])["overhead"] == 0.01
    assert overhead.newest(frame([broken])).height == 0


def test_values_of_a_wrong_type_are_null() -> None:
    row = newest([runs.measured(5, 0.01, windows="12", budget=True, mode=3, cost_thread_ns=2**70)])
    assert (row["windows"], row["budget"], row["mode"], row["cost_thread_ns"]) == (None,) * 4
    assert row["overhead"] == 0.01


def test_without_measurements_there_is_no_row() -> None:
    assert overhead.newest(frame([])).schema == pl.Schema(overhead.SCHEMA)
