"""Parts of the steps of many ranks: what is stored of them, and the waiting that is subtracted."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haiprof.views.intervals import Times
from haiprof.views.run.rank_parts import PARTS, RankParts, most_steps, packed
from haiprof.views.run.step_parts import NEVER, PartTable

SCHEMA = {name: kind for name, kind in PARTS.items() if name != "rank"}
Row = tuple[int, str, int, int | None, int | None]


def rank_parts(**ranks: list[Row]) -> RankParts:
    parts = RankParts()
    for rank, rows in ranks.items():
        parts.add(rank, pl.DataFrame(rows, SCHEMA, orient="row"))
    return parts


def durations(parts: RankParts) -> list[list[list[float]]]:
    values: list[list[list[float]]] = parts.durations(1).tolist()
    return values


def test_only_steps_and_parts_that_are_known_are_held() -> None:
    parts = rank_parts(
        a=[(1, "forward", 5, 0, 5), (2, "forward", 6, 5, 11), (2, "other", 1, None, None)],
        b=[(2, "forward", 7, 5, 12), (3, "forward", 8, 12, 20)],
        c=[],
    )
    assert (parts.ranks, parts.names) == (["a", "b"], ["forward", "other"])
    assert parts.shared_steps().tolist() == [2]
    assert durations(parts) == [[[6, 1]], [[7, 0]]]
    assert RankParts().durations(1).shape == (0, 0, 0)


def test_waiting_for_the_last_is_taken_away_where_all_leave_together() -> None:
    parts = rank_parts(
        a=[(0, "forward", 10, 0, 10), (0, "backward", 35, 10, 45), (0, "optimizer", 5, 45, 50)],
        b=[(0, "forward", 30, 0, 30), (0, "backward", 15, 30, 45), (0, "optimizer", 9, 45, 54)],
    )
    parts.leave_waiting_out()
    assert parts.names == ["backward", "forward", "optimizer"]
    assert durations(parts) == [[[15, 10, 5]], [[15, 30, 9]]]


def test_what_is_no_span_tells_of_no_waiting() -> None:
    rows: dict[str, list[Row]] = {
        "a": [(0, "forward", 10, 0, 10), (0, "backward", 35, None, None)],
        "b": [(0, "forward", 30, 0, 30), (0, "backward", 15, None, None)],
    }
    parts = rank_parts(**rows)
    parts.leave_waiting_out()
    assert durations(parts) == [[[35, 10]], [[15, 30]]]
    assert parts.spanned("a", 0, 0) == (0, 10, 1)
    assert parts.spanned("a", 1, None) == (0, 0, 0)


def test_a_part_is_left_out_where_all_tell_it_and_else_folded_into_another() -> None:
    apart: list[Row] = [(0, "backward", 4, 0, 4), (0, "sync", 3, 4, 7), (1, "sync", 2, 8, 10)]
    everybody = rank_parts(a=apart, b=apart)
    everybody.fold("sync", "backward")
    assert (everybody.names, durations(everybody)[0]) == (["backward"], [[4], [0]])
    mixed = rank_parts(a=apart, b=[(0, "backward", 9, 0, 9), (1, "backward", 1, 9, 10)])
    mixed.fold("sync", "backward")
    assert durations(mixed) == [[[7], [2]], [[9], [1]]]
    assert mixed.spanned("a", None, None) == (0, 10, 2)
    alone = rank_parts(a=[(0, "sync", 3, 4, 7)], b=[(0, "backward", 9, 0, 9)])
    alone.fold("sync", "backward")
    assert durations(alone) == [[[3]], [[9]]]


def test_times_are_put_on_the_clock_of_all_and_keep_every_nanosecond() -> None:
    begun = 1_700_000_000_000_000_001

    def later(times: Times) -> Times:
        return times + 7

    parts = RankParts()
    rows = [(0, "forward", 10, begun, begun + 10), (0, "other", 1, None, None)]
    parts.add("a", pl.DataFrame(rows, SCHEMA, orient="row"), later)
    assert parts.spanned("a", None, None) == (begun + 7, begun + 17, 1)


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**33)), min_size=1, max_size=9),
    st.sampled_from([0, 2**31 - 2, 1_700_000_000_000_000_001]),
)
def test_packed_parts_keep_every_nanosecond(spans: list[tuple[int, int]], begun: int) -> None:
    start = np.array([[begun + at, NEVER] for at, _ in spans])
    lasted = np.array([[took, 2**31 + 5] for _, took in spans])
    end = np.where(start == NEVER, NEVER, start + lasted)
    table = PartTable(np.arange(len(spans)), ["forward", "other"], lasted, start, end)
    small = packed(table)
    known = small.start >= 0
    assert np.array_equal(np.where(known, small.begin[:, None] + small.start, NEVER), start)
    assert np.array_equal(np.where(known, small.begin[:, None] + small.end, NEVER), end)
    assert np.array_equal(small.duration, lasted)
    few = packed(table._replace(duration=lasted[:, :1] % 2**31))
    assert few.duration.dtype == np.int32


def test_parts_of_a_rank_may_be_used_again() -> None:
    """What is done with them afterwards does not change them."""
    ms = 1_000_000
    first = PartTable(
        np.arange(2), ["backward", "gradient_sync"], np.full((2, 2), 3 * ms),
        np.array([[0, 3], [10, 13]]) * ms, np.array([[3, 6], [13, 16]]) * ms,
    )  # fmt: skip
    late = first._replace(names=["backward", "forward"], start=first.start + ms)
    shared = {"a": packed(first), "b": packed(late)}
    answers = []
    for _ in range(2):
        parts = RankParts()
        for rank, each in shared.items():
            parts.add_packed(rank, each, lambda times: times + 5)
        parts.fold("gradient_sync", "backward")
        parts.leave_waiting_out()
        answers.append((durations(parts), parts.spanned("a", None, None)))
    assert answers[0] == answers[1]
    assert answers[0][1] == (5, 16 * ms + 5, 2)


@given(st.integers(1, 300), st.integers(0, 2000), st.integers(1, 9))
def test_steps_that_are_put_together_have_their_mean(count: int, first: int, width: int) -> None:
    rows = [(first + n, "forward", n * n, None, None) for n in range(count)]
    parts = RankParts()
    parts.add("a", pl.DataFrame(rows, SCHEMA, orient="row"))
    expected = [np.mean([n * n for n in range(at, min(at + width, count))])
                for at in range(0, count, width)]  # fmt: skip
    assert parts.durations(width)[0, :, 0].tolist() == pytest.approx(expected)


def test_what_is_held_of_a_rank_depends_on_how_many_there_are() -> None:
    assert most_steps(1) > most_steps(8) > most_steps(1024) > most_steps(100_000) >= 100
