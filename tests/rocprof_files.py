"""What rocprofv3 writes about a small process: one GPU's kernels, a copy, calls and ranges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PID = 41
KERNEL = "void scale<float>(float*, int)"


def calls() -> dict[str, list[tuple[str, int, int, int]]]:
    """Name, start, end and correlation of the calls of each API."""
    return {
        "hip_api": [
            ("hipMemcpyAsync", 100, 120, 1),
            ("hipLaunchKernel", 200, 210, 2),
            ("hipLaunchKernel", 1200, 1210, 3),
        ],
        "hsa_api": [("hsa_queue_create", 50, 60, 2)],
        "rccl_api": [("ncclAllReduce", 1250, 1260, 9), ("ncclGetVersion", 10, 11, 8)],
        "marker_api": [("step 7", 90, 900, 5), ("step 8", 1100, 1900, 6), ("load", 95, 99, 7)],
    }


def document() -> Row:
    """The same as JSON."""
    names = sorted({name for rows in calls().values() for name, *_ in rows})
    kinds = ["NONE", "HIP", "MEMORY_COPY", "KERNEL_DISPATCH"]
    copies = ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]
    operations = {"NONE": [], "HIP": names, "MEMORY_COPY": copies, "KERNEL_DISPATCH": []}

    def record(kind: str, operation: int, start: int, end: int, correlation: int) -> Row:
        return {
            "kind": kinds.index(kind),
            "operation": operation,
            "thread_id": 42,
            "correlation_id": {"internal": correlation, "external": 0},
            "start_timestamp": start,
            "end_timestamp": end,
        }

    def dispatch(start: int, end: int, correlation: int, agent: int) -> Row:
        return {
            **record("KERNEL_DISPATCH", 2, start, end, correlation),
            "stream_id": {"handle": 0},
            "dispatch_info": {
                "agent_id": {"handle": agent},
                "queue_id": {"handle": 140_000_000_000_000 + agent},
                "kernel_id": 5,
                "group_segment_size": 64,
                "workgroup_size": {"x": 256, "y": 1, "z": 1},
                "grid_size": {"x": 1000, "y": 2, "z": 1},
            },
        }

    copy = {
        **record("MEMORY_COPY", 1, 130, 180, 1),
        "src_agent_id": {"handle": 10},
        "dst_agent_id": {"handle": 12},
        "bytes": 4096,
    }
    buffers: Row = {
        name: [
            record("HIP", names.index(call), start, end, number)
            for call, start, end, number in rows
        ]
        for name, rows in calls().items()
    }
    buffers["kernel_dispatch"] = [dispatch(300, 500, 2, 12), dispatch(1300, 1400, 3, 13)]
    buffers["memory_copy"] = [copy]
    gpu = {"type": 2, "name": "gfx942", "cu_count": 4}
    return {
        "rocprofiler-sdk-tool": [
            {
                "metadata": {"pid": PID, "node": {"hostname": "mi300"}},
                "agents": [
                    {"id": {"handle": 10}, "type": 1, "node_id": 0, "name": "cpu"},
                    {"id": {"handle": 13}, "node_id": 3, "product_name": "MI300X", **gpu},
                    {"id": {"handle": 12}, "node_id": 2, "product_name": "MI300X", **gpu},
                ],
                "strings": {
                    "buffer_records": [
                        {"kind": kind, "operations": operations[kind]} for kind in kinds
                    ],
                    "marker_api": [
                        {"key": number, "value": name}
                        for name, _, _, number in calls()["marker_api"]
                    ],
                },
                "kernel_symbols": [
                    {"kernel_id": 5, "kernel_name": "_Z5scale.kd", "arch_vgpr_count": 24,
                     "formatted_kernel_name": KERNEL, "accum_vgpr_count": 8}
                ],
                "buffer_records": buffers,
            }
        ]
    }  # fmt: skip


def write_json(file: Path, content: Row | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document() if content is None else content))
    return file


def write_csv(folder: Path, prefix: str = str(PID)) -> Path:
    """The same as CSV files; agents are those of their nodes."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(what: str, *lines: str) -> None:
        (folder / f"{prefix}_{what}.csv").write_text("\n".join(lines) + "\n")

    write(
        "agent_info",
        '"Node_Id","Logical_Node_Id","Agent_Type","Cu_Count","Name","Product_Name"',
        '0,0,"CPU",0,"cpu","EPYC"',
        '3,3,"GPU",4,"gfx942","MI300X"',
        '2,2,"GPU",4,"gfx942","MI300X"',
    )
    head = (
        '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Kernel_Name","Correlation_Id",'
        '"Start_Timestamp","End_Timestamp","LDS_Block_Size","VGPR_Count","Accum_VGPR_Count",'
        '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",'
        '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"'
    )
    ran = ((300, 500, 2, 2), (1300, 1400, 3, 3))
    write(
        "kernel_trace",
        head,
        *(
            f'"KERNEL_DISPATCH","Agent {agent}",{140_000_000_000_010 + agent},0,42,"{KERNEL}",'
            f"{number},{start},{end},64,24,8,256,1,1,1000,2,1"
            for start, end, number, agent in ran
        ),
    )
    write(
        "memory_copy_trace",
        '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id",'
        '"Start_Timestamp","End_Timestamp"',
        '"MEMORY_COPY","HOST_TO_DEVICE","Agent 0","Agent 2",1,130,180',
    )
    for api, rows in calls().items():
        write(
            f"{api}_trace",
            '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp",'
            '"End_Timestamp"',
            *(
                f'"API","{name}",{PID},42,{number},{start},{end}'
                for name, start, end, number in rows
            ),
        )
    return folder
