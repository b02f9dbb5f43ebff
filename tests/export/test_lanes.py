"""Beginnings and ends in the order of a stack: intervals nest, touch, cross, take no time."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from haiprof.export.lanes import brackets, lanes, pieces

_INTERVALS = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 8)), max_size=14)


@given(_INTERVALS)
def test_every_interval_is_on_one_lane_and_nests_there(intervals: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in intervals], np.int64)
    end = start + np.array([duration for _, duration in intervals], np.int64)
    seen: list[int] = []
    for rows in lanes(start, end):
        first, last = start[rows].tolist(), end[rows].tolist()
        stack: list[int] = []
        now = -1
        for row, is_end in zip(
            *(a.tolist() for a in brackets(start[rows], end[rows])), strict=True
        ):
            time = last[row] if is_end else first[row]
            assert time >= now
            now = time
            if is_end:
                assert stack.pop() == row
            else:
                assert all(
                    first[outer] <= first[row] <= last[row] <= last[outer] for outer in stack
                )
                stack.append(row)
        assert not stack
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(intervals)))


def test_what_nests_or_touches_needs_one_lane() -> None:
    start = np.array([0, 0, 2, 5, 5, 10, 10])
    end = np.array([10, 5, 4, 10, 7, 10, 12])
    (rows,) = lanes(start, end)
    assert len(rows) == len(start)


def test_only_what_crosses_leaves_the_first_lane() -> None:
    start, end = np.array([0, 5, 6, 20]), np.array([10, 15, 8, 30])
    assert [rows.tolist() for rows in lanes(start, end)] == [[0, 2, 3], [1]]


@given(_INTERVALS, st.integers(1, 5))
def test_nothing_goes_on_where_pieces_are_cut(intervals: list[tuple[int, int]], size: int) -> None:
    start = np.array([begin for begin, _ in intervals], np.int64)
    end = start + np.array([duration for _, duration in intervals], np.int64)
    parts = list(pieces(start, end, np.arange(len(start)), size))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(start)))
    assert len(parts) <= len(start) / size + 1
    for before, after in itertools.pairwise(parts):
        assert end[before].max() <= start[after].min()


def test_pieces_are_as_small_as_pauses_let_them_be() -> None:
    start = np.arange(100) * 10
    many = pieces(start, start + 10, np.arange(100), 8)
    assert [len(piece) for piece in many] == [8] * 12 + [4]
    assert [len(piece) for piece in pieces(start, start + 11, np.arange(100), 8)] == [100]
