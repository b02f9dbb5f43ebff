"""The parts of an operation of NCCL in one row."""

from __future__ import annotations

import polars as pl

from haiprof import schema
from haiprof.views.run.nccl import NCCL_SCHEMA, operations


def table(*rows: dict[str, object]) -> pl.DataFrame:
    """Return rows of the table; what is not given is null."""
    kinds = {"int64": pl.Int64, "uint64": pl.UInt64, "uint32": pl.UInt32, "uint16": pl.UInt16,
             "text": pl.Categorical}  # fmt: skip
    return pl.DataFrame(
        [{column.name: row.get(column.name) for column in schema.NCCL.columns} for row in rows],
        schema={column.name: kinds[column.kind] for column in schema.NCCL.columns},
    )


def host(number: int, start: int, **more: object) -> dict[str, object]:
    return {"side": "host", "id": number, "start": start, "duration": 10, **more}


def network(number: int, start: int, end: int, transfers: int, **more: object) -> dict[str, object]:
    return {"side": "network", "id": number, "start": start, "duration": end - start,
            "transfers": transfers, **more}  # fmt: skip


def test_the_last_of_several_lots_counts() -> None:
    found = operations(
        table(
            network(2, 120, 150, 2),
            host(2, 100, op="all_reduce", sequence=7, algorithm="RING"),
            network(2, 120, 190, 5),
            host(1, 50, op="send"),
        )
    )
    assert dict(found.schema) == NCCL_SCHEMA
    columns = ("op", "start", "enqueued", "network_start", "network_end", "transfers", "cut_off")
    assert found.select(columns).rows() == [
        ("send", 50, 60, None, None, None, False),
        ("all_reduce", 100, 110, 120, 190, 5, False),
    ]


def test_either_part_may_be_cut_off() -> None:
    found = operations(
        table(host(1, 0, cut_off=1), host(2, 1), network(2, 3, 9, 1, cut_off=1), host(3, 2))
    )
    assert found["cut_off"].to_list() == [True, True, False]


def test_a_network_whose_host_was_lost_is_no_operation() -> None:
    assert operations(table(network(9, 1, 2, 1))).is_empty()
    assert dict(operations(table()).schema) == NCCL_SCHEMA
