"""Slow steps and late ranks whose inputs are larger."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from recorded_cases import PHASES, STEPS, found, life, pair, rank, torch_lines

from haiprof.findings.finding import Finding

LARGE = range(5, STEPS, 10)


def of_slow(large: Sequence[int], times: float = 3.0, grows: float = 3.0) -> list[Finding]:
    """Return what is found of steps that are slow every ten steps, and the size of their inputs."""
    longer = {name: PHASES[name] * grows for name in ("forward", "backward")}
    elements = np.full(STEPS, 1000)
    elements[list(large)] = round(1000 * times)
    own = life(seldom=dict.fromkeys(LARGE, longer))
    return found(rank(own, torch_lines(100), elements=elements))


def test_slow_steps_with_larger_inputs() -> None:
    (finding,) = of_slow(LARGE)
    assert finding.kind == "uneven_input"
    assert finding.problem == (
        "10 of 100 steps are slow because their inputs are larger, 3 times the usual ones"
    )
    assert finding.evidence[-1].value == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("large", "times"), [(range(4, STEPS, 10), 3.0), (LARGE, 1.1), (range(5, 30, 10), 3.0)]
)
def test_slow_steps_for_another_reason(large: Sequence[int], times: float) -> None:
    assert [one.kind for one in of_slow(large, times)] == ["slow_batch"]


def test_larger_inputs_alone_are_no_finding() -> None:
    assert of_slow(LARGE, grows=1.0) == []


@pytest.mark.parametrize(("size", "said"), [(1300, True), (1000, False), (1050, False), (0, False)])
def test_a_late_rank_with_larger_inputs(size: int, said: bool) -> None:
    first, second = pair({"forward": 10.0, "backward": 20.0})
    sizes = [np.full(STEPS, 1000), np.full(STEPS if size else 0, size)]
    ranks = [
        dataclasses.replace(each, elements=elements)
        for each, elements in zip((first, second), sizes, strict=True)
    ]
    (finding,) = found(*ranks)
    assert (finding.kind, finding.ranks) == ("straggler", (1,))
    assert ("1.3 times as large as the others'" in finding.problem) == said
