"""Interval algebra against a model that paints every instant by hand."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from haiprof.views.intervals import (
    Times,
    by_priority,
    covered,
    covered_per_group,
    distinct,
    innermost,
    intersect,
    merge,
    self_times,
    sharing,
    subtract,
)

Pairs = list[tuple[int, int]]
interval = st.tuples(st.integers(0, 30), st.integers(0, 30))
intervals = st.lists(interval, max_size=12)


def arrays(pairs: Pairs) -> tuple[Times, Times]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def painted(pairs: Pairs) -> set[int]:
    return {instant for start, end in pairs for instant in range(start, end)}


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=60))
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    given = np.array(values, np.int64)
    assert distinct(given).tolist() == np.unique(given).tolist()
    assert distinct(given).dtype == np.int64


@given(intervals)
def test_merged_intervals_cover_the_same_instants_and_never_touch(pairs: Pairs) -> None:
    start, end = merge(*arrays(pairs))
    result = list(zip(start.tolist(), end.tolist(), strict=True))
    assert painted(result) == painted(pairs)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(result))


@given(
    st.lists(st.tuples(st.integers(0, 3), interval), max_size=12),
    st.lists(interval, min_size=4, max_size=4),
)
def test_coverage_of_each_group_is_clipped_to_its_window(
    members: list[tuple[int, tuple[int, int]]], windows: Pairs
) -> None:
    windows = [(low, max(low, high)) for low, high in windows]
    start, end = arrays([pair for _, pair in members])
    group = np.array([g for g, _ in members], np.intp)
    covered = covered_per_group(group, start, end, *arrays(windows))
    for number, window in enumerate(windows):
        inside = painted([pair for g, pair in members if g == number]) & painted([window])
        assert covered[number] == len(inside)


def innermost_by_hand(pairs: Pairs) -> list[int]:
    own = [0] * len(pairs)
    for instant in range(31):
        open_ = [i for i, (start, end) in enumerate(pairs) if start <= instant < end]
        if open_:
            own[max(open_, key=lambda i: (pairs[i][0], -pairs[i][1], i))] += 1
    return own


@given(intervals)
def test_each_instant_belongs_to_the_innermost_interval(pairs: Pairs) -> None:
    assert self_times(*arrays(pairs)).tolist() == innermost_by_hand(pairs)


@st.composite
def calls(draw: st.DrawFn, low: int = 0, high: int = 40, depth: int = 4) -> Pairs:
    """Draw intervals nested as function calls are."""
    edges = sorted(draw(st.lists(st.integers(low, high), max_size=6)))
    rows: Pairs = []
    for start, end in zip(edges[::2], edges[1::2], strict=False):
        rows.append((start, end))
        if depth:
            rows += draw(calls(start, end, depth - 1))
    return rows


@given(calls())
def test_self_times_of_nested_calls_are_durations_less_the_calls_inside(pairs: Pairs) -> None:
    own = self_times(*arrays(pairs))
    assert own.sum() == len(painted(pairs))
    assert (own >= 0).all()


def test_nothing_gives_nothing() -> None:
    start, end = arrays([])
    assert self_times(start, end).tolist() == []
    assert merge(start, end)[0].tolist() == []


def test_times_as_large_as_epoch_nanoseconds_stay_exact() -> None:
    base = 1_700_000_000_000_000_001
    start = np.array([base, base + 1, base + 1], np.int64)
    end = np.array([base + 10, base + 4, base + 2], np.int64)
    assert self_times(start, end).tolist() == [7, 2, 1]


@given(intervals, intervals)
def test_shared_instants_are_those_in_both(one: Pairs, two: Pairs) -> None:
    start, end = intersect(*merge(*arrays(one)), *merge(*arrays(two)))
    pairs = list(zip(start.tolist(), end.tolist(), strict=True))
    assert painted(pairs) == painted(one) & painted(two)
    assert all(low < high for low, high in pairs)


@given(intervals, intervals)
def test_pairs_are_those_that_share_an_instant(some: Pairs, pairs: Pairs) -> None:
    start, end = merge(*arrays(pairs))
    theirs = list(zip(start.tolist(), end.tolist(), strict=True))
    mine, other = sharing(*arrays(some), start, end)
    expected = [
        (i, j)
        for i, one in enumerate(some)
        for j, two in enumerate(theirs)
        if painted([one]) & painted([two])
    ]
    assert list(zip(mine.tolist(), other.tolist(), strict=True)) == expected


@given(intervals, intervals)
def test_coverage_of_windows_that_overlap_is_that_of_each(pairs: Pairs, windows: Pairs) -> None:
    found = covered(*merge(*arrays(pairs)), *arrays(windows)).tolist()
    assert found == [len(painted(pairs) & painted([window])) for window in windows]


@given(intervals)
def test_pieces_belong_to_the_innermost_interval_and_never_overlap(pairs: Pairs) -> None:
    start, end, owner = (a.tolist() for a in innermost(*arrays(pairs)))
    own = [0] * len(pairs)
    for low, high, which in zip(start, end, owner, strict=True):
        assert pairs[which][0] <= low < high <= pairs[which][1]
        own[which] += high - low
    assert all(one <= two for one, two in zip(end, start[1:], strict=False))
    assert own == innermost_by_hand(pairs)


@given(intervals, intervals)
def test_what_is_subtracted_leaves_the_instants_of_the_first_alone(one: Pairs, two: Pairs) -> None:
    start, end = subtract(*merge(*arrays(one)), *merge(*arrays(two)))
    pairs = list(zip(start.tolist(), end.tolist(), strict=True))
    assert painted(pairs) == painted(one) - painted(two)
    assert all(low < high for low, high in pairs)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(pairs))


@given(st.lists(intervals, max_size=4), intervals)
def test_each_instant_of_a_window_belongs_to_the_first_role_that_has_it(
    roles: list[Pairs], windows: Pairs
) -> None:
    found = by_priority([arrays(role) for role in roles], *arrays(windows))
    assert found.shape == (len(roles) + 1, len(windows))
    for number, window in enumerate(windows):
        left = painted([window])
        assert found[:, number].sum() == len(left)
        for role, pairs in enumerate(roles):
            assert found[role, number] == len(left & painted(pairs))
            left -= painted(pairs)
        assert found[-1, number] == len(left)
