"""What steps did, as the job states it, while it runs and afterwards."""

from __future__ import annotations

import json
import random

import polars as pl
import pytest
from exported import rows, statement, step_spans

from haiprof import schema
from haiprof.recorder.metrics.names import Names
from haiprof.recorder.metrics.node import PHASES
from haiprof.recorder.metrics.rank import Rank
from haiprof.recorder.metrics.work import Work
from haiprof.views.run import efficiency


@pytest.fixture
def rank() -> Rank:
    return Rank(Names(PHASES, 2))


def test_a_job_that_states_nothing_has_no_figures(rank: Rank) -> None:
    rank.read(step_spans(1.0, 1.0))
    assert rank.work.totals == {}
    rank.read(rows(schema.EVENTS, {"time": 0, "kind": "model", "attributes": "[1]"}))
    rank.read(statement(100.5, tokens_per_step=-1, parameters=float("inf")))
    rank.read(step_spans(1.0))
    assert rank.work.totals == {}


def test_a_statement_holds_from_its_step_on_and_the_first_before(rank: Rank) -> None:
    rank.read(step_spans(1.0, 1.0, 1.0, 1.0))  # they end at 101, 102, 103 and 104 s
    rank.read(statement(101.5, tokens_per_step=10, flops_per_token=3))
    rank.read(statement(103.5, tokens_per_step=100, flops_per_token=3))
    assert rank.work.totals == {"tokens": 10 + 10 + 10 + 100, "flops": 3 * 130}


def test_inference_is_not_counted(rank: Rank) -> None:
    rank.read(statement(1, samples_per_step=2))
    rank.read(step_spans(1.0, category="inference_step"))
    assert rank.work.totals == {}


def test_another_process_of_the_rank_states_its_own(rank: Rank) -> None:
    rank.read(statement(1, samples_per_step=2))
    rank.read(step_spans(1.0))
    rank.begin_process()
    rank.read(step_spans(1.0, 1.0))
    assert rank.work.totals == {"samples": 2}
    rank.read(statement(1, samples_per_step=5))
    rank.read(step_spans(1.0))
    assert rank.work.totals == {"samples": 2 + 15}


def test_totals_are_those_of_the_analysis() -> None:
    """Whatever was stated when, and however rows were written."""
    draw = random.Random(5)
    for _ in range(20):
        work, said, spans = Work(), [], []
        for step in range(30):
            if draw.random() < 0.3:
                at = step * 10 + draw.randrange(1, 10)
                values = {"tokens_per_step": draw.randrange(9), "flops_per_step": draw.randrange(9)}
                said.append((at, values))
            spans.append((step * 10, 10))
        waiting = list(said)
        begin = 0
        while begin < len(spans):  # a write of some steps: their statements come behind them
            some = spans[begin : begin + draw.randrange(1, 8)]
            begin += len(some)
            work.begin_rows()
            for start, duration in some:
                work.add_step(start + duration)
            while waiting and waiting[0][0] <= sum(some[-1]):
                work.state(*waiting.pop(0))
        frame = pl.DataFrame(
            {
                "start": [start for start, _ in spans],
                "duration": [duration for _, duration in spans],
                "category": ["step"] * len(spans),
                "name": [""] * len(spans),
            },
        )
        events = pl.DataFrame(
            {
                "time": [at for at, _ in said],
                "kind": ["model"] * len(said),
                "attributes": [json.dumps(values) for _, values in said],
            },
            schema={"time": pl.Int64, "kind": pl.String, "attributes": pl.String},
        )
        done = efficiency.work(frame, events)
        assert (work.totals.get("tokens"), work.totals.get("flops")) == (done.tokens, done.given)
