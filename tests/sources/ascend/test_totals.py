"""Totals of the views against the CSV files that the tools summed up themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ascend_files import output, rows

from haiprof.analyzer import Analyzer
from haiprof.export import csv

LEVELS = ("level0", "level1")


@pytest.fixture(scope="module")
def runs(levels: Path) -> dict[str, Analyzer]:
    return {level: Analyzer(levels / level) for level in LEVELS}


both = pytest.mark.parametrize("level", LEVELS)


@both
@pytest.mark.parametrize("rank", [0, 1])
def test_step_trace(levels: Path, runs: dict[str, Analyzer], level: str, rank: int) -> None:
    (row,) = rows(output(levels / level, rank) / "step_trace_time.csv")
    (step,) = runs[level].step_trace(rank).to_dicts()
    msprof = {key: float(value) * 1000 for key, value in row.items() if key != "Step"}
    assert step["step"] == int(row["Step"]) == 50
    # The tool sums up intervals that are each rounded to a ns: one for each of some 190 kernels.
    close = {"abs": 200}
    assert step["computing"] == pytest.approx(msprof["Computing"], **close)
    assert step["communication"] == pytest.approx(msprof["Communication"], **close)
    assert step["overlapped"] == pytest.approx(msprof["Overlapped"], **close)
    assert step["exposed"] == pytest.approx(msprof["Communication(Not Overlapped)"], **close)
    free = step["stage"] + step["bubble"] - step["computing"] - step["exposed"]
    assert free == pytest.approx(msprof["Free"], **close)
    assert step["bubble"] == msprof["Bubble"] == 0
    # Computed with double-precision microseconds since the epoch, which are 250 ns apart.
    assert step["stage"] == pytest.approx(msprof["Stage"], abs=500)
    prepared = step["forward_start"] - step["start"]
    assert prepared == pytest.approx(msprof["Preparing"], abs=500)


@pytest.mark.parametrize("rank", [0, 1])
def test_op_statistics(levels: Path, runs: dict[str, Analyzer], rank: int) -> None:
    result = runs["level1"].op_statistics(rank).with_columns(pl.col("op", "unit").cast(pl.String))
    statistics = rows(output(levels / "level1", rank) / "op_statistic.csv")
    computing = result.filter(
        pl.struct("op", "unit").is_in(
            [{"op": row["OP Type"], "unit": row["Core Type"]} for row in statistics]
        )
    )
    assert computing.height == len(statistics) == 33
    whole = computing["total"].sum()
    for row in statistics:
        (mine,) = computing.filter(
            pl.col("op") == row["OP Type"], pl.col("unit") == row["Core Type"]
        ).to_dicts()
        assert mine["count"] == int(row["Count"])
        # Each kernel is printed to a ns, of fractions that the tool sums up before it prints.
        total = float(row["Total Time(us)"]) * 1000
        assert mine["total"] == pytest.approx(total, abs=mine["count"])
        for column, of_tool in (("min", "Min"), ("mean", "Avg"), ("max", "Max")):
            assert mine[column] == pytest.approx(float(row[f"{of_tool} Time(us)"]) * 1000, abs=1)
        # Per cent to three decimals.
        assert mine["total"] / whole == pytest.approx(float(row["Ratio(%)"]) / 100, abs=6e-6)
    # The rest is what msprof's table leaves out.
    others = result.join(computing, ["op", "unit"], how="anti")
    assert set(others["unit"]) == {"HCCL", "memcpy"}


@both
def test_units_of_level_0_are_tasks_and_its_operators_those_of_the_framework(
    runs: dict[str, Analyzer], level: str
) -> None:
    result = runs[level].op_statistics(0).with_columns(pl.col("op", "unit").cast(pl.String))
    units = {"AI_CORE", "MIX_AIV", "DSA_SQE", "HCCL", "memcpy"}
    assert set(result["unit"]) == units | ({"AI_VECTOR_CORE"} if level == "level1" else set())
    # A convolution's kernels, and those that change the format for it, are one operator's there.
    convolution = result.filter(pl.col("op") == "Conv2D")["count"].sum()
    assert convolution == {"level0": 20, "level1": 5}[level]


@both
@pytest.mark.parametrize("rank", [0, 1])
def test_kernel_table(levels: Path, runs: dict[str, Analyzer], level: str, rank: int) -> None:
    kernels = runs[level].kernels(rank, by="name").with_columns(pl.col("name").cast(pl.String))
    expected: dict[str, tuple[int, int]] = {}
    for row in rows(output(levels / level, rank) / "kernel_details.csv"):
        calls, total = expected.get(row["Name"], (0, 0))
        expected[row["Name"]] = (calls + 1, total + round(float(row["Duration(us)"]) * 1000))
    assert {name: (calls, total) for name, calls, total in
            kernels.select("name", "calls", "total").iter_rows()} == expected  # fmt: skip
    communication = kernels.filter("communication")
    assert communication["name"].str.starts_with("hcom_allReduce").all()
    assert communication.height == 4


def test_communication(levels: Path, runs: dict[str, Analyzer]) -> None:
    result = runs["level1"].distributed()
    for rank in (0, 1):
        file = output(levels / "level1", rank) / "communication.json"
        collectives: dict[str, Any] = json.loads(file.read_text())["step50"]["collective"]
        total = collectives["Total Op Info"]["Communication Time Info"]["Elapse Time(ms)"] * 1e6
        mine = result.collectives.filter(pl.col("rank") == rank)
        # Of four communications the table of kernels prints each to a ns.
        assert mine["total"].sum() == pytest.approx(total, abs=4)
        assert mine["calls"].sum() == 4


@both
@pytest.mark.parametrize("rank", [0, 1])
def test_breakdown_overlap_and_idle(
    levels: Path, runs: dict[str, Analyzer], level: str, rank: int
) -> None:
    (row,) = rows(output(levels / level, rank) / "step_trace_time.csv")
    (time,) = runs[level].temporal(rank).to_dicts()
    (overlap,) = runs[level].overlap(rank).to_dicts()
    # As for the step trace.
    computing, exposed, overlapped = (
        pytest.approx(float(row[name]) * 1000, abs=200)
        for name in ("Computing", "Communication(Not Overlapped)", "Overlapped")
    )
    assert (time["compute"], time["communication"]) == (computing, exposed)
    assert (overlap["computation"], overlap["overlap"]) == (computing, overlapped)
    idle = runs[level].idle(rank).with_columns(pl.col("category").cast(pl.String))
    assert {"host_wait", "kernel_wait"} <= set(idle["category"])
    assert idle.filter(pl.col("category") == "host_wait")["idle"].sum() > 0


@both
def test_every_view_answers(runs: dict[str, Analyzer], level: str) -> None:
    for view in csv.VIEWS.values():
        view(runs[level])


@both
def test_operators_have_their_device_time_and_memory(
    levels: Path, runs: dict[str, Analyzer], level: str
) -> None:
    kernels = rows(output(levels / level) / "kernel_details.csv")
    total = sum(round(float(row["Duration(us)"]) * 1000) for row in kernels)
    statistics = runs[level].op_statistics(0).with_columns(pl.col("unit").cast(pl.String))
    copies = statistics.filter(pl.col("unit") == "memcpy")["total"].sum()
    assert runs[level].operators(0)["device_self"].sum() == total + copies
    assert runs[level].memory(0).operators.height > 10
