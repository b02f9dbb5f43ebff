"""What the rows of a rank add up to."""

from __future__ import annotations

import json

import pytest
from exported import parts, rows, step_spans

from haiprof import schema
from haiprof.recorder.metrics.names import Names
from haiprof.recorder.metrics.node import PHASES
from haiprof.recorder.metrics.rank import Rank


@pytest.fixture
def rank() -> Rank:
    return Rank(Names(PHASES, 2))


def test_steps_are_counted_by_how_long_they_took(rank: Rank) -> None:
    rank.read(step_spans(0.01, 0.3, 0.3, 61.0))
    assert rank.steps == 4
    assert rank.durations.counts == (1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1)
    assert rank.durations.total == pytest.approx(61.61)
    assert rank.last_step_ns == round(161.61e9)


def test_a_job_that_trains_has_only_steps_of_training(rank: Rank) -> None:
    rank.read(step_spans(0.3, 0.3, category="inference_step"))
    assert rank.steps == 2
    rank.read(step_spans(0.3))
    rank.read(step_spans(0.3, category="inference_step"))
    assert rank.steps == 1


def test_parts_of_steps_by_phase(rank: Rank) -> None:
    step = ("step", "step", 1.0)
    phases = ("phase", "forward", 0.25), ("phase", "backward", 0.5)
    rank.read(parts(step, *phases, ("user", "mine", 0.1), ("other", "other", 0.25)))
    assert rank.phases == {"forward": 250_000_000, "backward": 500_000_000, "other": 250_000_000}
    rank.read(parts(step, ("user", "mine", 0.75), ("other", "other", 0.25)))
    assert rank.phases["mine"] == 750_000_000, "without phases ranges are"


def test_pauses_are_counted_in_steps_or_not(rank: Rank) -> None:
    rank.read(parts(("checkpoint", "save", 2.0), ("step", "step", 1.0), ("gc", "gc", 0.5)))
    rank.read(parts(("compile", "compile", 0.25), ("gc", "gc", 0.5)))
    assert rank.pauses == {"checkpoint": 2_000_000_000, "gc": 10**9, "compile": 250_000_000}


def test_the_gpu_counts_only_in_steps_whose_kernels_are_known(rank: Rank) -> None:
    rank.read(parts(("device_step", "step", 1.0), ("device_phase", "forward", 0.5), device=0))
    assert rank.observed is None
    known = ("busy", "busy", 0.75), ("exposed", "exposed", 0.25)
    rank.read(parts(("device_step", "step", 1.0), *known, device=0))
    assert (rank.observed, rank.busy, rank.exposed) == (10**9, 750_000_000, 250_000_000)
    assert rank.device_phases == {"forward": 500_000_000}


def test_waits_are_by_what_the_group_is_for(rank: Rank) -> None:
    purpose = json.dumps({"ranks": [0, 1], "purpose": "TENSOR_MODEL_PARALLEL_GROUP"})
    rank.read(rows(schema.EVENTS, {"time": 1, "kind": "group", "text": "7", "attributes": purpose}))
    for group, side in (("7", "wait"), ("7", "host"), ("mesh_dp", "wait"), (None, "wait")):
        rank.read(rows(schema.COLLECTIVES, {"side": side, "duration": 5, "group": group}))
    assert rank.waits == {"tp": 5, "dp": 5, "other": 5}


@pytest.mark.parametrize(
    ("about", "share"),
    [
        ('{"overhead": 0.02, "share": 0.5}', 0.01),
        ('{"overhead": null, "share": 1.0, "spent": 0.25}', 0.25),
        ('{"overhead": "x", "spent": []}', None),
        ("[" * 100_000, None),
        ("7", None),
        (None, None),
    ],
)
def test_the_overhead_is_what_was_measured_last(
    rank: Rank, about: str | None, share: float | None
) -> None:
    rank.read(rows(schema.EVENTS, {"time": 1, "kind": "budget", "attributes": about}))
    assert rank.overhead == share


def test_own_time_is_without_waiting(rank: Rank) -> None:
    rank.read(parts(("step", "step", 1.0), ("wait", "all_reduce", 0.75), step=7))
    rank.read(parts(("step", "step", 1.0), ("wait", "all_reduce", 2.0), step=8))
    sync = ("phase", "gradient_sync", 0.5)
    rank.read(parts(("step", "step", 1.0), sync, ("wait", "all_reduce", 0.25), step=9))
    assert list(rank.own) == [(7, 250_000_000), (8, 0), (9, 500_000_000)]
