"""Inference steps: an evaluation if the process trained, its steps if it did not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer

INFERRED = 3
#: How long the inference steps take together, ms.
BEFORE = 10 * INFERRED


def inferred() -> list[runs.Row]:
    """Inference steps of 10 ms, with 2 ms of loading and 7 ms of forward each."""
    rows = []
    for number in range(INFERRED):
        at, step = 10.0 * number, schema.INFERENCE + number
        rows += [
            runs.span(at, 2, "phase", "dataloader", step),
            runs.span(at + 2, 7, "phase", "forward", step),
            runs.span(at, 10, "inference_step", "inference_step", step),
        ]
    return rows


def write(run: Path, spans: list[runs.Row]) -> Analyzer:
    folder = runs.write_process(runs.write_run(run))
    runs.write_closed(folder, schema.SPANS, spans)
    marks = [
        runs.event(0.005, "mark", "one", schema.INFERENCE),
        runs.event(0.035, "mark", "two", 0 if len(spans) > 3 * INFERRED else None),
    ]
    runs.write_closed(folder, schema.EVENTS, marks)
    device = [runs.device_span(3, 5, "forward", schema.INFERENCE)]
    runs.write_closed(folder, schema.DEVICE_SPANS, device)
    return Analyzer(run)


@pytest.fixture
def only(tmp_path: Path) -> Analyzer:
    return write(tmp_path / "only", inferred())


@pytest.fixture
def trained(tmp_path: Path) -> Analyzer:
    later = [dict(row, start=row["start"] + round(BEFORE * runs.MS)) for row in runs.loop(4)]
    return write(tmp_path / "trained", inferred() + later)


def sums(run: Analyzer) -> dict[tuple[int, str], int]:
    found = run.phases().select("step", pl.col("name").cast(pl.String), "duration")
    return {(step, name): ns // runs.MS for step, name, ns in found.iter_rows()}


def test_a_process_that_only_infers_has_its_inference_steps(only: Analyzer) -> None:
    assert only.steps()["step"].to_list() == [0, 1, 2]
    assert sums(only)[1, "forward"] == 7
    assert sums(only)[1, "dataloader"] == 2
    assert sums(only)[1, "other"] == 1
    assert only.events()["step"].to_list() == [0, None]
    assert only.device_spans()["step"].to_list() == [0]
    assert only.spans(category="step").height == INFERRED


def test_a_training_counts_none_of_the_inference_before_it(trained: Analyzer) -> None:
    assert trained.steps()["step"].to_list() == [0, 1, 2, 3]
    assert trained.steps()["start"][0] == runs.T0 + BEFORE * runs.MS
    assert sums(trained)[0, "forward"] == 4
    assert trained.phases().filter(pl.col("name") == "forward")["count"].to_list() == [1] * 4
    assert trained.spans(category="step").height == 4
    assert trained.spans(category="inference_step")["step"].to_list() == [None] * INFERRED


def test_what_it_inferred_is_an_evaluation_outside_steps(trained: Analyzer) -> None:
    outside = trained.spans(category="phase").filter(pl.col("step").is_null())
    names = outside["name"].cast(pl.String).to_list()
    assert names == ["eval_dataloader", "eval"] * INFERRED
    assert trained.events()["step"].to_list() == [None, 0]
    device = trained.device_spans()
    assert (device["step"].to_list(), str(device["name"][0])) == ([None], "eval")


def test_a_part_of_a_run_knows_what_the_whole_process_did(trained: Analyzer) -> None:
    assert trained.between(0, BEFORE / 1e3).steps().height == 0
