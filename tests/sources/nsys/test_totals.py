"""Every total of a real export, compared with the sum that SQLite makes of the same file."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import nsys_exports
import polars as pl
import pytest

from haiprof.analyzer import Analyzer

Totals = dict[tuple[Any, ...], tuple[int, ...]]
#: The pid in a serialized id.
_PID = "({0} >> 24) & 16777215"


def ask(file: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def has(file: Path, table: str) -> bool:
    return bool(ask(file, f"select 1 from sqlite_master where name = '{table}'"))


def of_frame(frame: pl.DataFrame, *by: str, bytes: bool = False) -> Totals:
    """Count rows and add up durations, and bytes, by pid and these columns."""
    summed = frame.group_by("pid", *by).agg(
        pl.len(), pl.col("duration").sum(), *([pl.col("bytes").sum()] if bytes else [])
    )
    keys = 1 + len(by)
    return {row[:keys]: row[keys:] for row in summed.cast({b: pl.String for b in by}).rows()}


def of_rows(rows: list[tuple[Any, ...]], keys: int) -> Totals:
    totals: dict[tuple[Any, ...], Counter[int]] = defaultdict(Counter)
    for row in rows:
        totals[row[:keys]].update(dict(enumerate(row[keys:])))
    return {key: tuple(counts[i] for i in sorted(counts)) for key, counts in totals.items()}


@pytest.fixture(scope="module", params=nsys_exports.REAL)
def file(request: pytest.FixtureRequest) -> Path:
    return nsys_exports.real(request.param)


@pytest.fixture(scope="module")
def run(file: Path) -> Analyzer:
    return Analyzer(file)


def test_kernels_by_name(file: Path, run: Analyzer) -> None:
    found = ask(
        file,
        f"select {_PID.format('globalPid')}, s.value, count(*), sum(end - start) "
        "from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.demangledName "
        "group by 1, 2",
    )
    assert of_frame(run.kernels(kind="kernel"), "name") == of_rows(found, 2)
    calls = run.kernels(by="name")
    assert calls["calls"].sum() == sum(row[2] for row in found)
    assert calls["total"].sum() == sum(row[3] for row in found)


def test_copies_by_kind(file: Path, run: Analyzer) -> None:
    kinds = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
    found = [
        (pid, kinds[kind], *sums)
        for pid, kind, *sums in ask(
            file,
            f"select {_PID.format('globalPid')}, copyKind, count(*), sum(end - start), sum(bytes) "
            "from CUPTI_ACTIVITY_KIND_MEMCPY group by 1, 2",
        )
    ]
    assert of_frame(run.kernels(kind="memcpy"), "copy_kind", bytes=True) == of_rows(found, 2)


@pytest.mark.parametrize("kind", ["memset", "sync"])
def test_sets_and_waits(file: Path, run: Analyzer, kind: str) -> None:
    table = {"memset": "MEMSET", "sync": "SYNCHRONIZATION"}[kind]
    table = f"CUPTI_ACTIVITY_KIND_{table}"
    if not has(file, table):
        assert not run.kernels(kind=kind).height
        return
    sql = f"select {_PID.format('globalPid')}, count(*), sum(end - start) from {table} group by 1"
    assert of_frame(run.kernels(kind=kind)) == of_rows(ask(file, sql), 1)


def test_calls_of_cuda_by_name(file: Path, run: Analyzer) -> None:
    # As nsys' own reports have it, without the version at the end.
    found = [
        (pid, re.sub(r"_v\d{4,5}$", "", name), *sums)
        for pid, name, *sums in ask(
            file,
            f"select {_PID.format('globalTid')}, s.value, count(*), sum(end - start) "
            "from CUPTI_ACTIVITY_KIND_RUNTIME r join StringIds s on s.id = r.nameId group by 1, 2",
        )
    ]
    assert of_frame(run.spans(category="runtime"), "name") == of_rows(found, 2)


def test_overheads(file: Path, run: Analyzer) -> None:
    found = [
        row
        for table in ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
        if has(file, table)
        for row in ask(
            file,
            f"select {_PID.format('globalTid')}, s.value, count(*), sum(end - start) "
            f"from {table} r join StringIds s on s.id = r.nameId group by 1, 2",
        )
    ]
    assert of_frame(run.spans(category="overhead"), "name") == of_rows(found, 2)


def test_ranges_by_text(file: Path, run: Analyzer) -> None:
    if not has(file, "NVTX_EVENTS"):
        assert not run.spans(category=["op", "user", "step", "python"]).height
        return
    # What torch appends to a name begins with the first of these.
    found = [
        (pid, re.split(r", (?:seq|op_id|sizes) = ", text)[0], *sums)
        for pid, text, *sums in ask(
            file,
            f"select {_PID.format('globalTid')}, coalesce(text, s.value), count(*), "
            "sum(end - start) from NVTX_EVENTS n left join StringIds s on s.id = n.textId "
            "where eventType in (59, 60) group by 1, 2",
        )
    ]
    ranges = run.spans(category=["op", "user", "step", "python"])
    assert of_frame(ranges, "name") == of_rows(found, 2)
    ops = set(ranges.filter(pl.col("category") == "op")["name"].cast(pl.String).unique())
    assert {"aten::mm", "aten::copy_"} < ops
    assert not any(name.startswith("FSDP::") for name in ops)


def test_times_are_on_the_epoch(file: Path, run: Analyzer) -> None:
    ((epoch,),) = ask(file, "select utcEpochNs from TARGET_INFO_SESSION_START_TIME")
    ((first, last),) = ask(file, "select min(start), max(end) from CUPTI_ACTIVITY_KIND_KERNEL")
    kernels = run.kernels(kind="kernel")
    assert kernels["start"].min() == epoch + first
    assert (kernels["start"] + kernels["duration"]).max() == epoch + last


def test_kernels_know_the_call_that_launched_them(file: Path, run: Analyzer) -> None:
    ((known,),) = ask(
        file,
        "select count(*) from CUPTI_ACTIVITY_KIND_KERNEL k where exists (select 1 from "
        "CUPTI_ACTIVITY_KIND_RUNTIME r where r.correlationId = k.correlationId "
        "and r.globalTid >> 24 = k.globalPid >> 24)",
    )
    assert run.kernels(by="launch")["calls"].sum() == run.kernels(kind="kernel").height
    launched = run.launches().filter(pl.col("kind") == "kernel")
    assert launched.height == known


def test_devices_keep_their_processes(file: Path, run: Analyzer) -> None:
    found = ask(
        file,
        f"select distinct {_PID.format('globalPid')}, deviceId from CUPTI_ACTIVITY_KIND_KERNEL",
    )
    kernels = run.kernels(kind="kernel")
    assert set(kernels.select("pid", "device").unique().rows()) == set(found)
    assert {(p.pid, g.device) for p in run.run.processes for g in p.gpus} == set(found)
