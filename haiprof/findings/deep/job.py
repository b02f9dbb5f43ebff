"""What kind of job a trace is of: what advice has to fit."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import polars as pl

from haiprof.views.trace.linking.host_roles import OPTIMIZING
from haiprof.views.trace.linking.linked import Linked

_BACKWARD: Final = re.compile(r"Backward\d*$|^autograd::engine")
_COMPILED: Final = re.compile(
    r"^CompiledFunction|^Torch-Compiled Region|^## Call CompiledFxGraph"
    r"|torch/_inductor/output_code\.py|/torchinductor_"
)
_COMPILED_KERNEL: Final = re.compile(r"^triton_(poi|red|per|tem|for)_")
_GRAPH: Final = re.compile(r"^(cuda|cu|hip)GraphLaunch")
_FUSED: Final = re.compile(r"FusedAdam|FusedLAMB|FusedSGD|aten::_fused_(adam|adamw|sgd|adagrad)")
_SERVING: Final = re.compile(r"(^|/)(vllm|sglang)(::|/)|^(vllm|sgl_kernel|sglang)::")
#: vLLM's range around one run of the model: how many requests it prefills, and how many it decodes.
_BATCH: Final = re.compile(r"^execute_.*?context_(\d+)\D.*generation_(\d+)\b")
_AMD: Final = re.compile(r"(?i)\b(AMD|Instinct|Radeon|MI\d{2,3}X?)\b")
#: How calls of a vendor's runtime begin.
_CALLS: Final = {
    "amd": ("hip",),
    "ascend": ("AscendCL@", "aclnn", "Enqueue@", "Node@"),
    "nvidia": ("cuda",),
    "mtia": ("enqueueCommand",),
}
_SHARDED: Final = re.compile(r"(?i)FSDP|FullyShardedDataParallel|fully_shard")


class Job(NamedTuple):
    """What the trace shows of its job."""

    #: Operators of torch ran.
    torch: bool
    #: It trains: there is a backward pass, or an optimizer.
    trains: bool
    #: There are regions that torch.compile compiled.
    compiled: bool
    #: CUDA graphs (or HIP's) are launched.
    graphed: bool
    #: The optimizer updates its parameters in few kernels.
    fused_optimizer: bool
    #: vLLM or SGLang serves a model; empty if none does.
    server: str
    #: Runs of the served model that only prefill, that only decode, and that do both.
    prefills: int
    decodes: int
    mixed: int
    #: Gradients are reduced by DistributedDataParallel.
    ddp: bool
    #: Parameters are sharded (FSDP).
    sharded: bool
    #: ``nvidia``, ``amd``, ``ascend``, ``mtia``, or empty: not known.
    vendor: str


def job_of(linked: Linked, device: str = "") -> Job:
    """Say what kind of job a trace is of; ``device`` is the name of its first GPU."""
    names = [name for name in linked.named[1].cast(pl.String).to_list() if name]
    kernels = [name for name in linked.named_activities[1].cast(pl.String).to_list() if name]

    def has(pattern: re.Pattern[str], among: list[str]) -> bool:
        return any(pattern.search(name) for name in among)

    served = has(_SERVING, names)
    batches = [match for name in names if (match := _BATCH.search(name))]
    kinds = [(int(match[1]) > 0, int(match[2]) > 0) for match in batches]
    return Job(
        torch=any(name.startswith(("aten::", "torch")) for name in names) or not names,
        trains=has(_BACKWARD, names) or has(OPTIMIZING, names),
        compiled=has(_COMPILED, names) or has(_COMPILED_KERNEL, kernels),
        graphed=has(_GRAPH, names) or not linked.activities["graph"].is_null().all(),
        fused_optimizer=has(_FUSED, names),
        server=_server(names) if served or batches else "",
        prefills=kinds.count((True, False)),
        decodes=kinds.count((False, True)),
        mixed=kinds.count((True, True)),
        ddp="DistributedDataParallel.forward" in names,
        sharded=has(_SHARDED, names),
        vendor=_vendor(names, device),
    )


def _server(names: list[str]) -> str:
    return "SGLang" if any(re.search(r"sglang|sgl_kernel", name) for name in names) else "vLLM"


def _vendor(names: list[str], device: str) -> str:
    for vendor, prefixes in _CALLS.items():
        if any(name.startswith(prefixes) for name in names):
            return vendor
    if _AMD.search(device):
        return "amd"
    return "nvidia" if re.search(r"NVIDIA|Tesla|GeForce|Quadro", device) else ""
