"""Rules on how well devices are used while they work, and on how they are driven."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from haiprof.common.numbers import milliseconds, percent, size
from haiprof.findings.deep.case import WORTH, Case, Device
from haiprof.findings.deep.code_line import line, module
from haiprof.findings.deep.recommendation import Finding
from haiprof.findings.deep.where import largest, outermost_name, times
from haiprof.views.intervals import covered, merge, subtract
from haiprof.views.trace.critical_path.what_if import Work
from haiprof.views.trace.linking.names import numbered

#: The plugin's thresholds.
UTILIZATION: Final = 0.50
MEMORY: Final = 0.90
#: Runs on a processor of an NPU that is built for control, not for computing.
AI_CPU: Final = re.compile(r"(?i)^(KERNEL_)?(AI_?CPU|HOST_?CPU)")
#: Types of operators that make random numbers.
RANDOM: Final = re.compile(r"(?i)random|drop_?out.*mask|multinomial|bernoulli|normal|uniform")
_ADVICE_TYPES: Final = (
    "give them types that the cores have kernels for (float32, float16 or int32 for int64, int16, "
    "double or complex), or replace them: a mask or index_select for indexing, for example"
)
_ADVICE_RANDOM: Final = (
    "let the NPU's own unit make the random numbers: dropout by "
    "torch_npu.contrib.module.DropoutWithByteMask (made for devices with 32 cores), or a newer "
    "CANN and torch_npu, whose masks come from DSAGenBitMask; make other random numbers once, or "
    "on the host ahead of the step"
)
#: How to save copies, by what their kind contains.
_COPIES: Final = {
    "HtoD": "copy the next input while this one is computed: from pinned memory with "
    "non_blocking=True, on a stream of its own; or copy less (smaller types, decode on the device)",
    "DtoH": "copy results to the host less often, to pinned memory with non_blocking=True",
    "PtoP": "start the copy as soon as its source is there, on a stream of its own",
    "memset": "let the kernels that come next set what they need: zero_grad(set_to_none=True), "
    "torch.empty instead of torch.zeros",
    "DtoD": "avoid the copies: write to views and with out=, keep one memory format, and let "
    "torch.compile fuse what changes types or layouts",
}
#: At most this many kinds of operators are named.
_NAMED: Final = 3
#: Compute capability of the first NVIDIA GPUs with tensor cores for float16, of the first with
#: bfloat16 and TF32, and of the first that NCCL is best on.
_FLOAT16_SINCE: Final = (7, 0)
_BFLOAT16_SINCE: Final = (8, 0)
_NCCL_SINCE: Final = (3, 5)
#: Kernels whose names say that they multiply float32 on the ordinary units.
_FLOAT32: Final = re.compile(r"sgemm|ffma|simt|scudnn|winograd|f32f32_f32f32_f32|cgemm|fft2d_[rc]2")
_FLOATS: Final = ("float", "double", "c10::complex")


def slow_unit(case: Case) -> Iterator[Finding]:
    """Operators that run on a processor of the NPU while its cores are idle."""
    activities = case.linked.activities
    slow = activities.select(pl.col("unit").cast(pl.String).str.contains(AI_CPU.pattern))
    on_cpu = slow.to_series().fill_null(False).to_numpy() & case.linked.in_role("kernel")
    if not on_cpu.any():
        return
    begun, ended = activities["start"].to_numpy(), activities["end"].to_numpy()
    others = case.linked.busy & ~on_cpu
    alone = subtract(*merge(begun[on_cpu], ended[on_cpu]), *merge(begun[others], ended[others]))
    low, high = case.linked.steps["start"].to_numpy(), case.linked.steps["end"].to_numpy()
    each = covered(*alone, low, high)
    lost = int(each.sum())
    if lost < WORTH * case.stepped:
        return
    ran = activities.filter(pl.Series(on_cpu)).select(
        pl.coalesce(pl.col("op_type").cast(pl.String), pl.col("name").cast(pl.String)).alias("op"),
        pl.col("duration"),
        pl.Series("launcher", case.linked.launcher[on_cpu]),
    )
    kinds = (
        ran.group_by("op")
        .agg(pl.len(), pl.col("duration").sum())
        .sort("duration", "op", descending=[True, False])
    )
    names = ", ".join(
        f"{op} {times(count)} in {milliseconds(took)}"
        for op, count, took in kinds.head(_NAMED).iter_rows()
    )
    more = f" and {kinds.height - _NAMED} more" if kinds.height > _NAMED else ""
    most = ran.filter(pl.col("op") == kinds["op"][0], pl.col("launcher") >= 0)
    row = largest(*most.select("launcher", "duration").to_numpy().T) if most.height else -1
    random = RANDOM.search(kinds["op"][0]) is not None
    yield Finding(
        "slow_unit",
        f"{percent(lost / case.stepped)} of the steps is operators on the AI CPU while the cores "
        "of the NPU are idle",
        _ADVICE_RANDOM if random else _ADVICE_TYPES,
        f"{milliseconds(lost)} of {milliseconds(case.stepped)} in the recorded steps: "
        f"{names}{more}",
        case.saved(lost),
        lost / case.stepped,
        case.step(int(each.argmax())),
        kinds["op"][0] if row < 0 else outermost_name(case.linked, row),
        line(case.linked, row) if row >= 0 else None,
        module(case.linked, row) if row >= 0 else None,
        case.replayed(each, Work(on_cpu)),
    )


def copies(case: Case) -> Iterator[Finding]:
    """Copies that nothing hides."""
    linked = case.linked
    begun, ended = (linked.activities[each].to_numpy() for each in ("start", "end"))
    copying = linked.in_role("memcpy", "memset")
    other = linked.in_role("kernel", "communication")
    alone = subtract(*merge(begun[copying], ended[copying]), *merge(begun[other], ended[other]))
    each = case.by_step(*alone)
    lost = int(each.sum())
    if lost < WORTH * case.stepped or not lost:
        return
    ran = linked.activities.filter(pl.Series(copying)).select(
        pl.col("name").cast(pl.String),
        pl.coalesce(pl.col("copy_kind").cast(pl.String), pl.col("kind").cast(pl.String)).alias(
            "of"
        ),
        pl.col("duration"),
        pl.col("bytes"),
        pl.Series("launcher", linked.launcher[copying]),
    )
    kinds = ran.group_by("of").agg(pl.col("duration").sum(), pl.len(), pl.col("bytes").sum())
    kind, took, count, moved = kinds.sort("duration", "of", nulls_last=False).row(-1)
    mine = ran.filter(pl.col("of") == kind)
    row = largest(*mine.select("launcher", "duration").to_numpy().T)
    amount = f", {size(moved)}" if moved else ""
    yield Finding(
        "copies",
        f"{percent(lost / case.stepped)} of the steps is copies during which nothing is computed, "
        f"mostly {kind}",
        next((advice for way, advice in _COPIES.items() if way in str(kind)), _COPIES["DtoD"]),
        f"{milliseconds(lost)} of {milliseconds(case.stepped)} in the recorded steps; {kind} "
        f"{times(count)} in {milliseconds(took)}{amount}",
        case.saved(lost),
        lost / case.stepped,
        case.step(int(each.argmax())),
        outermost_name(linked, row) if row >= 0 else mine["name"][0],
        line(linked, row) if row >= 0 else None,
        module(linked, row) if row >= 0 else None,
        case.replayed(each, Work(copying)),
    )


def unexplained(case: Case) -> Iterator[Finding]:
    """The plugin's rule for a GPU that is little used, where the trace does not have the reason."""
    idle, _ = case.idle
    dark = int(idle.length[idle.of("other") & (idle.span < 0)].sum()) // case.lanes
    whole = int(idle.length.sum()) // case.lanes
    for row in case.overview.devices.iter_rows(named=True):
        if row["utilization"] is None or row["utilization"] >= UTILIZATION or 2 * dark < whole:
            continue
        yield Finding(
            "utilization",
            f"GPU {row['device']} ran kernels for {percent(row['utilization'])} of the time, and "
            "the trace does not have what the host did meanwhile",
            "record what the host does too (Python functions by with_stack=True, the operating "
            "system's calls by nsys --trace=osrt), or a trace of the steps alone",
            f"{row['kernels']} kernels in {milliseconds(case.stepped)}; for {milliseconds(dark)} "
            "the device was idle, and no operator or call of the runtime was active",
        )


