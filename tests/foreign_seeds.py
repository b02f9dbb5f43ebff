"""Small traces of every tool that is read, to be mutated: each is a folder, and what to open in it.

Made by hand, so that they are there in every clone; ``--data`` adds real ones.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nsys_csvs
import nsys_exports
import rocprof_files
import traces

Row = dict[str, Any]


def write(folder: Path, data: Path | None = None) -> list[Path]:
    """Write the seeds below ``folder``; return what to open of each.

    Args:
        folder: is made.
        data: recorded traces, as ``HAIPROF_TEST_DATA`` names them.
    """
    paths = [_kineto(folder / "kineto"), _ranks(folder / "ranks"), _nsys(folder / "nsys")]
    paths += [_msprof(folder / "msprof"), _torch_npu(folder / "torch_npu")]
    paths += [_ascend_database(folder / "ascend_database"), _paddle(folder / "paddle")]
    paths += _megatron(folder / "megatron")
    paths += [_memory_timeline(folder / "memory" / "memory.raw.json.gz")]
    paths += [_memory_curve(folder / "curve" / "memory.json")]
    paths += [nsys_csvs.write(folder / "nsys_csv"), rocprof_files.write_csv(folder / "rocprof")]
    paths += [rocprof_files.write_json(folder / "rocprof_json" / "41_results.json")]
    paths += [_timeline(folder / "timeline" / "host_41.1.pt.trace.json", folder / "torch_npu")]
    if data is not None:
        paths += _recorded(folder / "recorded", data)
    return paths


def _kineto(folder: Path) -> Path:
    """One rank of torch.profiler with everything that it can record."""
    document = traces.small(0, 1_700_000_000_000_000.5)
    begin, host = 1_700_000_000_000_000.5, {"ph": "X", "pid": 41, "tid": 42}
    events: list[Row] = document["traceEvents"]
    for step in range(2):
        at = begin + 100 * step
        comm = {"Collective name": "allreduce", "In msg nelems": 16, "Group size": 4,
                "dtype": "Float", "Process Group Name": "0", "External id": 20 + step}  # fmt: skip
        device = {"device": 0, "stream": 9, "correlation": 30 + step, "External id": 20 + step}
        events += [
            {**host, "cat": "python_function", "name": "train.py(7): main", "ts": at, "dur": 99,
             "args": {"Python id": 10 * step + 1, "Python parent id": None}},
            {**host, "cat": "python_function", "name": "nn.Module: Linear_0", "ts": at + 5,
             "dur": 60, "args": {"Python id": 10 * step + 2, "Python parent id": 10 * step + 1,
                                 "Python module id": 0}},
            {**host, "cat": "cpu_op", "name": "record_param_comms", "ts": at + 62, "dur": 9,
             "args": comm},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 63, "dur": 2,
             "args": {"correlation": 30 + step, "External id": 20 + step}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 9,
             "ts": at + 70, "dur": 25,
             "args": {**comm, **device, "grid": [2, 1, 1], "block": [64, 1, 1],
                      "est. achieved occupancy %": 30, "blocks per SM": 0.1}},
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0,
             "tid": 7, "ts": at + 2, "dur": 6, "args": {"device": 0, "stream": 7, "bytes": 4096,
                                                        "correlation": 50 + step}},
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 41, "tid": 42,
             "s": "t", "ts": at + 12,
             "args": {"Addr": 4096, "Bytes": 512 if step == 0 else -512, "Device Type": 1,
                      "Device Id": 0, "Total Allocated": 512, "Total Reserved": 2048}},
            {"ph": "s", "id": 7 + step, "cat": "ac2g", "name": "ac2g", "pid": 41, "tid": 42,
             "ts": at + 20},
            {"ph": "f", "id": 7 + step, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7,
             "ts": at + 40, "bp": "e"},
            {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{step}", "pid": 0,
             "tid": 7, "ts": at + 40, "dur": 55, "args": {"External id": 2}},
        ]  # fmt: skip
    document["deviceProperties"] = [
        {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_899_345_920, "numSms": 132,
         "computeMajor": 9, "computeMinor": 0}
    ]  # fmt: skip
    document["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 4}
    document["baseTimeNanoseconds"] = 1_000_000_000
    return traces.write(folder / "host_0.1.pt.trace.json", document)


def _ranks(folder: Path) -> Path:
    for rank in range(2):
        traces.write(folder / f"rank{rank}.pt.trace.json", traces.small(rank, 1000 + 7 * rank))
    return folder


def _nsys(folder: Path) -> Path:
    export = nsys_exports.small(folder / "rank0.sqlite", {"RANK": "0", "WORLD_SIZE": "2"})
    nsys_exports.small(folder / "rank1.sqlite", {"RANK": "1", "WORLD_SIZE": "2"}, slower=2)
    return export.parent


def _msprof(folder: Path) -> Path:
    output = folder / "PROF_000001_20240102030405_ABC" / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    begin, stamp = 1_700_000_000_000_000, "20240102030506"
    (output / f"op_summary_{stamp}.csv").write_text(
        "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,"
        "Task Start Time(us),Task Duration(us),Task Wait Time(us),Block Num\n"
        f"0,1,7,2,MatMul_1,MatMulV2,dynamic,AI_CORE,{begin}.100\t,50.5,0,20\n"
        f'0,1,8,2,"Gather,1",GatherV2,dynamic,AI_CPU,{begin + 60}.25\t,30,0,1\n'
        f"0,1,N/A,N/A,hcom_1,hcom_allReduce_,N/A,COMMUNICATION,{begin + 99}\t,4,0,0\n"
    )
    (output / f"step_trace_{stamp}.csv").write_text(
        "Device_id,Iteration ID,FP Start(us),BP End(us),Iteration End(us),Iteration Time(us),"
        "FP to BP Time(us),Iteration Refresh(us),Data Aug Bound(us),Model ID\n"
        f"0,1,{begin}\t,{begin + 90}\t,{begin + 99}\t,200,90,9,N/A,1\n"
    )
    return folder


def _torch_npu(folder: Path) -> Path:
    output = folder / "node7_41_20240102030405_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output.parent / "profiler_info_0.json").write_text('{"rank_id": 0}')
    at, host = 1_700_000_000_000_000, {"ph": "X", "pid": 41, "tid": 42}
    events: list[Row] = [
        *(
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            for pid, name in ((41, "Python"), (2, "CANN"), (3, "Ascend Hardware"), (4, "HCCL"))
        ),
        {**host, "name": "ProfilerStep#1", "ts": f"{at}.000", "dur": 100, "args": {}},
        {**host, "cat": "cpu_op", "name": "aten::mm", "ts": f"{at + 10}.5", "dur": 40,
         "args": {"Input Dims": "4,4;4,4", "Input type": "float;float", "Sequence number": 3,
                  "Fwd thread id": 0, "Call stack": "a.py(1);\r\nb.py(2)"}},
        {**host, "cat": "enqueue", "name": "Enqueue@mm", "ts": f"{at + 20}.0", "dur": 2,
         "args": {"correlation_id": 1}},
        {**host, "cat": "dequeue", "name": "Dequeue@mm", "ts": f"{at + 25}.0", "dur": 9,
         "args": {"correlation_id": 1}},
        {"ph": "X", "pid": 2, "tid": 42, "name": "AscendCL@aclnnMm", "ts": f"{at + 26}.0",
         "dur": 3, "args": {"connection_id": 5}},
        {"ph": "X", "pid": 3, "tid": 2, "name": "MatMul", "ts": f"{at + 50}.0", "dur": 30,
         "args": {"Task Type": "AI_CORE", "Task Id": 9, "Model Id": 1, "connection_id": 5}},
        {"ph": "X", "pid": 4, "tid": 1, "name": "hcom_allReduce__1_0_1", "ts": f"{at + 60}.0",
         "dur": 20, "args": {"connection_id": 6, "count": 16, "data_type": "FP32",
                             "alg_type": "MESH"}},
        {"ph": "s", "id": "7", "cat": "async_npu", "name": "torch_to_npu", "pid": 41, "tid": 42,
         "ts": f"{at + 10}.5"},
        {"ph": "f", "id": "7", "cat": "async_npu", "name": "torch_to_npu", "pid": 3, "tid": 2,
         "ts": f"{at + 50}.0", "bp": "e"},
    ]  # fmt: skip
    (output / "trace_view.json").write_text(json.dumps(events))
    (output / "kernel_details.csv").write_text(
        "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,"
        "Start Time(us),Duration(us),Wait Time(us),Block Dim\n"
        f"1,0,1,9,2,MatMul,MatMulV2,dynamic,AI_CORE,{at + 50}.0\t,30,0,20\n"
    )
    (output / "operator_memory.csv").write_text(
        "Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us),"
        "Allocation Total Allocated(MB),Allocation Total Reserved(MB),"
        "Release Total Allocated(MB),Release Total Reserved(MB),Device Type\n"
        f"aten::mm,4.0,{at + 12}.0\t,{at + 90}.0\t,78,1.5,2.0,0.5,2.0,NPU:0\n"
    )
    (output / "communication.json").write_text(
        json.dumps(
            {
                "step1": {
                    "p2p": {},
                    "collective": {
                        "hcom_allReduce__1_0_1@2": {
                            "Communication Time Info": {
                                "Start Timestamp(us)": at + 60,
                                "Elapse Time(ms)": 0.02,
                            },
                            "Communication Bandwidth Info": {"HCCS": {"Transit Size(MB)": 1}},
                        }
                    },
                }
            }
        )
    )
    return folder


def _ascend_database(folder: Path) -> Path:
    folder.mkdir(parents=True)
    file = folder / "ascend_pytorch_profiler_0.db"
    begin = 1_700_000_000_000_000_000
    texts = ["MatMul", "AI_CORE", "aten::mm", "hcom_allReduce__1", "MESH", "group", "aclnnMm"]
    with sqlite3.connect(file) as base:
        for table, columns, rows in (
            ("STRING_IDS", "id INTEGER, value TEXT", list(enumerate(texts))),
            ("TASK", "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER,"
             "globalTaskId INTEGER, globalPid INTEGER, taskType INTEGER, contextId INTEGER,"
             "streamId INTEGER, taskId INTEGER, modelId INTEGER",
             [(begin + 50, begin + 90, 0, 5, 1, 41, 1, 0, 2, 9, 1)]),
            ("COMPUTE_TASK_INFO", "name INTEGER, globalTaskId INTEGER, blockNum INTEGER,"
             "taskType INTEGER, opType INTEGER", [(0, 1, 20, 1, 0)]),
            ("COMMUNICATION_OP", "opName INTEGER, startNs INTEGER, endNs INTEGER,"
             "connectionId INTEGER, groupName INTEGER, opId INTEGER, dataType INTEGER,"
             "algType INTEGER, count NUMERIC, opType INTEGER, deviceId INTEGER",
             [(3, begin + 95, begin + 99, 6, 5, 0, 4, 4, 16, 3, 0)]),
            ("CANN_API", "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER,"
             "connectionId INTEGER, name INTEGER", [(begin + 30, begin + 40, 20000, 7, 5, 6)]),
            ("PYTORCH_API", "startNs TEXT, endNs TEXT, globalTid INTEGER,"
             "connectionId INTEGER, name INTEGER, sequenceNumber INTEGER,"
             "fwdThreadId INTEGER, inputDtypes INTEGER, inputShapes INTEGER,"
             "callchainId INTEGER, type INTEGER",
             [(str(begin), str(begin + 60), 7, 0, 2, 3, 0, 1, 1, 0, 50001)]),
            ("CONNECTION_IDS", "id INTEGER, connectionId INTEGER", [(0, 5)]),
            ("PYTORCH_CALLCHAINS", "id INTEGER, stack INTEGER, stackDepth INTEGER", [(0, 1, 0)]),
            ("RANK_DEVICE_MAP", "rankId INTEGER, deviceId INTEGER", [(0, 0)]),
            ("ENUM_HCCL_DATA_TYPE", "id INTEGER, name TEXT", [(4, "FP32")]),
            ("NPU_INFO", "id INTEGER, name TEXT", [(0, "Ascend910B")]),
            ("HOST_INFO", "hostUid TEXT, hostName TEXT", [("42", "node-7")]),
            ("OP_MEMORY", "name INTEGER, size INTEGER, allocationTime INTEGER,"
             "releaseTime INTEGER, allocationTotalAllocated INTEGER,"
             "allocationTotalReserved INTEGER, releaseTotalAllocated INTEGER,"
             "releaseTotalReserved INTEGER, deviceId INTEGER",
             [(2, 4096, begin + 5, begin + 80, 4096, 8192, 0, 8192, 0)]),
        ):  # fmt: skip
            base.execute(f"create table {table} ({columns})")
            marks = ", ".join("?" * len(rows[0]))
            base.executemany(f"insert into {table} values ({marks})", rows)
    base.close()
    return folder


def _paddle(folder: Path) -> Path:
    folder.mkdir(parents=True)
    begin = 1_697_793_307_000
    for rank in range(2):
        jobs = [
            f"I1020 standalone_executor.cc:217] Profiler Info: Job ({step}), type = {kind}, "
            f"micro_batch_id = {part}, job_start_time = {begin + 90 * step + start + rank:.6f}, "
            f"job_end_time = {begin + 90 * step + end + rank:.6f}\n"
            for step in range(2)
            for kind, part, start, end in (
                ("forward", 0, 0, 10), ("forward", 1, 10, 20), ("backward", 0, 20, 45),
                ("backward", 1, 45, 70), ("optimizer", 0, 70, 75),
            )
        ]  # fmt: skip
        head = "Schedule Profiler start at step 3 and end at step 5\n"
        (folder / f"workerlog.{rank}").write_text(head + "".join(jobs))
    return folder


def _megatron(folder: Path) -> list[Path]:
    (folder / "own").mkdir(parents=True)
    (folder / "all").mkdir()
    whole = []
    for stage in range(2):
        mine: list[Row] = []
        for step in range(2):
            mine.append({"name": "iteration", "ph": "B", "pad_before": 5, "iteration": step})
            for name, start, end in (("forward", 10, 40), ("backward", 50, 90)):
                arguments = {"microbatch": 0, "pp_rank": stage, "model_chunk": 0}
                mine.append({"name": name, "ph": "B", "rel_ts": start})
                mine.append({"name": name, "ph": "E", "rel_ts": end, **arguments})
                row = {
                    "name": name,
                    "pid": stage,
                    "tid": 0,
                    "args": {"iteration": step, **arguments},
                }
                whole += [
                    {**row, "ph": "B", "ts": 200 * step + start},
                    {**row, "ph": "E", "ts": 200 * step + end},
                ]
            mine.append({"name": "iteration", "ph": "E", "rel_ts": 99, "duration_wall": 100})
        (folder / "own" / f"benchmark-data-0-pipeline-{stage}-tensor-0.json").write_text(
            json.dumps([{"g_rk": stage, "dev": stage}, *mine])
        )
    (folder / "all" / "data-1-pipeline-2-tensor-1-aggregated.json").write_text(json.dumps(whole))
    (folder / "merged").mkdir()
    merged = folder / "merged" / "merged_trace.json"
    whole.sort(key=lambda row: int(row["ts"]))
    merged.write_text(json.dumps([*whole, *whole]))
    return [folder / "own", folder / "all", merged]


def _memory_timeline(file: Path) -> Path:
    file.parent.mkdir(parents=True)
    at = 1_700_000_000_000_000_000
    events = [[-1, 1, 4096, 0], [at, 2, 512, 7], [at + 5, 3, -512, 7], [at + 5, 3, 512, 4]]
    file.write_bytes(gzip.compress(json.dumps([*events, [at + 9, 4, -512, 4]]).encode()))
    return file


def _memory_curve(file: Path) -> Path:
    file.parent.mkdir(parents=True)
    levels = [[0, 4096, *[0] * 7], [0, 4096, 0, 64, *[0] * 5], [0] * 9]
    file.write_text(json.dumps([[1_700_000_000, 1_700_000_005, 1_700_000_009], levels]))
    return file


def _timeline(file: Path, analysed: Path) -> Path:
    file.parent.mkdir(parents=True)
    (whole,) = analysed.rglob("trace_view.json")
    shutil.copy(whole, file)
    return file


def _recorded(folder: Path, data: Path) -> Iterator[Path]:
    for run in sorted((data / "traces").glob("*/")):
        if sum(file.stat().st_size for file in run.iterdir()) < 50_000:
            shutil.copytree(run, folder / run.name, copy_function=shutil.copy)
            yield folder / run.name
    for tool in ("ascend", "megatron", "paddle", "nsys", "formats"):
        with tarfile.open(data / "other" / f"{tool}.tar.xz") as archive:
            archive.extractall(folder / tool, filter="data")
    yield from (folder / "ascend" / level for level in ("level0", "level1"))
    yield folder / "formats" / "formats" / "ascend_db"
    yield folder / "formats" / "formats" / "megatron_merged_trace.json"
    yield folder / "formats" / "formats" / "memory_analysis__memory_timeline.raw.gz"
    yield from (file for file in (folder / "nsys").rglob("*.sqlite") if file.stat().st_size < 4e6)
    yield from (folder / "megatron").rglob("*iter10.json")
    yield from (log.parent for log in (folder / "paddle").rglob("workerlog.0"))
