"""Who waits for whom: culprits, circles, disagreement, and a transfer that stands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haiprof.common.wait_graph import Group, Rank, Stuck, Wait, stuck


def rank(asked: int | dict[str, int], *waits: Wait, size: int = 3, **more: Any) -> Rank:
    numbers = asked if isinstance(asked, dict) else {"0": asked}
    given: dict[str, Any] = {"operation": "all_reduce", "elements": 4, "type": "fp32", **more}
    return Rank({n: Group(n, size, number, **given) for n, number in numbers.items()}, waits)


def wait(sequence: int = 7, group: str = "0", **more: Any) -> Wait:
    return Wait(group, sequence, **{"operation": "all_reduce", "age_s": 60.0, **more})


def found(*ranks: Rank, world: int | None = None) -> Stuck:
    why = stuck(dict(enumerate(ranks)), world)
    assert why is not None
    return why


def test_nobody_waits() -> None:
    assert stuck({}) is None
    assert stuck({0: rank(7), 1: rank(6)}) is None


def test_the_rank_that_never_came() -> None:
    why = found(rank(7, wait()), rank(6), rank(7, wait(age_s=61.0)))
    assert (why.kind, why.culprits, why.waiting) == ("rank_never_arrived", (1,), (0, 2))
    assert why.wait.age_s == 61.0


def test_who_waits_for_who_waits_is_not_the_culprit() -> None:
    # Rank 0 waits for 1, which waits in another group for 2, which waits for nobody.
    ranks = {
        0: rank({"0": 7}, wait(), size=2),
        1: rank({"0": 6, "1": 3}, wait(3, "1"), size=2),
        2: rank({"1": 2}, size=2),
    }
    why = stuck(ranks)
    assert why is not None
    assert (why.kind, why.culprits, why.waiting) == ("rank_never_arrived", (2,), (0, 1))


def test_a_rank_without_a_process_is_missing() -> None:
    why = found(rank(7, wait()), rank(7, wait()), world=3)
    assert (why.kind, why.culprits, why.missing) == ("rank_never_arrived", (2,), (2,))


def test_all_have_come_and_it_does_not_end() -> None:
    why = found(*(rank(7, wait()) for _ in range(3)))
    assert (why.kind, why.culprits, why.waiting) == ("stalled_transfer", (), (0, 1, 2))


def test_a_rank_for_which_it_has_ended_waits_further_on() -> None:
    why = found(rank(8, wait(8)), rank(7, wait(7)), rank(7, wait(7)))
    assert (why.kind, why.culprits, why.waiting) == ("stalled_transfer", (), (0, 1, 2))
    assert why.wait.sequence == 7


def test_where_ends_are_not_seen_only_who_has_not_come_counts() -> None:
    asked = wait(known=False)
    assert stuck({n: rank(7, asked) for n in range(3)}) is None
    assert found(rank(7, asked), rank(6, wait(6, known=False)), rank(7, asked)).culprits == (1,)


def test_with_ranks_elsewhere_nobody_knows_whether_all_have_come() -> None:
    two = {n: rank(7, wait()) for n in range(2)}
    assert stuck(two) is None
    # One that is here and has not come is to blame before those of which nothing is known.
    why = stuck({**two, 2: rank(6, size=4)}, world_size=4)
    assert why is not None
    assert why.culprits == (2,)


@pytest.mark.parametrize(
    "other",
    [
        {"operation": "broadcast", "root": 0},
        {"elements": 8},
        {"type": "fp64"},
    ],
)
def test_the_minority_disagrees(other: dict[str, Any]) -> None:
    odd = rank(7, wait(operation=other.get("operation", "all_reduce")), **other)
    why = found(rank(7, wait()), odd, rank(7, wait()))
    assert (why.kind, why.culprits) == ("collective_mismatch", (1,))
    assert why.asked[0] == "all_reduce of 4 elements of fp32"
    assert why.asked[1] != why.asked[0]


def test_who_is_the_minority_is_not_known_where_many_ranks_are_not() -> None:
    ranks = [rank(7, wait(), size=5, elements=8 if n == 2 else 4) for n in range(3)]
    why = found(*ranks, world=5)
    assert (why.kind, why.culprits) == ("collective_mismatch", (0, 1, 2))
    assert found(*ranks, ranks[0], world=5).culprits == (2,)


def test_of_two_that_disagree_both_are_named() -> None:
    why = found(rank(7, wait(), size=2), rank(7, wait(), size=2, elements=8))
    assert (why.kind, why.culprits) == ("collective_mismatch", (0, 1))


def test_uneven_exchanges_do_not_disagree() -> None:
    ranks = [rank(7, wait(), operation="all_to_all", elements=n) for n in (4, 8, 2)]
    assert found(*ranks).kind == "stalled_transfer"


def test_groups_in_opposite_order_are_a_circle() -> None:
    why = found(
        rank({"1": 1, "2": 0}, wait(1, "1"), size=2), rank({"1": 0, "2": 1}, wait(1, "2"), size=2)
    )
    assert (why.kind, why.culprits) == ("crossed_collectives", (0, 1))
    assert why.asked == {0: "all_reduce number 1 of group 1", 1: "all_reduce number 1 of group 2"}


def test_messages_that_nobody_sends_are_a_circle() -> None:
    why = found(*(rank(3, wait(1, operation="recv", peer=1 - n), size=2) for n in range(2)))
    assert (why.kind, why.culprits) == ("unmatched_send", (0, 1))


def test_a_message_of_a_rank_that_does_something_else() -> None:
    why = found(rank(3, wait(1, operation="recv", peer=1), size=2), rank(3, size=2))
    assert (why.kind, why.culprits) == ("rank_never_arrived", (1,))


def test_of_a_broadcast_only_the_root_is_waited_for() -> None:
    of_root = wait(7, operation="broadcast", peer=2)
    why = found(rank(7, of_root), rank(6), rank(6))
    assert why.culprits == (2,)


@given(st.lists(st.integers(5, 7), min_size=2, max_size=16))
def test_of_one_group_those_behind_are_the_culprits(asked: list[int]) -> None:
    newest = max(asked)
    size = len(asked)
    ranks = [rank(n, *([wait(newest)] if n == newest else []), size=size) for n in asked]
    why = found(*ranks)
    behind = tuple(number for number, n in enumerate(asked) if n < newest)
    assert why.culprits == behind
    assert why.kind == ("rank_never_arrived" if behind else "stalled_transfer")


@given(st.data())
def test_a_chain_of_groups_has_its_end_as_the_culprit(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 12))
    order = data.draw(st.permutations(range(count)))
    ranks = {}
    for at, number in enumerate(order):
        groups = {}
        if at:
            groups[f"g{at - 1}"] = 0
        waits = []
        if at + 1 < count:
            groups[f"g{at}"] = 1
            waits = [wait(1, f"g{at}")]
        ranks[number] = rank(groups, *waits, size=2)
    why = stuck(ranks)
    assert why is not None
    assert (why.kind, why.culprits) == ("rank_never_arrived", (order[-1],))
    assert len(why.waiting) == count - 1
