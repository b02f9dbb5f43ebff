"""What is left of spans and samples once they were removed, beside these.

Of a real job: tests/recorder/test_step_parts.py.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from haiprof import schema
from haiprof.sources import summed_up
from haiprof.sources.tables import polars_type
from haiprof.views.run import steps as step_views

MINUTE = 60 * 10**9


def frame(table: schema.Table, rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = {column.name: polars_type(column) for column in table.columns}
    return pl.DataFrame(rows, columns, orient="row")


def part(start: int, duration: int, kind: str, name: str, step: int, **more: Any) -> dict[str, Any]:
    row = {"start": start, "duration": duration, "kind": kind, "name": name, "step": step}
    return {**row, "count": 1, "last": None, **more}


def times(spans: pl.DataFrame) -> list[tuple[Any, ...]]:
    columns = spans.select("start", "duration", "category", "name", "step")
    return columns.with_columns(pl.col("category", "name").cast(pl.String)).rows()


PARTS = frame(
    schema.STEP_PARTS,
    [
        part(5, 20, "checkpoint", "checkpoint.load", 0),
        part(100, 50, "step", "step", 0),
        part(110, 15, "phase", "backward", 0, last=30),
        part(120, 15, "phase", "gradient_sync", 0),
        part(112, 3, "gc", "gc 0", 0),
        part(100, 20, "other", "other", 0, count=0),
        part(150, 60, "step", "step", 1),
        part(180, 20, "phase", "forward", 1, count=2, last=8),
        part(190, 10, "phase", "backward", 1, count=2, last=5),
        part(150, 30, "other", "other", 1, count=0),
        part(210, 40, "step", "step", 2),
        part(215, 10, "phase", "forward", 2),
    ],
)


def test_spans_of_parts_that_ran_once_are_as_they_were() -> None:
    spans, boundary = summed_up.spans(PARTS, 140, 7)
    assert boundary == 150
    assert times(spans) == [
        (5, 20, "checkpoint", "checkpoint.load", 0),
        (100, 50, "step", "step", 0),
        (110, 30, "phase", "backward", 0),
        (112, 3, "gc", "gc 0", 0),
        (120, 15, "phase", "gradient_sync", 0),
    ]
    assert spans["thread"].unique().to_list() == [7]


def test_parts_that_ran_several_times_stand_in_a_row() -> None:
    spans, boundary = summed_up.spans(PARTS, 10**6, 7)
    assert boundary == 10**6
    assert [row for row in times(spans) if row[4] == 1] == [
        (150, 60, "step", "step", 1),
        (150, 20, "phase", "forward", 1),
        (170, 10, "phase", "backward", 1),
    ]
    found = step_views.parts(spans, step_views.steps(spans)).sort("row", "name")
    assert found.rows() == [
        (0, "backward", 15),
        (0, "gradient_sync", 15),
        (0, "other", 20),
        (1, "backward", 10),
        (1, "forward", 20),
        (1, "other", 30),
        (2, "forward", 10),
        (2, "other", 30),
    ]


def test_nothing_summed_up_is_nothing_to_show() -> None:
    spans, boundary = summed_up.spans(PARTS.clear(), 50, 7)
    assert (spans.height, boundary) == (0, 50)
    minutes, boundary = summed_up.samples(frame(schema.MINUTES, []), 50)
    assert (minutes.height, boundary) == (0, MINUTE)


def test_newer_spans_are_those_of_later_steps_and_what_is_not_summed_up() -> None:
    categories = ["step", "phase", "op", "gc", "checkpoint", "step"]
    rows = pl.DataFrame(
        {"start": [1, 2, 3, 4, 5, 150], "category": pl.Series(categories, dtype=pl.Categorical)}
    )
    assert summed_up.newer(rows, 150)["start"].to_list() == [3, 150]


def test_minutes_become_their_mean_and_their_greatest_value() -> None:
    row = {"metric": "cpu", "instance": None, "count": 60, "min": 1.0, "flags": 2}
    minutes = frame(
        schema.MINUTES,
        [
            {**row, "time": 0, "mean": 3.0, "max": 9.0},
            {**row, "time": MINUTE, "mean": 4.0, "max": 4.0},
            {**row, "time": 2 * MINUTE, "mean": 5.0, "max": 6.0},
        ],
    )
    samples, boundary = summed_up.samples(minutes, MINUTE + 1)
    assert boundary == 2 * MINUTE
    assert samples.select("time", "value", "flags").rows() == [
        (MINUTE - 2, 3.0, 2),
        (MINUTE - 1, 9.0, 2),
        (2 * MINUTE - 2, 4.0, 2),
    ]
    taken = frame(
        schema.SAMPLES,
        [
            {"time": time, "metric": "cpu", "instance": None, "value": 1.0, "flags": 0}
            for time in (MINUTE, 2 * MINUTE - 1, 2 * MINUTE, 3 * MINUTE)
        ],
    )
    assert summed_up.newer(taken, boundary)["time"].to_list() == [2 * MINUTE, 3 * MINUTE]
