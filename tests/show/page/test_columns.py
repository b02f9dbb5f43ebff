"""Columns of the page: whatever goes in comes out, as far as the page can show it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_documents import decoded

from haiprof.show.page.columns import Columns

few = settings(max_examples=40, deadline=None)


def through(method: str, values: Any, **options: Any) -> npt.NDArray[np.float64]:
    """Return what the page gets of values that one method has packed."""
    columns = Columns()
    column = getattr(columns, method)(np.asarray(values), **options)
    return decoded(column, columns.encoded())


@few
@given(st.lists(st.floats(0, 1e6), max_size=200))
def test_times_are_exact_to_their_quantum_in_any_order(seconds: list[float]) -> None:
    for values in (sorted(seconds), seconds):
        assert np.abs(through("times", values) - np.array(values)).max(initial=0) < 0.000501


@few
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=50))
def test_times_of_any_kind_are_kept(seconds: list[float]) -> None:
    back = through("times", seconds, quantum=1e-6)
    near = np.isclose(back, seconds, rtol=1e-9, atol=1e-6, equal_nan=True)
    assert near.all()


@few
@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=200))
def test_numbers_have_four_digits(values: list[float]) -> None:
    back = through("numbers", values)
    assert np.isclose(back, values, rtol=5e-5, atol=1e-38, equal_nan=True).all()


@few
@given(st.lists(st.integers(-(2**53), 2**53), max_size=200))
def test_whole_numbers_are_exact(values: list[int]) -> None:
    assert through("integers", values).tolist() == values


@pytest.mark.parametrize("most", [254, 255, 65534, 65535, 2**32 - 2, 2**32 - 1, -(2**31)])
def test_the_number_that_stands_for_an_absent_one_is_a_number_where_it_was_one(most: int) -> None:
    assert through("integers", [0, most]).tolist() == [0, most]


@few
@given(st.lists(st.one_of(st.just(float("nan")), st.floats(-1e9, 1e9)), max_size=200))
def test_levels_are_a_65534th_of_the_range_apart(values: list[float]) -> None:
    back, real = through("levels", values), np.array(values, np.float64)
    assert (np.isnan(back) == np.isnan(real)).all()
    present = real[~np.isnan(real)]
    apart = np.ptp(present) / 65534 if len(present) else 0.0
    assert np.abs(back - real)[~np.isnan(real)].max(initial=0) <= apart * 0.51 + 1e-6


@pytest.mark.parametrize("method", ["times", "numbers", "integers", "levels"])
def test_empty_columns_have_no_items(method: str) -> None:
    assert through(method, np.zeros(0)).tolist() == []


def test_levels_of_the_whole_range_of_a_float_are_kept() -> None:
    values = [-1.7e308, 1.7e308, float("nan")]
    assert np.array_equal(through("levels", values), values, equal_nan=True)


def test_a_column_with_a_million_even_steps_takes_next_to_nothing() -> None:
    columns = Columns()
    column = columns.times(np.arange(1_000_000) * 0.25)
    blobs = columns.encoded()
    assert len(blobs[0]) < 5_000
    assert decoded(column, blobs)[-1] == 249_999.75


def test_each_section_has_its_own_blob_and_starts_at_an_aligned_byte() -> None:
    columns = Columns()
    first = columns.integers(np.array([1, 2, 3]))
    second = columns.times(np.array([0.0, 1e9]))
    columns.next_blob()
    third = columns.numbers(np.array([1.5]))
    columns.next_blob()
    columns.next_blob()
    blobs = columns.encoded()
    assert [column["blob"] for column in (first, second, third)] == [0, 0, 1]
    assert second["at"] == 8
    assert decoded(first, blobs).tolist() == [1, 2, 3]
    assert decoded(third, blobs).tolist() == [1.5]
