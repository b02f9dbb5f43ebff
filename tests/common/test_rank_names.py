"""Ranks in a sentence."""

from __future__ import annotations

from haiprof.common.rank_names import ranks_named


def test_one_rank_a_few_and_many() -> None:
    assert ranks_named([3]) == "rank 3"
    assert ranks_named([0, 1]) == "ranks 0, 1"
    assert ranks_named(range(8)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7"
    assert ranks_named(range(9)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
