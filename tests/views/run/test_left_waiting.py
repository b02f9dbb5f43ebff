"""For whom the others waited until they gave up."""

from __future__ import annotations

from typing import Any

import polars as pl
import runs

from haiprof.common.wait_graph import Stuck
from haiprof.views.run import left_waiting as view

SCHEMA = {
    "start": pl.Int64(), "duration": pl.Int64(), "side": pl.Categorical(), "op": pl.Categorical(),
    "group": pl.Categorical(), "group_size": pl.UInt32(), "type": pl.Categorical(),
    "elements_in": pl.Int64(), "sequence": pl.UInt64(), "peer": pl.UInt32(), "failed": pl.UInt16(),
}  # fmt: skip


def rows(*given: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{name: row.get(name) for name in SCHEMA} for row in given], SCHEMA)


def came(number: int, ms: float = 1.0, **more: Any) -> dict[str, Any]:
    return runs.collective(10.0 * number, ms, number, group_size=3, **more)


def found(*ranks: pl.DataFrame) -> Stuck | None:
    return view.left_waiting({number: view.progress(rank) for number, rank in enumerate(ranks)})


WAITS = rows(came(4), came(5, 10_000, failed=1))


def test_who_did_not_come_to_what_the_others_gave_up_on_is_named() -> None:
    stuck = found(WAITS, rows(came(3), came(4)), WAITS)
    assert stuck is not None
    assert (stuck.culprits, stuck.waiting) == ((1,), (0, 2))
    assert str(stuck.wait) == "all_reduce number 5 of group 0"
    assert stuck.wait.age_s == 10.0


def test_nobody_is_named_where_all_came_or_a_connection_was_lost() -> None:
    assert found(WAITS, WAITS, WAITS) is None
    lost = rows(came(4), came(5, 20, failed=1))
    assert found(lost, rows(came(4)), lost) is None
    assert found(rows(came(4)), rows(came(4)), rows(came(3))) is None
    assert found() is None


def test_who_was_not_recorded_may_have_come() -> None:
    assert found(WAITS, WAITS) is None


def test_rows_that_lack_what_is_needed_say_nothing() -> None:
    odd = rows(
        came(5, 10_000, failed=1, group=None),
        {**came(5, 10_000, failed=1), "sequence": None},
        came(5, 10_000, failed=1, side="wait"),
        came(5, 10_000, failed=1, op="send"),
    )
    assert found(odd, rows(came(4)), odd) is None
