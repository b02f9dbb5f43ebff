"""Collectives matched over the ranks: who came last, how long the others waited, how fast."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import runs
from hypothesis import given
from hypothesis import strategies as st
from runs import MS, T0, Row, collective

from haiprof import schema
from haiprof.views.run.collectives import (
    BY_RANK_SCHEMA,
    COLLECTIVES_SCHEMA,
    ROW_COLUMNS,
    by_kind,
    by_rank,
    matched,
    waits,
)


def of(rank: int, rows: list[Row], place: int | None = None) -> pl.DataFrame:
    table = pl.from_arrow(runs.batch(schema.COLLECTIVES, rows))
    assert isinstance(table, pl.DataFrame)
    members = pl.DataFrame(
        {"group": ["0"], "place": [rank if place is None else place]},
        {"group": pl.String(), "place": pl.UInt32()},
    )
    found = by_rank(table.select(ROW_COLUMNS), members)
    assert dict(found.schema) == BY_RANK_SCHEMA
    return found.with_columns(pl.lit(rank, pl.UInt32()).alias("rank"))


def of_all(*ranks: list[Row]) -> pl.DataFrame:
    found = matched(pl.concat([of(rank, rows) for rank, rows in enumerate(ranks)]))
    assert dict(found.schema) == COLLECTIVES_SCHEMA
    return found


def one(*ranks: list[Row]) -> dict[str, Any]:
    found = of_all(*ranks)
    assert found.height == 1
    return found.row(0, named=True)


def wait(start: float, duration: float, sequence: int, **changes: object) -> Row:
    return collective(start, duration, sequence, side="wait", **changes)


def test_the_last_to_ask_is_late_and_the_others_have_waited_for_it() -> None:
    three = {"group_size": 3}
    row = one(
        [collective(0, 10, 1, **three), wait(4, 6, 1, **three)],
        [collective(7, 3, 1, **three), wait(7, 3, 1, **three)],
        [collective(2, 8.5, 1, **three), wait(2, 8, 1, **three)],
    )
    assert (row["late_rank"], row["late"] / MS) == (1, 5)
    assert row["waited"] / MS == 7 + 5
    assert row["exposed"] / MS == 3
    assert ((row["start"] - T0) / MS, (row["last"] - T0) / MS) == (0, 7)
    assert row["transfer"] / MS == 3.5
    # 2 (n - 1) / n times the bytes cross the slowest link of a ring.
    assert row["bus_bandwidth"] == pytest.approx(2 * 2 / 3 * 4000 / 3.5e-3)
    assert (row["ranks"], row["seen"], row["failed"]) == (3, 3, False)


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 2 * 3 / 4),
        ("all_gather", 3),
        ("reduce_scatter", 3 / 4),
        ("all_to_all", 3 / 4),
        ("broadcast", 1),
        ("barrier", None),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(op: str, factor: float | None) -> None:
    rows = [[collective(0, 4, 1, op=op, group_size=4)] for _ in range(4)]
    expected = None if factor is None else pytest.approx(factor * 4000 / 4e-3)
    assert one(*rows)["bus_bandwidth"] == expected


def test_an_operation_whose_ranks_are_not_all_there_blames_nobody() -> None:
    row = one([collective(0, 5, 1, group_size=3)], [collective(3, 2, 1, group_size=3)])
    assert row["seen"] == 2
    assert [row[name] for name in ("late_rank", "late", "waited", "transfer")] == [None] * 4


@pytest.mark.parametrize("op", ["broadcast", "scatter", "gather", "reduce"])
def test_with_a_root_not_everybody_waits_for_the_last(op: str) -> None:
    row = one([collective(0, 9, 1, op=op, peer=0)], [collective(5, 4, 1, op=op, peer=0)])
    assert (row["late_rank"], row["waited"]) == (None, None)


def test_a_call_whose_end_nobody_sees_has_no_transfer() -> None:
    host = {"side": "host"}
    row = one([collective(0, 0.1, 1, **host)], [collective(3, 0.1, 1, **host)])
    assert (row["late_rank"], row["late"] / MS) == (1, 3)
    assert [row[name] for name in ("end", "transfer", "bus_bandwidth", "exposed")] == [None] * 4


def test_a_message_is_one_of_its_two_ends() -> None:
    send = {"op": "send", "elements_out": 0, "peer": 1, "group_size": 3}
    recv = {"op": "recv", "elements_in": 0, "bytes": 0, "peer": 0, "group_size": 3}
    found = of_all(
        [collective(0, 2, 1, **send), collective(4, 9, 2, **send)],
        [collective(1, 2, 1, **recv), collective(12, 1.5, 2, **recv)],
        [collective(1, 2, 1, **{**send, "peer": 0})],  # nobody receives it
    )
    rows = found.select("op", "source", "target", "sequence", "seen", "late_rank").rows()
    assert sorted(rows) == [
        ("message", 0, 1, 1, 2, 1),
        ("message", 0, 1, 2, 2, 1),
        ("message", 2, 0, 1, 1, None),
    ]
    assert found["bytes"].to_list() == [4000, 4000, 4000]


def test_groups_of_other_names_and_what_has_no_number_stay_apart() -> None:
    nameless = {**collective(3, 1, 1), "sequence": None}
    found = of_all(
        [collective(0, 1, 1), collective(2, 1, 1, group="1"), nameless],
        [collective(0.5, 1, 1), collective(1, 1, 1, group="1")],
    )
    assert found.select("group", "late_rank").rows() == [("0", 1), ("1", 0)]


def test_waits_are_summed_up_by_who_was_late() -> None:
    late = [0, 3, 3, 1]
    found = waits(
        of_all(
            [collective(10 * n, 8, n + 1) for n in range(4)],
            [collective(10 * n + ms, 8 - ms, n + 1) for n, ms in enumerate(late)],
        ),
        least=MS // 2,
    )
    (row,) = found.rows(named=True)
    assert (row["late_rank"], row["group"], row["op"], row["operations"]) == (
        1,
        "0",
        "all_reduce",
        3,
    )
    assert (row["waited"] / MS, row["median"] / MS, row["longest"] / MS) == (7, 3, 3)
    assert row["share"] == 1


def test_kinds_of_a_group() -> None:
    rows = [collective(0, 2, 1), collective(4, 2, 2), collective(8, 2, 3, op="barrier", bytes=None)]
    found = by_kind(of_all(rows, rows))
    assert found.select("op", "operations", "bytes").rows() == [
        ("all_reduce", 2, 4000),
        ("barrier", 1, None),
    ]
    assert by_kind(pl.DataFrame(schema=COLLECTIVES_SCHEMA)).height == 0


@given(
    st.lists(
        st.lists(st.floats(0, 50, allow_nan=False), min_size=3, max_size=3), min_size=1, max_size=12
    )
)
def test_of_any_arrivals_the_last_is_late(arrivals: list[list[float]]) -> None:
    ranks = [
        [collective(100 * n + at[rank], 60, n + 1, group_size=3) for n, at in enumerate(arrivals)]
        for rank in range(3)
    ]
    found = of_all(*ranks)
    assert found["sequence"].to_list() == list(range(1, len(arrivals) + 1))
    for row, at in zip(found.rows(named=True), arrivals, strict=True):
        asked = [T0 + round((100 * (row["sequence"] - 1) + each) * MS) for each in at]
        assert asked[row["late_rank"]] == max(asked)
        assert row["late"] == max(asked) - sorted(asked)[-2]
        assert row["waited"] == sum(max(asked) - each for each in asked)
