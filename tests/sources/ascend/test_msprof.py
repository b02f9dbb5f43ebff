"""Folders of msprof itself. No real one is here: these have the files and columns of its manual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.sources.ascend.words import kind_of

NAME = "PROF_000001_20240102030405678_QWERTZ"
#: µs since the epoch.
BEGIN = 1_700_000_000_000_000
SUMMARY = (
    "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),"
    "Task Duration(us),Task Wait Time(us),Block Num,Mix Block Num,HF32 Eligible"
)


def at(us: float) -> str:
    return f"{BEGIN + us:.3f}\t"


def summary(file: Path, *lines: tuple[Any, ...]) -> None:
    rows = [
        f"{device},4294967295,{task},{stream},{name},{kind},dynamic,{unit},{at(start)},{duration},"
        f"0,{blocks},0,NO"
        for device, task, stream, name, kind, unit, start, duration, blocks in lines
    ]
    file.write_text("\n".join((SUMMARY, *rows)) + "\n", "utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two devices; the kernels of the second one are in another slice of the table."""
    output = tmp_path / NAME / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    stamp = "20240102030506"
    summary(
        output / f"op_summary_slice_0_{stamp}.csv",
        (0, 7, 2, "MatMul_1", "MatMulV2", "AI_CORE", 100, 50.5, 20),
        (0, 8, 2, "Gather_1", "GatherV2", "AI_CPU", 160.25, 30, 1),
        (0, "N/A", "N/A", "hcom_allReduce__11_0_1", "hcom_allReduce_", "COMMUNICATION", 200, 40, 0),
    )
    summary(
        output / f"op_summary_slice_1_{stamp}.csv",
        (1, 7, 2, "Add_1", "Add", "AI_VECTOR_CORE", 110, 5, 40),
    )
    (output / f"aicpu_{stamp}.csv").write_text(
        "Device_id,Timestamp(us),Node,Compute_time(us),Memcpy_time(us),Task_time(us),"
        "Dispatch_time(us),Total_time(us),Stream ID,Task ID\n"
        f"0,{at(160.25)},GatherV2,20,5,25,3,30,2,8\n"
        f"0,{at(300)},DropoutGenMask,20,5,25,3,60,2,9\n",
        "utf-8",
    )
    (output / f"step_trace_{stamp}.csv").write_text(
        "Device_id,Iteration ID,FP Start(us),BP End(us),Iteration End(us),Iteration Time(us),"
        "FP to BP Time(us),Iteration Refresh(us),Data Aug Bound(us),Model ID\n"
        f"0,1,{at(100)},{at(200)},{at(250)},200,100,50,N/A,1\n"
        f"0,2,{at(260)},{at(350)},{at(400)},150,90,50,10,1\n",
        "utf-8",
    )
    return output


def process(path: Path) -> tuple[Analyzer, Process]:
    run = Analyzer(path)
    (of,) = run.run.processes
    return run, of


def kernels(of: Process) -> list[tuple[Any, ...]]:
    frame = tables.read_table(of.folder, schema.KERNELS).frame
    texts = pl.col("name", "op_type", "unit").cast(pl.String)
    return list(frame.select("device", "stream", texts, "start", "duration", "grid_x").iter_rows())


def ns(us: float) -> int:
    return BEGIN * 1000 + round(us * 1000)


def test_kernels_of_all_slices_and_devices(folder: Path) -> None:
    _, of = process(folder.parent)
    assert kernels(of) == [
        (0, 2, "MatMul_1", "MatMulV2", "AI_CORE", ns(100), 50_500, 20),
        (1, 2, "Add_1", "Add", "AI_VECTOR_CORE", ns(110), 5_000, 40),
        (0, 2, "Gather_1", "GatherV2", "AI_CPU", ns(160.25), 30_000, 1),
        (0, None, "hcom_allReduce__11_0_1", "hcom_allReduce_", "COMMUNICATION", ns(200), 40_000, 0),
        # Of the AI CPU's own table what the other one does not have.
        (0, 2, "DropoutGenMask", "DropoutGenMask", "AI_CPU", ns(300), 60_000, None),
    ]
    assert [gpu.device for gpu in of.gpus] == [0, 1]
    assert of.rank is None
    assert of.trace is not None
    assert "msprof_*.json" in of.trace.lacks["spans"]


def test_iterations_are_steps(folder: Path) -> None:
    run, _ = process(folder)
    steps = run.step_trace()
    assert steps["step"].to_list() == [1, 2]
    assert steps["start"].to_list() == [ns(50), ns(250)]
    assert steps["communication"].to_list() == [40_000, 0]


