"""Names in Nsight Systems' tables, and haiprof's names for them.

Tests: tests/sources/nsys/test_activities.py.
"""

from __future__ import annotations

from typing import Final

#: ns: the sum of three of them, the session's beginning, a time and a duration, fits an int64.
FAR: Final = 3_000_000_000_000_000_000

#: ``copyKind`` -> ``kernels.copy_kind``: CUPTI's numbers, then those of unified memory.
COPY_KINDS: Final = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "HtoD",
    12: "DtoH",
    13: "DtoD",
}
#: ``srcKind``, ``dstKind``, ``memKind``: where the memory is.
MEMORIES: Final = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
#: ``syncType`` -> torch.profiler's name for the same.
WAITS: Final = {
    1: "Event Sync",
    2: "Stream Wait Event",
    3: "Stream Sync",
    4: "Context Sync",
}
#: The version suffix of calls of CUDA's libraries, as nsys' own reports write it.
API_VERSION: Final = r"_v\d{4,5}$"

#: ``eventType`` of ranges: push/pop, start/end, and the same from NVTX text files.
NVTX_RANGES: Final = (59, 60, 70, 71)
#: ``eventType`` of a domain's name.
NVTX_DOMAIN: Final = 75

#: How ``torch.autograd.profiler.emit_nvtx`` writes an operator.
EMITTED: Final = (
    r"^(?<name>.+?)(?:, seq = (?<seq>-?\d+))?(?:, op_id = (?<op>\d+))?"
    r"(?:, sizes = (?<sizes>\[.*?\]))?(?:, input_op_ids = .*)?$"
)
#: Operator names in such ranges; without the parts it appends, only torch's own namespaces.
OPERATOR: Final = (
    r"^(?:autograd::engine::evaluate_function: )?"
    r"(?:(?:[a-z_]\w*::)+[\w.:]+|\w*Backward\w*|detach_?)$"
)
PLAIN_OPERATOR: Final = (
    r"^(?:aten|prims|c10d|_c10d_functional|torchvision|torch::autograd)::[\w.:]+$"
)
#: The prefix of a module's call in Lightning's profiler.
MODULE: Final = r"^\[pl\]\[module\](?:.*: )?(?<module>[^:]+)$"
#: Launchers' variables for a process's rank and the world size.
RANK_VARIABLES: Final = (
    "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID",
)  # fmt: skip
WORLD_VARIABLES: Final = (
    "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS",
)  # fmt: skip


def copy_name(kind: int | None, source: int | None, target: int | None) -> str:
    """Return torch.profiler's name for a copy: ``Memcpy HtoD (Pinned -> Device)``."""
    way = COPY_KINDS.get(kind or 0, "Unknown")
    ends = [MEMORIES.get(-1 if end is None else end, "Unknown") for end in (source, target)]
    return f"Memcpy {way} ({ends[0]} -> {ends[1]})"


def set_name(memory: int | None) -> str:
    """Return torch.profiler's name for a memset: ``Memset (Device)``."""
    return f"Memset ({MEMORIES.get(-1 if memory is None else memory, 'Unknown')})"
