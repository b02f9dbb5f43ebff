"""How much longer a step takes than in another run."""

from __future__ import annotations

import numpy as np
import pytest
from charged_lives import charged, span

from haiprof.views.run.ledger import Ledger
from haiprof.views.run.step_changes import step_change

STEPS = 120


def life(forward: float, noise: float = 0.0, steps: int = STEPS, seed: int = 0) -> Ledger:
    random, rows, at = np.random.default_rng(seed), [], 10.0
    for number in range(steps):
        took = forward + float(random.normal(0, noise)) if noise else forward
        rows += [
            span(at, took, "phase", "forward", number),
            span(at + took, 20, "phase", "backward", number),
            span(at, took + 20, "step", "step", number),
        ]
        at += took + 20
    return charged(rows, at + 10)


def test_what_takes_longer_is_known_by_cause_and_sums_up() -> None:
    change = step_change([life(30)], [life(45)])
    assert change is not None
    assert change.before == pytest.approx(50e6, rel=0.02)
    assert change.longer == pytest.approx(15e6, rel=0.02)
    then, now = change.causes["forward"]
    assert now - then == pytest.approx(15e6, rel=0.02)
    assert sum(after for _, after in change.causes.values()) == pytest.approx(change.after)
    assert change.low <= change.longer <= change.high


def test_chance_lies_within_the_interval() -> None:
    outside = 0
    for seed in range(40):
        change = step_change([life(30, 6, seed=seed)], [life(30, 6, seed=100 + seed)])
        assert change is not None
        outside += not change.low <= 0 <= change.high
    assert outside <= 8  # of few blocks the interval is too narrow now and then


def test_of_several_ranks_it_is_the_mean() -> None:
    change = step_change([life(30), life(40)], [life(50), life(40)])
    assert change is not None
    assert change.longer == pytest.approx(10e6, rel=0.02)


@pytest.mark.parametrize("short", ["before", "after"])
def test_a_run_that_is_too_short_says_nothing(short: str) -> None:
    runs = {"before": [life(30)], "after": [life(45)], short: [life(30, steps=20)]}
    assert step_change(runs["before"], runs["after"]) is None
