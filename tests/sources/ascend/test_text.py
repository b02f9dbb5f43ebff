"""The text form of torch_npu: every row of the tables against a plain reading of the files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ascend_files import Events, ns, output, rows

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.sources.ascend.find import find
from haiprof.sources.imports.kept import keep, place_of
from haiprof.views.trace.linking.linked import link

LEVELS = ("level0", "level1")
RANKS = (0, 1)
NOTHING = ("", "N/A")


def process(path: Path, rank: int = 0) -> tuple[Analyzer, Process]:
    run = Analyzer(path)
    return run, next(each for each in run.run.processes if each.rank == rank)


def table(of: Process, name: str) -> pl.DataFrame:
    return tables.read_table(of.folder, schema.TABLES[name]).frame


@pytest.fixture(scope="module")
def imported(levels: Path) -> dict[tuple[str, int], tuple[Analyzer, Process, Path]]:
    by_level = {}
    for level in LEVELS:
        run = Analyzer(levels / level)
        for of in run.run.processes:
            by_level[level, of.rank or 0] = (run, of, output(levels / level, of.rank or 0))
    return by_level


each = pytest.mark.parametrize(("level", "rank"), [(lv, rank) for lv in LEVELS for rank in RANKS])


@each
def test_every_kernel_of_the_tool_s_table_is_there(imported: Any, level: str, rank: int) -> None:
    _, of, files = imported[level, rank]
    kernels = table(of, "kernels").filter(pl.col("kind") == "kernel")
    texts = pl.col("name", "unit", "op_type").cast(pl.String)
    found = Counter(kernels.select("start", "duration", texts, "grid_x", "device").iter_rows())
    events = Events(files / "trace_view.json")
    of_task = {
        (ns(e["ts"]), e["name"]): e["args"]["Task Type"] for e in events.layer("Ascend Hardware")
    }
    expected: Counter[Any] = Counter()
    for row in rows(files / "kernel_details.csv"):
        start = ns(row["Start Time(us)"])
        unit = row["Accelerator Core"]
        if unit in NOTHING:  # level 0 has no other than the task's
            unit = of_task[start, row["Name"]]
        kind = None if row["Type"] in NOTHING else row["Type"]
        blocks = int(row["Block Dim"])
        expected[start, ns(row["Duration(us)"]), row["Name"], unit, kind, blocks, rank] += 1
    assert found == expected


@each
def test_copies_and_waits_are_those_of_the_timeline(imported: Any, level: str, rank: int) -> None:
    _, of, files = imported[level, rank]
    kernels = table(of, "kernels").with_columns(pl.col("kind", "name").cast(pl.String))
    events = Events(files / "trace_view.json")
    ran = {(ns(r["Start Time(us)"]), r["Name"]) for r in rows(files / "kernel_details.csv")}
    shared = {e["args"]["connection_id"] for e in events.layer("HCCL")
              if "connection_id" in e["args"]}  # fmt: skip
    others = [
        event
        for event in events.layer("Ascend Hardware")
        if (ns(event["ts"]), event["name"]) not in ran
        # The tasks of a collective are part of it.
        and event["args"]["connection_id"] not in shared
    ]
    found = kernels.filter(pl.col("kind") != "kernel").select("start", "duration", "name", "stream")
    assert Counter(found.iter_rows()) == Counter(
        (ns(e["ts"]), ns(e["dur"]), e["name"], e["tid"]) for e in others
    )
    kinds = {name: kind for name, kind in kernels.select("name", "kind").iter_rows()}
    assert {kinds[name] for name in ("EVENT_WAIT", "EVENT_RECORD")} == {"sync"}
    assert kinds["MEMCPY_ASYNC"] == "memcpy"


@each
def test_every_event_of_the_host_is_there(imported: Any, level: str, rank: int) -> None:
    _, of, files = imported[level, rank]
    spans = table(of, "spans").with_columns(
        pl.col("category", "name", "shapes", "types", "stack").cast(pl.String)
    )
    events = Events(files / "trace_view.json")
    expected: Counter[Any] = Counter()
    for category, ours in (("cpu_op", "op"), ("python_function", "python"),
                           ("enqueue", "runtime"), ("dequeue", "runtime")):  # fmt: skip
        for e in events.of(category):
            is_step = e["name"].startswith("ProfilerStep#")
            expected["step" if is_step else ours, e["name"], ns(e["ts"]), ns(e["dur"]),
                     e["tid"]] += 1  # fmt: skip
    for e in events.layer("CANN"):
        expected["runtime", e["name"], ns(e["ts"]), ns(e["dur"]), e["tid"]] += 1
    columns = ("category", "name", "start", "duration", "thread")
    assert Counter(spans.select(columns).iter_rows()) == expected
    assert spans.filter(pl.col("category") == "step")["step"].to_list() == [50]

    arguments = {(ns(e["ts"]), e["name"], e["tid"]): e["args"] for e in events.of("cpu_op")}
    for row in spans.filter(pl.col("category") == "op").iter_rows(named=True):
        args = arguments[row["start"], row["name"], row["thread"]]
        dims = [
            [int(n) for n in each.split(",") if n]
            for each in args.get("Input Dims", "").replace("\r\n", "").split(";")
        ]
        assert (row["shapes"] is None) == ("Input Dims" not in args)
        if row["shapes"] is not None:
            assert json.loads(row["shapes"]) == dims
            assert json.loads(row["types"]) == args["Input type"].replace("\r\n", "").split(";")
        stack = args.get("Call stack")
        assert row["stack"] == (None if stack is None else stack.replace("\r\n", ""))
        sequence = args["Sequence number"]
        assert row["sequence"] == (None if sequence < 0 else sequence)


@each
def test_each_kernel_was_launched_by_the_operator_that_the_arrow_comes_from(
    imported: Any, level: str, rank: int
) -> None:
    _, of, files = imported[level, rank]
    linked = link(table(of, "spans"), table(of, "kernels"))
    events = Events(files / "trace_view.json")
    left = {e["id"]: e for e in events.of("async_npu", "s")}
    arrived = {(ns(e["ts"]), e["tid"] if events.layers.get(e["pid"]) != "HCCL" else "HCCL"): e
               for e in events.of("async_npu", "f")}  # fmt: skip
    ops = linked.ops.with_columns(pl.col("name").cast(pl.String))
    count = 0
    for row in linked.activities.iter_rows(named=True):
        for start in (row["start"], row["start"] + 1):  # the table of kernels rounds down
            key = (start, "HCCL" if row["unit"] == "HCCL" else row["stream"])
            if key in arrived:
                from_op = left[arrived[key]["id"]]
                op = ops.row(row["op"], named=True)
                assert (op["start"], op["thread"]) == (ns(from_op["ts"]), from_op["tid"])
                # The launch is what the operator itself put into the queue.
                assert ops["name"][row["runtime"]] == "Enqueue"
                count += 1
                break
    assert count == len(arrived) == 210


@each
def test_blocks_of_memory(imported: Any, level: str, rank: int) -> None:
    _, of, files = imported[level, rank]
    allocations = table(of, "allocations")
    expected: Counter[Any] = Counter()
    for row in rows(files / "operator_memory.csv"):
        size = round(float(row["Size(KB)"]) * 1024)
        for time, total, reserved_column, sign in (
            ("Allocation Time(us)", "Allocation Total Allocated(MB)",
             "Allocation Total Reserved(MB)", 1),
            ("Release Time(us)", "Release Total Allocated(MB)", "Release Total Reserved(MB)", -1),
        ):  # fmt: skip
            if row[time] and (sign < 0 or size > 0):
                after, reserved = (round(float(row[c]) * 2**20) for c in (total, reserved_column))
                expected[ns(row[time]), sign * abs(size), after, reserved, rank] += 1
    columns = ("time", "bytes", "total_allocated", "total_reserved", "device")
    assert Counter(allocations.select(columns).iter_rows()) == expected
    assert allocations["kind"].cast(pl.String).unique().to_list() == ["npu"]
    by_block = allocations.group_by("address").agg(pl.col("bytes").sum(), pl.len())
    assert by_block.filter(pl.col("len") == 2)["bytes"].unique().to_list() == [0]
    # Those that an operator of the framework asked for have its thread; GE's own have none.
    assert allocations.filter(pl.col("bytes") > 0)["thread"].null_count() < allocations.height / 4


@each
def test_collectives(imported: Any, level: str, rank: int) -> None:
    _, of, files = imported[level, rank]
    on_device = table(of, "collectives").filter(pl.col("side") == "device")
    events = {
        e["name"]: e["args"]
        for e in Events(files / "trace_view.json").layer("HCCL")
        if e["name"].startswith("hcom_")
    }
    assert on_device["op"].cast(pl.String).to_list() == ["all_reduce"] * 4
    assert on_device["elements_in"].to_list() == [args["count"] for args in events.values()]
    assert on_device["bytes"].to_list() == [args["count"] * 4 for args in events.values()]
    assert on_device["type"].cast(pl.String).unique().to_list() == ["Float"]
    host = table(of, "collectives").filter(pl.col("side") == "host")
    assert host["op"].cast(pl.String).to_list() == ["allreduce_"] * 4
    attributes = [json.loads(text) for text in on_device["attributes"].cast(pl.String)]
    assert {each["algorithm"] for each in attributes} == {"MESH-RING"}
    if level == "level0":
        assert of.trace is not None
        assert "communication.json" in of.trace.lacks["collectives.group"]
        return
    collectives = json.loads((files / "communication.json").read_text())["step50"]["collective"]
    collectives.pop("Total Op Info", None)
    for (key, of_file), row in zip(collectives.items(), attributes, strict=True):
        times = of_file["Communication Time Info"]
        for theirs, ours in (("Elapse", "elapse"), ("Transit", "transit"), ("Wait", "wait"),
                             ("Synchronization", "synchronization"), ("Idle", "idle")):  # fmt: skip
            # ms with more decimals than ns have
            assert row[f"{ours}_ns"] == pytest.approx(times[f"{theirs} Time(ms)"] * 1e6, abs=1)
        link_of = of_file["Communication Bandwidth Info"]["HCCS"]
        assert row["links"]["HCCS"]["bytes"] == round(link_of["Transit Size(MB)"] * 1e6)
        assert row["links"]["HCCS"]["bandwidth_gb_s"] == link_of["Bandwidth(GB/s)"]
        assert set(on_device["group"].cast(pl.String)) == {key.partition("@")[2]}


@each
def test_what_the_level_does_not_tell_is_said(imported: Any, level: str, rank: int) -> None:
    run, of, _ = imported[level, rank]
    assert run.problems() == []
    assert of.trace is not None
    assert of.trace.tool == "ascend"
    known = {f"{t.name}.{c.name}" for t in schema.TABLES.values() for c in t.columns}
    assert set(of.trace.lacks) <= known | set(schema.TABLES)
    assert ("kernels.op_type" in of.trace.lacks) == (level == "level0")
    assert "Level1" in of.trace.lacks.get("kernels.unit", "Level1")
    (gpu,) = of.gpus
    assert (of.rank, gpu.device) == (rank, rank)


def cut(file: Path, keep: float) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep)])


def test_files_that_were_cut_give_what_they_have(job: Callable[[str], Path]) -> None:
    place = job("level1")
    files = output(place)
    cut(files / "trace_view.json", 0.9)
    cut(files / "kernel_details.csv", 0.5)
    whole = rows(files / "kernel_details.csv")[:-1]
    # Within the duration of a kernel, which then would be another number.
    last = (files / "kernel_details.csv").read_text("utf-8").rstrip("\n").splitlines()
    (files / "kernel_details.csv").write_text(
        "\n".join((*last[: len(whole) + 1], ",".join(last[1].split(",")[:9]) + ",53.7")), "utf-8"
    )
    (files / "communication.json").write_text("{")
    run, of = process(place)
    problems = "\n".join(run.problems())
    assert "trace_view.json: is cut off at byte" in problems
    assert "communication.json: is not JSON" in problems
    kernels = table(of, "kernels").filter(pl.col("kind") == "kernel")
    typed = kernels.filter(pl.col("op_type").is_not_null())
    assert typed["start"].to_list() == [ns(row["Start Time(us)"]) for row in whole]
    assert "1 rows without a start or a duration" in problems
    # The timeline has the others, without their types.
    assert kernels.height > len(whole) + 50


def test_rows_without_a_time_are_counted(job: Callable[[str], Path]) -> None:
    place = job("level1")
    file = output(place) / "kernel_details.csv"
    lines = file.read_text("utf-8").splitlines()
    lines[3] = lines[3].replace("1736408883704903.918", "soon")
    file.write_text("\n".join(lines), "utf-8")
    run, _ = process(place)
    assert any("1 rows without a start" in line for line in run.problems())


def test_without_a_timeline_kernels_are_all_there_is(job: Callable[[str], Path]) -> None:
    place = job("level1")
    (output(place) / "trace_view.json").unlink()
    _, of = process(place)
    assert table(of, "kernels").height == 191
    assert table(of, "spans").is_empty()
    assert of.trace is not None
    assert "no trace_view.json" in of.trace.lacks["spans"]


def test_without_anything_it_fails_in_one_line(job: Callable[[str], Path]) -> None:
    place = job("level1")
    for rank in RANKS:
        for file in output(place, rank).iterdir():
            if file.name != "kernel_details.csv":
                file.unlink()
        (output(place, rank) / "kernel_details.csv").write_text("Name,Type\n")
    with pytest.raises(HaiprofError, match="has no kernels and no spans") as raised:
        Analyzer(place)
    assert "\n" not in str(raised.value)


def test_a_process_that_the_timeline_does_not_name_is_reported(job: Callable[[str], Path]) -> None:
    place = job("level1")
    file = output(place) / "trace_view.json"
    events = json.loads(file.read_text("utf-8"))
    hardware = next(e["pid"] for e in events if e.get("args", {}).get("name") == "CANN")
    named = [e for e in events if not (e["pid"] == hardware and e["name"] == "process_name")]
    file.write_text(json.dumps(named), "utf-8")
    run, _ = process(place)
    assert any(f"707 events of 'pid {hardware}': left out" in line for line in run.problems())
    assert run.steps().height == 2


@pytest.mark.parametrize(
    "name",
    [
        "trace_view.json",
        "kernel_details.csv",
        "communication.json",
        "operator_memory.csv",
        "memory_record.csv",
        "../profiler_info_0.json",
    ],
)
@pytest.mark.parametrize("garbage", [b"", b"null", b"\x00\xff,\n\x01" * 999, b'a,"b\n1\n1,2,3\n'])
def test_garbage_in_a_file_costs_only_what_that_file_tells(
    job: Callable[[str], Path], name: str, garbage: bytes
) -> None:
    place = job("level1") / "rank0_ascend_pt"
    (place / "ASCEND_PROFILER_OUTPUT" / name).write_bytes(garbage)
    run = Analyzer(place)
    (of,) = run.run.processes
    assert all("\n" not in line for line in run.problems())
    assert of.rank == 0
    # Kernels are recorded twice.
    assert table(of, "kernels").filter(pl.col("kind") == "kernel").height == 191
    assert table(of, "spans").is_empty() == (name == "trace_view.json")
    assert table(of, "allocations").is_empty() == (name == "operator_memory.csv")


def test_an_empty_table_is_named(job: Callable[[str], Path]) -> None:
    place = job("level1") / "rank0_ascend_pt"
    file = place / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    file.write_bytes(b"")
    said = f"{file}: is empty: copy it again: its data is left out"
    assert Analyzer(place).problems() == [said]


def test_times_and_sizes_that_cannot_be_are_left_out(job: Callable[[str], Path]) -> None:
    place = job("level1")
    for name, column in (
        ("kernel_details.csv", "Start Time(us)"),
        ("kernel_details.csv", "Duration(us)"),
        ("operator_memory.csv", "Size(KB)"),
        ("operator_memory.csv", "Allocation Time(us)"),
        ("memory_record.csv", "Total Allocated(MB)"),
    ):
        file = output(place) / name
        lines = file.read_text("utf-8").splitlines()
        at = lines[0].split(",").index(column)
        for row, odd in enumerate(("1e400", "9" * 30, "-1", "inf", "0x10"), 1):
            values = lines[row].split(",", at + 1)
            values[at] = odd
            lines[row] = ",".join(values)
        file.write_text("\n".join(lines) + "\n", "utf-8")
    run, of = process(place)
    assert any("kernel_details*.csv: 5 rows without" in line for line in run.problems())
    # The timeline has the ones that the tables lost.
    assert table(of, "kernels").filter(pl.col("kind") == "kernel").height == 191
    begun = run.step_trace(0)["start"]
    assert begun.to_list() == [1736408883686740710]


def test_an_import_that_is_kept_is_the_same(job: Callable[[str], Path]) -> None:
    place = job("level1")
    before = Analyzer(place).op_statistics()
    found = find(str(place))
    assert found is not None
    kept = place_of(found)
    assert kept == place / "haiprof-import"
    keep(found, kept)
    run = Analyzer(place)
    assert run.run.folder == kept
    assert run.op_statistics().equals(before)


def test_arrows_of_msprof_whose_numbers_are_larger_than_64_bits(levels: Path) -> None:
    _, of = process(levels / "level1")
    kernels = table(of, "flows").filter(pl.col("kind").cast(pl.String) == "HostToDevice")
    events = Events(output(levels / "level1") / "trace_view.json")
    wanted = Counter(
        (ns(e["ts"]), "start" if phase == "s" else "end", int(e["id"]) % 2**64, e["tid"])
        for phase in "sf"
        for e in events.of("HostToDevice", phase)
    )
    assert max(int(e["id"]) for e in events.of("HostToDevice", "s")) > 2**64
    columns = kernels.select("time", pl.col("side").cast(pl.String), "id", "thread")
    assert Counter(columns.iter_rows()) == wanted