def tensor_cores(case: Case) -> Iterator[Finding]:
    """There are tensor cores, operators could use them, and their kernels are known not to."""
    able = [d for d in case.devices if d.capability and d.capability >= _FLOAT16_SINCE]
    if not able or case.job.vendor != "nvidia" or case.overview.tensor_core != 0:
        return
    linked = case.linked
    kernels, texts = linked.named_activities
    plain = [bool(name and _FLOAT32.search(name)) for name in texts.cast(pl.String).to_list()]
    launcher = np.append(linked.launcher, -1)[: linked.activities.height]
    eligible = np.append(linked.eligible, False)[launcher] & linked.in_role("kernel")
    single = np.append(_single_precision(case), False)[launcher]
    mine = eligible & (single | np.array(plain, np.bool_)[kernels])
    begun, ended = (linked.activities[each].to_numpy() for each in ("start", "end"))
    each = case.by_step(*merge(begun[mine], ended[mine]))
    lost = int(each.sum())
    if lost < WORTH * case.stepped or not lost:
        return
    length = np.where(mine, ended - begun, 0)
    row = largest(np.where(mine, launcher, -1), length)
    yield Finding(
        "tensor_cores",
        f"{percent(lost / case.stepped)} of the steps is single-precision kernels of operators "
        f"that could use the tensor cores of {able[0].name or 'the GPU'}, which are never used",
        _precision(case, able[0]),
        f"{milliseconds(lost)} of {milliseconds(case.stepped)} in the recorded steps; no kernel "
        "uses tensor cores",
        case.saved(lost),
        lost / case.stepped,
        case.step(int(each.argmax())),
        str(linked.ops["name"][row]) if row >= 0 else None,
        line(linked, row) if row >= 0 else None,
        module(linked, row) if row >= 0 else None,
        case.replayed(each, Work(mine)),
    )


