"""Names in trace files, of every vendor and age, and haiprof's names for them.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from haiprof.common.element_types import element_bytes

#: Categories of events on the host -> ``spans.category``.
HOST: Final = {
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "user",
    "python_function": "python",
    "overhead": "overhead",
    "cuda_profiler_range": "counters",
    "runtime": "runtime",
    **{
        f"{maker}_{layer}": "runtime"
        for maker in ("cuda", "hip", "mtia", "xpu", "glow", "hpu", "musa", "npu", "privateuse1")
        for layer in ("runtime", "driver")
    },
}
#: Categories of events on a device -> ``kernels.kind``.
DEVICE: Final = {
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "hpu_op": "kernel",
    "mtia_ccp_events": "kernel",
    "mtia_workloadd": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_sync": "sync",
}
#: User ranges as a device saw them: ``device_spans``.
DEVICE_RANGE: Final = "gpu_user_annotation"
#: How long the profiler was on; the rows show the same.
UNWANTED: Final = ("trace", "external_correlation")
#: Stands for all categories not listed here.
OTHER: Final = "*"
#: Where the parser puts each category; "" is nowhere.
ROUTES: Final = {
    **dict.fromkeys(HOST, "spans"),
    **dict.fromkeys(DEVICE, "activities"),
    DEVICE_RANGE: "activities",
    **dict.fromkeys(UNWANTED, ""),
    # Counted by name.
    OTHER: "spans",
}
#: Categories whose arguments are kept unchanged: users choose the names of counters.
WITH_ARGUMENTS: Final = ("cuda_profiler_range",)

#: ``Device Type`` of torch's allocator events -> ``allocations.kind``.
MEMORY: Final = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    9: "xla",
    12: "xpu",
    13: "mps",
    14: "meta",
    15: "hpu",
    18: "ipu",
    19: "mtia",
    20: "privateuse1",
}
#: Categories of arrows -> ``flows.kind``.
FLOWS: Final = {
    "forward_backward": "fwdbwd",
    "async": "ac2g",
    "async_cpu_to_gpu": "ac2g",
    "async_gpu": "ac2g",
}

_STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})")
_COPY: Final = re.compile(r"[HDAP]to[HDAP]")
_COPY_OF_HIP: Final = {
    "HostToDevice": "HtoD",
    "DeviceToHost": "DtoH",
    "DeviceToDevice": "DtoD",
    "HostToHost": "HtoH",
}
_COLLECTIVE: Final = re.compile(
    r"(?:nccl|gloo|mpi|ucc|xccl|hccl):(?P<op>.+)|c10d::(?P<c10d>.+)|(?P<record>record_param_comms)"
)


def step_of(name: str) -> int | None:
    """Return the step number in a range's name."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def copy_kind(name: str) -> str | None:
    """Return the direction of a copy of this name: HtoD, DtoH, …."""
    found = _COPY.search(name)
    if found:
        return found[0]
    return next((kind for said, kind in _COPY_OF_HIP.items() if said in name), None)


def collective_of(name: str) -> str | None:
    """Return the communication that a call of this name starts; None if it starts none."""
    found = _COLLECTIVE.fullmatch(name)
    return None if found is None else found["op"] or found["c10d"] or found["record"]


def input_bytes(shapes: str, types: str) -> int | None:
    """Return the bytes of all inputs, from their shapes and types (JSON); None if none is known."""
    try:
        sizes: Any = json.loads(shapes)
        kinds: Any = json.loads(types)
    except ValueError:
        return None
    if not isinstance(sizes, list) or not isinstance(kinds, list):
        return None
    total = None
    for size, kind in zip(sizes, kinds, strict=False):
        each = element_bytes(kind)
        if each is None or not isinstance(size, list):
            continue
        if all(type(n) is int and n >= 0 for n in size):
            total = (total or 0) + math.prod(size) * each
    return total if total is None or total < 1 << 63 else None
