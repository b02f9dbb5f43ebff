"""What an export of Nsight Systems does not record, and how to have it recorded.

Tests: tests/sources/nsys/test_views.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from haiprof import schema
from haiprof.sources import tables

_NVTX: Final = "profile with --trace=cuda,nvtx and torch.autograd.profiler.emit_nvtx()"
#: What no version records.
_NEVER: Final = {
    "allocations": "Nsight Systems records cudaMalloc only, not of torch's allocator: "
    "record with haiprof trace",
    "flows": "Nsight Systems has no arrows from forward to backward: record with haiprof trace",
    "device_spans": "Nsight Systems records ranges on the host only",
    "spans.types": "NVTX ranges of torch lack the types of inputs",
    "spans.stack": "NVTX ranges of torch lack call stacks: record with haiprof trace",
    "spans.forward_thread": "NVTX ranges of torch do not name the thread of the forward op",
    "spans.python_id": "Python's functions are not read: record with haiprof trace",
    "kernels.occupancy": "Nsight Systems does not estimate it: profile kernels with Nsight Compute",
    "kernels.external": "kernels are known by their launches alone",
    "kernels.bandwidth": "is bytes by duration",
}
#: What an export contains if the profile was recorded with it.
_UNLESS: Final = {
    "kernels": "no work of a GPU was recorded: profile with --trace=cuda",
    "kernels.blocks_per_sm": "the export has no TARGET_INFO_GPU, which says how many SMs there "
    "are: export it with a newer nsys",
    "spans": "neither calls of CUDA nor ranges of NVTX were recorded: "
    "profile with --trace=cuda,nvtx",
    "spans.shapes": "recorded without emit_nvtx(record_shapes=True)",
    "spans.sequence": f"no operator records it: {_NVTX}",
    "spans.module": "no range names a module as Lightning's profiler does: record with "
    "haiprof trace",
    "spans.step": "no ranges are named as steps are: put torch.cuda.nvtx.range(f'step {n}') "
    "around each",
    "collectives": f"no ranges of NCCL or of torch's communication were recorded: {_NVTX}",
    "collectives.bytes": "exported without what NCCL says in its ranges: "
    "nsys export --type sqlite --include-json=true",
    "collectives.group": "exported without what NCCL says in its ranges: "
    "nsys export --type sqlite --include-json=true",
    "samples": "no metrics of GPUs were sampled: profile with --gpu-metrics-devices=all",
}
#: What is missing if no span has this category, or no activity this kind.
_KINDS: Final = {
    "spans[op]": f"no ranges are operators of torch: {_NVTX}",
    "spans[step]": _UNLESS["spans.step"],
    "spans[runtime]": "calls of CUDA were not recorded: profile with --trace=cuda",
    "spans[python]": "Python's functions are not read: record with haiprof trace",
    "spans[counters]": "Nsight Systems counts nothing for each kernel: use Nsight Compute",
    "kernels[sync]": "nothing waited for a GPU, or the version does not record it",
}


def lacks(folder: Path) -> dict[str, str]:
    """Return what the tables in ``folder`` lack, and why: see ``Imported.lacks``."""
    missing = dict(_NEVER)
    for name, table in schema.TABLES.items():
        required = next(column.name for column in table.columns if not column.nullable)
        wanted = {column.name for column in table.columns if f"{name}.{column.name}" in _UNLESS}
        there = tables.filled(folder, table, {required, *wanted})
        if name in _UNLESS and required not in there:
            missing[name] = _UNLESS[name]
        for column in wanted - there:
            missing[f"{name}.{column}"] = _UNLESS[f"{name}.{column}"]
    for name, column in (("spans", "category"), ("kernels", "kind")):
        there = tables.values(folder, schema.TABLES[name], column)
        for key, why in _KINDS.items():
            table_name, _, kind = key.removesuffix("]").partition("[")
            if table_name == name and kind not in there:
                missing[key] = why
    return missing
