"""Recommendations from traces as findings."""

from __future__ import annotations

from typing import Any

import polars as pl

from haiprof.findings.deep.as_findings import as_findings
from haiprof.findings.deep.recommendation import SCHEMA


def rows(*some: dict[str, Any]) -> pl.DataFrame:
    columns = {"rank": pl.Int64(), **SCHEMA}
    usual: dict[str, Any] = {"problem": "the device was idle", "advice": "do less", "evidence": "e"}
    return pl.DataFrame([{**dict.fromkeys(columns), **usual, **row} for row in some], columns)


def test_one_thing_on_many_ranks_is_one_finding() -> None:
    found = as_findings(
        rows(
            {"rank": 0, "kind": "synchronisation", "operator": "aten::item", "saves_ns": 5,
             "share": 0.1, "step": 3, "step_saves_ns": 4},
            {"rank": 1, "kind": "synchronisation", "operator": "aten::item", "saves_ns": 9,
             "share": 0.2, "step": 4},
            {"rank": 1, "kind": "launch", "saves_ns": 7, "share": 0.15},
        )
    )  # fmt: skip
    assert [(one.kind, one.ranks, one.lost_ns) for one in found] == [
        ("host_sync", (0, 1), 9),
        ("launch_bound", (1,), 7),
    ]
    assert found[0].problem == "The device was idle"
    assert found[0].phase == "aten::item"


def test_who_waits_for_a_straggler_is_not_blamed() -> None:
    waits = {"rank": 0, "kind": "waiting", "saves_ns": 90, "share": 0.5}
    late = {"rank": 7, "kind": "straggler", "saves_ns": 80, "share": 0.4}
    assert [one.kind for one in as_findings(rows(waits, late))] == ["straggler"]
    assert [one.kind for one in as_findings(rows(waits))] == ["waiting"]


def test_what_is_no_time_comes_last() -> None:
    memory = {"rank": 0, "kind": "memory"}
    copies = {"rank": 0, "kind": "copies", "saves_ns": 1, "share": 0.01}
    assert [one.kind for one in as_findings(rows(memory, copies))] == ["copies", "gpu_memory"]
    assert as_findings(rows()) == []