def test_every_view_answers_and_statistics_are_by_type(folder: Path) -> None:
    from haiprof.export import csv

    run, _ = process(folder)
    for view in csv.VIEWS.values():
        view(run)
    totals = {(row["op"], row["unit"]): row["total"] for row in run.op_statistics().to_dicts()}
    assert totals == {
        ("MatMulV2", "AI_CORE"): 50_500,
        ("Add", "AI_VECTOR_CORE"): 5_000,
        ("GatherV2", "AI_CPU"): 30_000,
        ("hcom_allReduce_", "COMMUNICATION"): 40_000,
        ("DropoutGenMask", "AI_CPU"): 60_000,
    }
    slow = run.recommendations().row(by_predicate=pl.col("kind") == "slow_unit", named=True)
    assert slow["saves_ns"] == 90_000
    assert slow["operator"] == "DropoutGenMask"


def test_tasks_where_there_is_no_summary_of_operators(folder: Path) -> None:
    for file in folder.iterdir():
        if not file.name.startswith("step_trace"):
            file.unlink()
    (folder / "task_time_20240102030506.csv").write_text(
        "Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us),"
        "task_stop(us)\n"
        f"0,MatMul_1,KERNEL_AICORE,2,7,50,{at(100)},{at(150)}\n"
        f"0,N/A,MEMCPY_ASYNC,2,8,10,{at(150)},{at(160)}\n"
        f"0,N/A,EVENT_WAIT,3,9,10,{at(150)},{at(160)}\n",
        "utf-8",
    )
    _, of = process(folder)
    frame = tables.read_table(of.folder, schema.KERNELS).frame
    assert frame["kind"].cast(pl.String).to_list() == ["kernel", "memcpy", "sync"]
    assert frame["name"].cast(pl.String).to_list() == ["MatMul_1", "MEMCPY_ASYNC", "EVENT_WAIT"]


def test_a_timeline_adds_calls_and_copies_with_their_sizes(folder: Path) -> None:
    pid, device = 77, 88
    events = [
        {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "CANN"}},
        {"name": "process_name", "ph": "M", "pid": device, "tid": 0,
         "args": {"name": "Ascend Hardware"}},
        {"name": "process_labels", "ph": "M", "pid": device, "tid": 0, "args": {"labels": "NPU 0"}},
        {"name": "Node@launch", "ph": "X", "pid": pid, "tid": 5, "ts": at(90).strip(), "dur": 4,
         "args": {"Thread Id": 5, "level": "node", "connection_id": 3}},
        {"name": "MatMul_1", "ph": "X", "pid": device, "tid": 2, "ts": at(100).strip(),
         "dur": 50.5, "args": {"Task Type": "AI_CORE", "connection_id": 3}},
        {"name": "MEMCPY_ASYNC", "ph": "X", "pid": device, "tid": 2, "ts": at(130).strip(),
         "dur": 10, "args": {"Task Type": "SDMA_SQE", "size(B)": 4096, "bandwidth(GB/s)": 1.5,
                             "operation": "host to device", "connection_id": 4}},
    ]  # fmt: skip
    # In two slices, as msprof cuts long ones.
    named = [event for event in events if event["ph"] == "M"]
    for number, of_slice in enumerate((events[:4], [*named, *events[4:]])):
        file = folder / f"msprof_slice_{number}_20240102030506.json"
        file.write_text(json.dumps(of_slice), "utf-8")
    run, of = process(folder)
    frame = tables.read_table(of.folder, schema.KERNELS).frame
    (copy,) = frame.filter(pl.col("kind") == "memcpy").to_dicts()
    assert (copy["bytes"], copy["copy_kind"], copy["bandwidth"]) == (4096, "HtoD", 1.5)
    launched = run.launches()
    assert launched.height == 1
    assert run.problems() == []
    assert of.trace is not None
    assert "spans" not in of.trace.lacks
    assert "torch_npu.profiler" in of.trace.lacks["spans.stack"]


@pytest.mark.parametrize(
    ("name", "unit", "kind"),
    [
        ("MatMul", "AI_CORE", "kernel"),
        ("MemSet", "AI_VECTOR_CORE", "kernel"),
        ("WaitForIt", "MIX_AIC", "kernel"),
        ("DropoutGenMask", "KERNEL_AICPU", "kernel"),
        ("MEMCPY_ASYNC", "PCIE_DMA_SQE", "memcpy"),
        ("N/A", "MEMCPY_ASYNC", "memcpy"),
        ("SDMA", "SDMA", "memcpy"),
        ("EVENT_RECORD", "PLACE_HOLDER_SQE", "sync"),
        ("Notify Wait", "Notify Wait", "sync"),
        ("PROFILING_ENABLE", "PLACE_HOLDER_SQE", "overhead"),
        ("SomethingNew", "", "kernel"),
    ],
)
def test_what_a_task_is(name: str, unit: str, kind: str) -> None:
    assert kind_of(name, unit) == kind
