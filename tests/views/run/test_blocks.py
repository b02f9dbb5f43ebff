"""How sure a share is: blocks of steps, and intervals that hold what they should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haiprof.views.run import blocks

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("ns", "steps"),
    [(SECOND // 100, 100), (SECOND // 10, 10), (SECOND // 3, 10), (SECOND, 5), (4 * SECOND, 3)],
)
def test_a_block_has_ten_steps_and_a_second_or_three_and_five(ns: int, steps: int) -> None:
    found = blocks.edges(np.full(10 * steps, ns), np.ones(10 * steps, np.int64))
    assert found.tolist() == list(range(0, 10 * steps, steps))
    assert blocks.size(ns) == steps
    assert blocks.enough(10 * steps, 10 * steps * ns, 10)
    assert not blocks.enough(10 * steps - 1, (10 * steps - 1) * ns, 10)


def test_a_rest_belongs_to_the_last_block() -> None:
    found = blocks.edges(np.full(104, SECOND), np.ones(104, np.int64))
    assert found.tolist() == list(range(0, 100, 5))
    assert blocks.edges(np.full(3, SECOND), np.ones(3, np.int64)).tolist() == [0]


def test_a_long_run_has_a_bounded_number_of_blocks() -> None:
    found = blocks.edges(np.full(50_000, SECOND), np.ones(50_000, np.int64))
    assert len(found) == 500


def test_a_constant_share_is_certain() -> None:
    whole = np.full(100, SECOND)
    found = blocks.share(whole // 4, whole, blocks.edges(whole, np.ones(100, np.int64)))
    assert found == blocks.Share(0.25, 0.25, 0.25)


def test_of_few_blocks_nothing_is_certain() -> None:
    whole = np.full(10, SECOND)
    found = blocks.share(whole // 4, whole, blocks.edges(whole, np.ones(10, np.int64)))
    assert found == blocks.Share(0.25, 0.0, 1.0)
    nothing = np.zeros(0, np.int64)
    assert blocks.share(nothing, nothing, np.zeros(1, np.int64)) == blocks.Share(0.0, 0.0, 1.0)


def test_steps_that_go_together_widen_the_interval() -> None:
    whole = np.full(400, SECOND // 5)
    begins = blocks.edges(whole, np.ones(400, np.int64))
    apart = np.where(np.arange(400) % 2 == 0, SECOND // 50, 0)
    together = np.where(np.arange(400) // 40 % 2 == 0, SECOND // 50, 0)
    alone, joint = (blocks.share(part, whole, begins) for part in (apart, together))
    assert alone.share == joint.share == 0.05
    assert joint.high - joint.low > 5 * (alone.high - alone.low + 0.001)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(1, 50)), min_size=1, max_size=200))
def test_blocks_begin_at_the_first_step_and_ascend(groups: list[tuple[int, int]]) -> None:
    duration, count = (np.array(each, np.int64) for each in zip(*groups, strict=True))
    found = blocks.edges(duration, count)
    assert found[0] == 0
    assert (np.diff(found) > 0).all()
    part = duration // 3
    share = blocks.share(part, duration, found)
    if len(found) > 2:
        assert 0 <= share.low <= share.high <= 1
