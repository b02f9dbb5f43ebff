"""From which step on steps take longer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_cases import life

from haiprof.views.run import slower


def with_forward(values: Any) -> Any:
    return life(
        seldom={n: {"forward": float(ms)} for n, ms in enumerate(values)}, steps=len(values)
    )


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(30, 170), st.floats(1.3, 4))
def test_the_step_is_found_where_it_is(seed: int, at: int, factor: float) -> None:
    values = np.random.default_rng(seed).normal(100, 3, 200)
    values[at:] *= factor
    found = slower.since(with_forward(values))
    assert found is not None
    assert abs(found - at) <= 1
    assert not slower.grows(with_forward(values), found)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.floats(40, 400))
def test_steps_that_take_longer_and_longer_are_distinguished(seed: int, more: float) -> None:
    values = np.random.default_rng(seed).normal(100, 3, 200) + np.linspace(0, more, 200)
    found = slower.since(with_forward(values))
    assert found is None or slower.grows(with_forward(values), found)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["noise", "turns", "burst", "faster"]))
def test_what_is_no_step_is_none(seed: int, shape: str) -> None:
    values = np.random.default_rng(seed).normal(100, 5, 200)
    if shape == "turns":
        values[::2] += 60
    elif shape == "burst":
        values[60:110] *= 2
    elif shape == "faster":
        values[100:] /= 2
    assert slower.since(with_forward(values)) is None


@pytest.mark.parametrize("steps", [0, 20])
def test_few_steps_say_nothing(steps: int) -> None:
    values = np.full(steps, 100.0)
    values[steps // 2 :] *= 3
    assert slower.since(with_forward(values)) is None


def test_a_queue_for_the_cpu_varies_by_itself() -> None:
    values = [100.0] * 50 + [200.0] * 50
    every = [(1000 * n + 1000, 30.0) for n in range(25)]
    own = life(seldom={n: {"forward": ms} for n, ms in enumerate(values)}, queue=every)
    assert own.of("cpu_queue").sum() >= 0.1 * own.stepped
    assert slower.since(own) is None
