"""Traces small enough to check by hand, in the tools that people have: we and they see the same.

torch-tb-profiler 0.4.3 does not know the runtime of traces since torch 1.12: of those, it has no
time on devices, and an operator's own time on the host includes what it spent in the runtime. What
it was made for, it gets right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peers
import polars as pl
import pytest
from real_data import DATA, need

from haiprof.analyzer import Analyzer

TRACES = DATA / "traces"
#: Our columns by the plugin's names of them; times of ours are ns, of the plugin's µs.
TIMES = {
    "device_self_duration": "device_self",
    "device_total_duration": "device_total",
    "host_self_duration": "host_self",
    "host_total_duration": "host_total",
}


@pytest.fixture(params=["handmade_modern", "handmade_old"])
def traces(request: pytest.FixtureRequest) -> Path:
    folder = TRACES / str(request.param)
    need(folder)
    return folder


def of_the_plugin(rows: list[dict[str, Any]], times: tuple[str, ...]) -> dict[str, list[int]]:
    return {row["name"]: [row["calls"], *(1000 * row[time] for time in times)] for row in rows}


def of_ours(frame: pl.DataFrame, times: tuple[str, ...]) -> dict[str, list[int]]:
    columns = ["calls", *(TIMES[time] for time in times)]
    return {row["name"]: [row[column] for column in columns] for row in frame.to_dicts()}


def test_the_operator_table_is_the_plugin_s(plugin: Path, traces: Path) -> None:
    table = peers.drive(plugin, peers.PLUGIN.driver, traces, "--tables").tables
    old = traces.name == "handmade_old"
    times = tuple(TIMES) if old else ("host_total_duration",)
    analyzer = Analyzer(traces)

    assert set(table) == {"host_0/1", "host_1/1"}
    for rank in (0, 1):
        theirs = of_the_plugin(table[f"host_{rank}/1"], times)
        ours = of_ours(analyzer.operators(rank=rank), times)
        assert ours == theirs


def test_the_temporal_breakdown_is_hta_s(hta: Path, traces: Path) -> None:
    # HTA leaves the last step out; and it reads the rank from the file's head.
    theirs_rows = peers.drive(hta, peers.HTA.driver, traces, "--tables").tables["temporal 0"]
    assert [row["rank"] for row in theirs_rows] == [0, 1]
    ours = Analyzer(traces).temporal(drop_last_step=True).sort("rank").to_dicts()
    for theirs, row in zip(theirs_rows, ours, strict=True):
        found = [row["idle"], row["compute"], row["non_compute"], row["span"]]
        names = ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)")
        assert found == [1000 * theirs[name] for name in names]
