"""Which span runs in which, against a model that asks of every instant who was there last."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haiprof import _core

Span = tuple[int, int, int, int]
#: Thread, group, start, length: few of each, so that spans tie, touch, nest and cross.
span = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 12), st.integers(0, 12))
spans_of_calls = st.lists(span, max_size=14)


def ordered(spans: list[Span]) -> list[tuple[int, int, int, int]]:
    """Thread, group, start, end, in the order that nesting takes."""
    rows = [(thread, group, start, start + length) for thread, group, start, length in spans]
    return sorted(rows, key=lambda row: (row[0], row[2], -row[3], row[1]))


def nest(rows: list[Span]) -> tuple[list[int], list[int], list[int], int]:
    thread, group, start, end = np.array(rows, np.int64).reshape(-1, 4).T
    parent, own, last, crossing = _core.nest(
        thread.astype(np.uint32), group.astype(np.uint8), start.copy(), end.copy()
    )
    return parent.tolist(), own.tolist(), last.tolist(), crossing


def open_at(rows: list[Span], row: int, before: int) -> list[int]:
    """The rows before ``before`` of its thread and group that are open when ``row`` starts."""
    thread, group, start, _ = rows[row]
    return [
        other
        for other in range(before)
        if rows[other][:2] == (thread, group) and rows[other][2] <= start < rows[other][3]
    ]


@given(spans_of_calls)
def test_the_parent_is_the_last_of_those_open(spans: list[Span]) -> None:
    rows = ordered(spans)
    parent, _, _, crossing = nest(rows)
    assert parent == [max(open_at(rows, row, row), default=-1) for row in range(len(rows))]
    assert crossing == sum(p >= 0 and rows[row][3] > rows[p][3] for row, p in enumerate(parent))


@given(spans_of_calls)
def test_each_instant_is_the_last_ones_own(spans: list[Span]) -> None:
    rows = ordered(spans)
    _, own, _, _ = nest(rows)
    painted = [0] * len(rows)
    for thread in (0, 1):
        for group in range(3):
            for instant in range(25):
                there = [
                    row
                    for row, (t, g, start, end) in enumerate(rows)
                    if (t, g) == (thread, group) and start <= instant < end
                ]
                if there:
                    painted[max(there)] += 1
    assert own == painted


@given(spans_of_calls)
def test_what_ran_within_lies_together(spans: list[Span]) -> None:
    rows = ordered(spans)
    parent, _, last, _ = nest(rows)

    def inside(row: int, outer: int) -> bool:
        while row not in (-1, outer):
            row = parent[row]
        return row == outer

    for outer in range(len(rows)):
        within = [row for row in range(len(rows)) if inside(row, outer)]
        mine = [row for row in range(outer, last[outer]) if rows[row][:2] == rows[outer][:2]]
        assert mine == within


@given(spans_of_calls)
def test_the_order_is_by_thread_start_and_longest_first(spans: list[Span]) -> None:
    rows = [(thread, group, start, start + length) for thread, group, start, length in spans]
    thread, group, start, end = np.array(rows, np.int64).reshape(-1, 4).T
    order = _core.nesting_order(
        thread.astype(np.uint32), start.copy(), end.copy(), group.astype(np.uint8)
    )
    keys = [(row[0], row[2], -row[3], row[1], place) for place, row in enumerate(rows)]
    assert order.tolist() == [key[-1] for key in sorted(keys)]


@given(spans_of_calls, st.data())
def test_the_nearest_is_itself_or_climbed_to(spans: list[Span], data: st.DataObject) -> None:
    parent, _, _, _ = nest(ordered(spans))
    chosen = data.draw(st.lists(st.booleans(), min_size=len(parent), max_size=len(parent)))
    found = _core.nearest(np.array(parent, np.int32), np.array(chosen, np.bool_))

    def climb(row: int) -> int:
        while row >= 0 and not chosen[row]:
            row = parent[row]
        return row

    assert found.tolist() == [climb(row) for row in range(len(parent))]


Pieces = list[tuple[int, int, int]]


def cut(rows: list[Span], chosen: list[bool], windows: list[tuple[int, int]]) -> Pieces:
    thread, _, start, end = np.array(rows, np.int64).reshape(-1, 4).T
    low, high = np.array(windows, np.int64).reshape(-1, 2).T
    pieces = _core.innermost_within(
        thread.astype(np.uint32),
        start.copy(),
        end.copy(),
        np.array(chosen, np.bool_),
        low.copy(),
        high.copy(),
    )
    return list(zip(*(column.tolist() for column in pieces), strict=True))


def assert_in_order(pieces: Pieces, windows: list[tuple[int, int]]) -> None:
    """By time, each within one window, and no two that are one."""
    assert all(a < b for a, b, _ in pieces)
    assert all(any(low <= a and b <= high for low, high in windows) for a, b, _ in pieces)
    ends = [high for _, high in windows]
    for before, after in itertools.pairwise(pieces):
        assert before[1] <= after[0]
        assert before[1:] != (after[0], after[2]) or before[1] in ends


@given(spans_of_calls, st.data())
def test_each_piece_is_of_the_innermost_chosen(spans: list[Span], data: st.DataObject) -> None:
    rows = ordered([(thread, 0, start, length) for thread, _, start, length in spans])
    while nest(rows)[3]:
        parent = nest(rows)[0]
        rows = [
            (thread, 0, start, min(end, rows[p][3]) - start if p >= 0 else end - start)
            for (thread, _, start, end), p in zip(rows, parent, strict=True)
        ]
        rows = ordered(rows)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    windows = data.draw(st.sampled_from([[(0, 100)], [(3, 5), (9, 10)], [(0, 7), (7, 30)]]))
    pieces = cut(rows, chosen, windows)
    assert_in_order(pieces, windows)
    innermost = {}
    for row, (_, _, start, end) in enumerate(rows):
        for instant in range(start, end):
            if chosen[row] and any(low <= instant < high for low, high in windows):
                youngest = innermost.get(instant, row)
                innermost[instant] = max(youngest, row, key=lambda each: (rows[each][2], each))
    assert {instant: row for a, b, row in pieces for instant in range(a, b)} == innermost


def test_a_span_that_crosses_another_ends_with_it() -> None:
    rows = [(0, 0, 0, 10), (0, 0, 5, 15)]
    assert cut(rows, [True, True], [(0, 15)]) == [(0, 5, 0), (5, 10, 1)]
    assert cut(rows, [False, True], [(0, 15)]) == [(5, 15, 1)]


instants = st.integers(0, 24)


@given(
    st.lists(st.tuples(instants, instants, st.integers(0, 4)), max_size=12),
    st.lists(instants, min_size=5, max_size=5),
    st.lists(instants, max_size=8, unique=True),
)
def test_each_instant_of_a_window_is_shared_out_to_who_began_last(
    intervals: Pieces, begun: list[int], edges: list[int]
) -> None:
    edges = sorted(edges)[: len(edges) // 2 * 2]
    windows = list(zip(edges[::2], edges[1::2], strict=True))
    start, end, row = np.array(intervals, np.int64).reshape(-1, 3).T
    low, high = np.array(windows, np.int64).reshape(-1, 2).T
    found = _core.share_out(
        start.copy(), end.copy(), row.astype(np.int32), np.array(begun), low.copy(), high.copy()
    )
    pieces = list(zip(*(column.tolist() for column in found), strict=True))
    assert_in_order(pieces, windows)
    innermost = {}
    for instant in (i for a, b in windows for i in range(a, b)):
        mine = [(begun[owner], owner) for a, b, owner in intervals if a <= instant < b]
        if mine:
            innermost[instant] = max(mine)[1]
    assert {i: owner for a, b, owner in pieces for i in range(a, b)} == innermost


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="differ in length"):
        _core.nest(np.zeros(1, np.uint32), np.zeros(1, np.uint8), one, two)
    with pytest.raises(ValueError, match="0 to 3"):
        _core.nest(np.zeros(1, np.uint32), np.full(1, 4, np.uint8), one, one)
    with pytest.raises(ValueError, match="differ in length"):
        _core.nesting_order(np.zeros(2, np.uint32), one, one, np.zeros(1, np.uint8))
    none, first, thread = np.zeros(2, np.bool_), np.zeros(1, np.int32), np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="differ in length"):
        _core.nearest(first, none)
    with pytest.raises(ValueError, match="differ in length"):
        _core.innermost_within(thread, one, one, none, one, one)
    with pytest.raises(ValueError, match="differ in length"):
        _core.innermost_within(thread, one, one, none[:1], one, two)
    with pytest.raises(ValueError, match="differ in length"):
        _core.share_out(one, two, first, one, one, one)
    with pytest.raises(ValueError, match="differ in length"):
        _core.share_out(one, one, first, one, one, two)
    with pytest.raises(ValueError, match="of no row"):
        _core.share_out(one, one, first, one[:0], one, one)