def _precision(case: Case, device: Device) -> str:
    scaler = " with a GradScaler" if case.job.trains else ""
    if (device.capability or (0, 0)) < _BFLOAT16_SINCE:
        return f"compute in float16: torch.autocast('cuda', torch.float16){scaler}"
    return (
        "compute in bfloat16 (torch.autocast), or allow TF32 "
        "(torch.set_float32_matmul_precision('high'))"
    )


def _single_precision(case: Case) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Say of each span whether its recorded inputs that have a type are of single precision."""
    number, texts = numbered(case.linked.ops["types"])
    known = [text is not None and _all_single(text) for text in texts.cast(pl.String).to_list()]
    return np.array(known, np.bool_)[number]


def _all_single(text: str) -> bool:
    try:
        types = json.loads(text)
    except (ValueError, RecursionError):
        return False
    named = [each for each in types if isinstance(each, str)] if isinstance(types, list) else []
    tensors = [each for each in named if each not in ("", "Scalar", "ScalarList")]
    return bool(tensors) and all(each == "float" for each in tensors if "Tensor" not in each)


def memory(case: Case) -> Iterator[Finding]:
    """The plugin's rule: little memory is left."""
    if case.job.server:
        return  # a server fills the memory with its cache of keys and values, on purpose
    capacities = {
        place if device.ordinal is None else device.ordinal: device.memory_bytes
        for place, device in enumerate(case.devices)
    }
    for device, allocated, reserved in peaks(case.allocations).sort("device").iter_rows():
        most = max(allocated or 0, reserved or 0)
        capacity = capacities.get(device)
        if capacity and most > MEMORY * capacity:
            yield Finding(
                "memory",
                f"{percent(most / capacity)} of the memory of GPU {device} is in use at the peak",
                "smaller batches with gradient accumulation, activation checkpointing, or a "
                "sharded optimizer leave room"
                if case.job.trains
                else "smaller batches, or weights in a smaller type, leave room",
                f"{size(most)} of {size(capacity)}",
            )


def peaks(allocations: pl.DataFrame) -> pl.DataFrame:
    """Return one row per device that is equivalent to all of its :data:`ALLOCATIONS`."""
    return (
        allocations.filter(pl.col("device").is_not_null())
        .group_by("device")
        .agg(pl.col("total_allocated").max(), pl.col("total_reserved").max())
    )


def data_parallel(case: Case) -> Iterator[Finding]:
    """The plugin's rules: one process drives several GPUs; or DDP does not use NCCL."""
    names = case.linked.named[1].cast(pl.String).to_list()
    if "DataParallel.forward" in names:
        yield Finding(
            "data_parallel",
            "the model is wrapped in DataParallel: one Python process drives all GPUs",
            "use DistributedDataParallel, with one process per GPU",
            "DataParallel.forward was called",
        )
    able = any(d.capability and d.capability >= _NCCL_SINCE for d in case.devices)
    if able and case.job.ddp and case.backends and "nccl" not in case.backends:
        yield Finding(
            "backend",
            f"gradients are reduced by {', '.join(case.backends)}",
            'use backend="nccl" in torch.distributed.init_process_group',
            "DistributedDataParallel.forward was called, and NCCL was not initialised",
        )
