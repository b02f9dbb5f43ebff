"""The span around a span, against climbing level by level; calls that make each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.linking import ancestors
from haiprof.views.trace.linking.linked import link
from haiprof.views.trace.operators import operators


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The parent of each span, mostly the one before it, and a value of each."""
    count = draw(st.integers(1, 60))
    back = draw(st.lists(st.sampled_from([1, 1, 1, 1, 2, 5, 99]), min_size=count, max_size=count))
    values = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return [max(row - by, -1) for row, by in enumerate(back)], values


@given(trees(), st.integers(0, 3), st.sampled_from([0, 1, 128]))
def test_the_nearest_beyond_a_bound_is_found(
    tree: tuple[list[int], list[int]], bound: int, usual: int
) -> None:
    parent, values = tree
    rows = [*range(len(parent)), -1]
    expected = []
    for row in rows:
        while row >= 0 and values[row] <= bound:
            row = parent[row]
        expected.append(row)
    before = ancestors._USUAL_DEPTH
    ancestors._USUAL_DEPTH = usual
    try:
        found = ancestors.first_beyond(
            np.array(parent, np.int32), np.array(rows), np.array(values), np.full(len(rows), bound)
        )
    finally:
        ancestors._USUAL_DEPTH = before
    assert found.tolist() == expected


@given(trees(), st.integers(0, 3))
def test_the_nearest_wanted_is_found(tree: tuple[list[int], list[int]], bound: int) -> None:
    parent, values = tree
    rows = [-1, *reversed(range(len(parent)))]
    expected = []
    for row in rows:
        while row >= 0 and values[row] <= bound:
            row = parent[row]
        expected.append(row)
    found = ancestors.climb(np.array(parent, np.int32), np.array(rows), np.array(values) > bound)
    assert found.tolist() == expected


def test_nothing_is_around_where_there_is_nothing() -> None:
    none = np.zeros(0, np.int32)
    assert ancestors.climb(none, np.array([-1, -1]), none > 0).tolist() == [-1, -1]


def test_python_functions_that_call_each_other_are_nested_as_their_times_say() -> None:
    rows = [
        {"name": "f", "start": 0, "duration": 100, "python_id": 1, "python_parent": 2},
        {"name": "g", "start": 10, "duration": 50, "python_id": 2, "python_parent": 1},
        {"name": "h", "start": 20, "duration": 10, "python_id": 3, "python_parent": 1},
    ]
    linked = link(spans_of([{"category": "python", **row} for row in rows]), kernels_of([]))
    assert linked.parent.tolist() == [-1, 0, 0]
    assert operators(linked).height == 0


def test_an_operator_that_calls_itself_very_often_is_one_call() -> None:
    depth = 20_000
    rows = [{"name": "f", "start": n, "duration": 2 * (depth - n)} for n in range(depth)]
    linked = link(spans_of(rows), kernels_of([]))
    assert linked.parent.tolist() == list(range(-1, depth - 1))
    frame = operators(linked)
    assert frame.select("calls", "host_self", "host_total").rows() == [(1, 2 * depth, 2 * depth)]
