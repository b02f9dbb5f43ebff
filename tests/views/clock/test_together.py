"""Which communications of ranks bound their hosts' clocks, and how."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from haiprof.views import clock


def row(rank: str, op: str, start: int, end: int, **more: object) -> dict[str, object]:
    columns = {"step": 1, "group": "g", "ranks": "[0, 1]", "alike": 8, "nth": 0, "size": 8}
    return {**columns, "rank": rank, "op": op, "start": start, "end": end, "transfer": 5, **more}


HOSTS = {"rank 0": "a", "rank 1": "b", "rank 2": "b"}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda r: r, 1),
        (lambda r: {**r, "op": "all_to_all"}, 0),
        (lambda r: {**r, "op": "broadcast"}, 0),
        (lambda r: {**r, "step": None}, 0),
        (lambda r: {**r, "transfer": None}, 0),
    ],
    ids=["all_reduce", "all_to_all", "broadcast", "no step", "not matched"],
)
def test_only_collectives_that_hold_all_back_count(
    change: Callable[[dict[str, object]], dict[str, object]], kept: int
) -> None:
    rows = [
        row("rank 0", "all_reduce", 10, 50),
        row("rank 1", "all_reduce", 20, 51),
        row("rank 2", "all_reduce", 30, 49),
    ]
    matched = pl.DataFrame([change(r) for r in rows], infer_schema_length=None)
    met = clock.meetings(clock.by_host(matched, HOSTS))
    assert met["meeting"].n_unique() == kept
    if kept:
        assert met.select("host", "begun", "ended").rows() == [("a", 10, 50), ("b", 30, 49)]


def test_sends_meet_their_receives_in_groups_of_two() -> None:
    rows = [
        row("rank 0", "send", 10, 20),
        row("rank 1", "recv", 5, 30),
        row("rank 1", "send", 40, 60),
        row("rank 0", "recv", 35, 55),
        row("rank 0", "send", 70, 75, ranks="[0, 1, 2]"),
        row("rank 1", "recv", 70, 79, ranks="[0, 1, 2]"),
    ]
    ranks = {"rank 0": 0, "rank 1": 1}
    messages = clock.one_sided(pl.DataFrame(rows, infer_schema_length=None))
    found = clock.messages(messages, HOSTS, ranks)
    assert sorted(found.rows()) == [("a", "b", 10, 30), ("b", "a", 40, 55)]
