"""Replays of graphs: a small one by hand, random ones against a plain recursion."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from haiprof.views.run.slowdown.graph import ALONE, Graph


def graph(count: int, edges: list[tuple[int, int]], meeting: dict[int, int] | None = None) -> Graph:
    before, after = (np.array([each[n] for each in edges], np.intp) for n in (0, 1))
    met = np.full(count, ALONE, np.intp)
    for operation, number in (meeting or {}).items():
        met[operation] = number
    return Graph(count, before, after, met)


def test_an_operation_begins_when_all_that_it_needs_has_ended() -> None:
    one = graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert one.ends(np.array([5.0, 1, 7, 2])).tolist() == [5, 6, 12, 14]


def test_who_meets_begins_when_the_last_one_could() -> None:
    # 1 follows 0, 3 follows 2; 1 and 3 meet, and 4 waits for 1 alone.
    one = graph(5, [(0, 1), (2, 3), (1, 4)], {1: 0, 3: 0})
    assert one.ends(np.array([10.0, 1, 30, 4, 5])).tolist() == [10, 31, 30, 34, 36]


def test_a_meeting_of_operations_that_need_nothing_begins_at_once() -> None:
    assert graph(2, [], {0: 0, 1: 0}).ends(np.array([3.0, 4])).tolist() == [3, 4]


def test_no_operations_take_no_time() -> None:
    assert graph(0, []).ends(np.zeros(0)).tolist() == []


@pytest.mark.parametrize("meeting", [{}, {0: 0, 1: 0}])
def test_a_circle_is_refused(meeting: dict[int, int]) -> None:
    edges = [(0, 1)] if meeting else [(0, 1), (1, 0)]
    with pytest.raises(ValueError, match="wait for each other"):
        graph(2, edges, meeting)


@pytest.mark.parametrize("seed", range(20))
def test_a_random_graph_ends_as_a_recursion_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 60))
    # Operations that meet have neighbouring numbers, and nothing in between, so no circle arises.
    meeting = {n: n // 3 for n in range(count) if (n // 3) % 4 == 0}
    edges = [
        (before, after)
        for after in range(count)
        for before in random.integers(0, count, 3).tolist()
        if before // 3 < after // 3
    ]
    durations = random.integers(0, 100, count).astype(float)

    @functools.cache
    def end(operation: int) -> float:
        number = meeting.get(operation)
        party = [n for n in meeting if meeting[n] == number] if number is not None else [operation]
        needed = [before for before, after in edges if after in party]
        return durations[operation] + max(map(end, needed), default=0.0)

    one = graph(count, edges, meeting)
    assert one.ends(durations).tolist() == [end(n) for n in range(count)]
    longer = durations + random.integers(0, 5, count)
    assert (one.ends(longer) >= one.ends(durations)).all()
