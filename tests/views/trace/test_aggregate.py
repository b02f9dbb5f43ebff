"""Rows grouped and intervals united by the core, against dictionaries and sets of instants."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haiprof import _core

#: Few values, so that keys repeat; the largest, so that three columns are more than a word.
VALUES = st.sampled_from([0, 1, 2, 255, 65_535, 2**32 - 1, 2**64 - 1, 2**63])


def columns_of(rows: list[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
    types = (np.uint64, np.uint16, np.uint64, np.uint8)
    return [
        np.array([row[i] & np.iinfo(kind).max for row in rows], kind)
        for i, kind in enumerate(types)
    ]


def check(columns: list[npt.NDArray[Any]], values: npt.NDArray[Any]) -> None:
    groups = _core.Groups(columns)
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    wanted: dict[tuple[int, ...], list[int]] = {}
    for row, key in enumerate(keys):
        wanted.setdefault(key, []).append(row)
    wanted = dict(sorted(wanted.items()))
    assert len(groups) == len(wanted)
    assert groups.order.tolist() == [row for rows in wanted.values() for row in rows]
    assert np.diff(groups.first).tolist() == [len(rows) for rows in wanted.values()]
    sums = groups.keys(np.arange(len(groups), dtype=np.uint32)[::-1].copy())
    assert [column.dtype for column in sums] == [column.dtype for column in columns]
    assert list(zip(*(column.tolist() for column in sums), strict=True)) == list(wanted)[::-1]
    of = [[int(values[row]) for row in rows] for rows in wanted.values()]
    assert groups.total(values).tolist() == [sum(each) for each in of]
    chosen = np.arange(len(groups), dtype=np.uint32)[1::2].copy()
    sums = [array.tolist() for array in groups.sum_up(values, chosen)]
    assert sums == [[how(each) for each in of[1::2]] for how in (len, sum, min, max)]


@given(st.lists(st.tuples(VALUES, VALUES, VALUES, VALUES), max_size=80))
def test_rows_of_equal_keys_are_one_group(rows: list[tuple[int, ...]]) -> None:
    check(columns_of(rows), np.arange(len(rows), dtype=np.int64) * 7 - 100)


@pytest.mark.parametrize("distinct", [3, 2**40])
def test_many_rows_on_several_processors(distinct: int) -> None:
    random = np.random.default_rng(distinct)
    rows = 300_000
    second = random.integers(0, distinct, rows).astype(np.uint64)
    first = random.geometric(0.1, rows).astype(np.uint16)
    values = random.integers(-(10**9), 10**9, rows)
    groups = _core.Groups([first, second])
    order = np.lexsort((second, first))
    assert np.array_equal(groups.order, order)
    first, second = first[order], second[order]
    begins = np.flatnonzero(np.append(True, (np.diff(first) != 0) | (np.diff(second) != 0)))
    assert np.array_equal(groups.first, np.append(begins, rows))
    keys = groups.keys(np.arange(len(groups), dtype=np.uint32))
    assert np.array_equal(keys[0], first[begins])
    assert np.array_equal(keys[1], second[begins])
    assert np.array_equal(groups.total(values), np.add.reduceat(values[order], begins))
    chosen = random.permutation(len(groups)).astype(np.uint32)
    count, *sums = groups.sum_up(values, chosen)
    assert np.array_equal(count, np.diff(groups.first)[chosen])
    for column, by in zip(sums, (np.add, np.minimum, np.maximum), strict=True):
        assert np.array_equal(column, by.reduceat(values[order], begins)[chosen])


def test_codes_are_grouped_by_the_keys_that_they_stand_for() -> None:
    codes, place = np.array([0, 2, 1, 0, 2], np.uint32), np.array([7, 3, 7], np.uint32)
    groups = _core.Groups([(codes, place)])
    assert groups.order.tolist() == [2, 0, 1, 3, 4]
    (keys,) = groups.keys(np.array([1, 0], np.uint32))
    assert keys.dtype == np.uint32
    assert keys.tolist() == [7, 3]
    with pytest.raises(IndexError, match="code"):
        _core.Groups([(codes, place[:2])])
    with pytest.raises(ValueError, match="length"):
        _core.Groups([np.zeros(3, np.uint8), (codes, place)])


def test_what_is_no_column_of_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="unsigned"):
        _core.Groups([np.zeros(3, np.int64)])
    with pytest.raises(ValueError, match="length"):
        _core.Groups([np.zeros(3, np.uint8), np.zeros(2, np.uint8)])
    groups = _core.Groups([np.zeros(3, np.uint8)])
    with pytest.raises(IndexError):
        groups.keys(np.array([1], np.uint32))
    with pytest.raises(IndexError):
        groups.sum_up(np.zeros(3, np.int64), np.array([1], np.uint32))
    with pytest.raises(ValueError, match="length"):
        groups.sum_up(np.zeros(2, np.int64), np.zeros(1, np.uint32))
    with pytest.raises(ValueError, match="length"):
        groups.total(np.zeros(2, np.int64))


@pytest.mark.parametrize("rows", [0, 1, 50, 300_000])
def test_codes_are_found_and_looked_up(rows: int) -> None:
    codes = np.random.default_rng(rows).integers(5, 40, rows).astype(np.uint32)
    first = _core.first_rows(codes)
    assert len(first) == (int(codes.max()) + 1 if rows else 0)
    known, at = np.unique(codes, return_index=True)
    assert np.flatnonzero(first < rows).tolist() == known.tolist()
    assert first[known].tolist() == at.tolist()
    assert np.all(np.delete(first, known) == 2**32 - 1)
    for kind in (np.uint8, np.int32):
        table = np.arange(40, dtype=kind)[::-1].copy()
        assert np.array_equal(_core.look_up(codes, table), table[codes])
    if rows:
        with pytest.raises(IndexError):
            _core.look_up(codes, np.zeros(codes.max(), np.uint8))


spans = st.lists(
    st.tuples(st.integers(0, 300), st.integers(-2, 9), st.integers(0, 3)), max_size=200
)


@given(spans)
def test_intervals_of_each_set_are_united(rows: list[tuple[int, int, int]]) -> None:
    start, length, which = np.array(rows, np.int64).reshape(-1, 3).T
    sets = _core.unite(start.copy(), start + length, which.astype(np.uint8), 3)
    for number, (begin, end) in enumerate(sets):
        painted = {
            instant
            for at, lasts, of in rows
            if of == number
            for instant in range(at, at + max(lasts, 0))
        }
        assert np.all(begin < end)
        assert np.all(begin[1:] > end[:-1])
        assert {i for a, b in zip(begin, end, strict=True) for i in range(a, b)} == painted
        instants = np.array([150, 0, 400, 150, 77], np.int64)
        before = _core.covered_before([(begin, end)], instants)
        assert before.tolist() == [sum(each < at for each in painted) for at in instants.tolist()]
        for other_begin, other_end in sets:
            both = _core.unite_two(begin, end, other_begin, other_end)
            all_ = np.concatenate((begin, other_begin)), np.concatenate((end, other_end))
            again = _core.unite(*all_, np.zeros(len(all_[0]), np.uint8), 1)[0]
            assert [side.tolist() for side in both] == [side.tolist() for side in again]
    united = _core.unite(start.copy(), start + length, np.zeros(len(start), np.uint8), 1)
    all_three = _core.unite(start.copy(), start + length, which.astype(np.uint8) % 3, 3)
    at = np.arange(-3, 320, dtype=np.int64)
    assert np.array_equal(_core.covered_before(all_three, at), _core.covered_before(united, at))
