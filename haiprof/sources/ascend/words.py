"""Names in the files of msprof and torch_npu, of every version, and haiprof's names for them.

Tests: tests/sources/ascend/test_msprof.py.
"""

from __future__ import annotations

import re
from typing import Final

#: Folders with the analysis of a process.
OF_TORCH: Final = "ASCEND_PROFILER_OUTPUT"
OF_MSPROF: Final = "mindstudio_profiler_output"

#: Columns of the tables of kernels -> ours. ``kernel_details`` is torch_npu's, ``op_summary`` and
#: ``task_time`` are msprof's; a version may lack some.
KERNEL_DETAILS: Final = {
    "Name": "name",
    "Type": "op_type",
    "Accelerator Core": "unit",
    "Start Time(us)": "start",
    "Duration(us)": "duration",
    "Stream ID": "stream",
    "Task ID": "task",
    "Block Dim": "grid_x",
    "Block Num": "grid_x",
    "Device_id": "device",
}
OP_SUMMARY: Final = {
    "Op Name": "name",
    "OP Type": "op_type",
    "Task Type": "unit",
    "Task Start Time(us)": "start",
    "Task Duration(us)": "duration",
    "Stream ID": "stream",
    "Task ID": "task",
    "Block Dim": "grid_x",
    "Block Num": "grid_x",
    "Device_id": "device",
}
TASK_TIME: Final = {
    "kernel_name": "name",
    "kernel_type": "unit",
    "task_start(us)": "start",
    "task_time(us)": "duration",
    "stream_id": "stream",
    "task_id": "task",
    "Device_id": "device",
}
#: The AI CPU's tasks in detail: most, if not all, are among the kernels as well.
AI_CPU: Final = {
    "Node": "name",
    "Timestamp(us)": "start",
    "Total_time(us)": "duration",
    "Stream ID": "stream",
    "Task ID": "task",
    "Device_id": "device",
}

#: Units that compute; anything else on a device copies, waits or marks something.
_COMPUTES: Final = re.compile(
    r"^(AI_|AIC|AIV|AICPU|MIX_|KERNEL|DSA|DVPP|HCCL|COMMUNICATION|FFTS)", re.IGNORECASE
)
_MARKS: Final = re.compile(r"^PROFILING_")
_WAITS: Final = re.compile(
    r"^(event|notify|capture_?wait|wait|write[ _]?value|place_?holder|label|stream|fusion_issue)",
    re.IGNORECASE,
)
_COPIES: Final = re.compile(r"^(memcpy|sdma|pcie_?dma)", re.IGNORECASE)
_SETS: Final = re.compile(r"^memset", re.IGNORECASE)

#: msprof's directions of a copy -> ``kernels.copy_kind``.
DIRECTIONS: Final = {
    "host to host": "HtoH",
    "host to device": "HtoD",
    "device to host": "DtoH",
    "device to device": "DtoD",
    "addr device to device": "DtoD",
    "host to device ex": "HtoD",
    "device to host ex": "DtoH",
}
#: HCCL's element types -> torch's names, and bytes per element.
ELEMENTS: Final = {
    "INT8": ("Char", 1),
    "UINT8": ("Byte", 1),
    "INT16": ("Short", 2),
    "UINT16": ("UInt16", 2),
    "FP16": ("Half", 2),
    "BFP16": ("BFloat16", 2),
    "INT32": ("Int", 4),
    "UINT32": ("UInt32", 4),
    "FP32": ("Float", 4),
    "INT64": ("Long", 8),
    "UINT64": ("UInt64", 8),
    "FP64": ("Double", 8),
    "INT128": ("Int128", 16),
}
#: ``hcom_allReduce__586_0_1``: the collective, and the numbers of its group and its turn in it.
_COLLECTIVE: Final = re.compile(r"hcom_([A-Za-z]+)_", re.IGNORECASE)
_COLLECTIVES: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallvc": "all_to_all",
    "receive": "recv",
    "batchsendrecv": "send_recv",
}

STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})")


def kind_of(name: str, unit: str) -> str:
    """Return the kind (``kernels.kind``) of a task of this name and type."""
    if _COMPUTES.match(unit):
        return "kernel"
    rules = ((_MARKS, "overhead"), (_WAITS, "sync"), (_COPIES, "memcpy"), (_SETS, "memset"))
    for word in (name, unit):
        for pattern, kind in rules:
            if pattern.match(word):
                return kind
    return "kernel"


def collective_of(name: str) -> str | None:
    """Return the collective that an HCCL operator of this name performs; None if it is none."""
    found = _COLLECTIVE.match(name)
    if found is None:
        return None
    word = found[1].lower()
    return _COLLECTIVES.get(word, word)
