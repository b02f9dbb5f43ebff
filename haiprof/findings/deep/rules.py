"""What to change about a job, from one rank's deep trace: one rule per reason for lost time.

The TensorBoard plugin's advice, and for each reason why the device was idle within a step
(:mod:`haiprof.findings.deep.idle_gaps`) the line of code, the step and the time that can be saved.
A rule says nothing about what its trace cannot show.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.numbers import milliseconds, percent, size
from haiprof.findings.deep import idle_gaps as idle
from haiprof.findings.deep.code_line import line
from haiprof.findings.deep.recommendation import Finding
from haiprof.views.intervals import covered, merge, subtract
from haiprof.views.trace.linking.host_roles import OPTIMIZING
from haiprof.views.trace.linking.linked import BUSY, Linked, enclosing
from haiprof.views.trace.overview import Overview, overview

#: The plugin's threshold: a share of the steps worth mentioning.
DATA_LOADING = 0.05
COMMUNICATION = 0.10
UTILIZATION = 0.50
MEMORY = 0.90
#: Our threshold for an idle device.
IDLE = 0.02
#: A kernel is small if it takes less time than launching one, ns.
SMALL = 5_000
#: Runs on a processor of an NPU that is built for control, not for computing.
AI_CPU = re.compile(r"(?i)^(KERNEL_)?(AI_?CPU|HOST_?CPU)")
#: Types of operators that make random numbers.
RANDOM = re.compile(r"(?i)random|drop_?out.*mask|multinomial|bernoulli|normal|uniform")
_ADVICE_TYPES = (
    "give them types that the cores have kernels for (float32, float16 or int32 for int64, int16, "
    "double or complex), or replace them: a mask or index_select for indexing, for example"
)
_ADVICE_RANDOM = (
    "let the NPU's own unit make the random numbers: dropout by "
    "torch_npu.contrib.module.DropoutWithByteMask (made for devices with 32 cores), or a newer "
    "CANN and torch_npu, whose masks come from DSAGenBitMask; make other random numbers once, or "
    "on the host ahead of the step"
)
#: At most this many kinds of operators are named.
_NAMED = 3
#: The columns of allocations that rules need.
ALLOCATIONS = ("device", "total_allocated", "total_reserved")
#: Compute capability of the first GPUs with tensor cores, and of the first that NCCL is best on.
_TENSOR_CORES_SINCE = (7, 0)
_NCCL_SINCE = (3, 5)


#: The columns that identify one trace of a run, as in the Analyzer's frames.
TRACE_KEY = ("node", "rank", "pid", "session")
TraceKey: TypeAlias = tuple[object, ...]


@dataclasses.dataclass(frozen=True)
class Device:
    """The properties of a GPU that rules need."""

    name: str
    memory_bytes: int | None
    capability: tuple[int, int] | None
    #: Its CUDA ordinal, if that is not its index in the list.
    ordinal: int | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One rank's trace, and what the rules share."""

    linked: Linked
    overview: Overview
    gaps: idle.Gaps
    allocations: pl.DataFrame
    devices: Sequence[Device]
    backends: Sequence[str]

    @property
    def stepped(self) -> int:
        """Total time of all recorded steps, ns."""
        steps = self.linked.steps
        return int((steps["end"] - steps["start"]).sum())

    @property
    def has_device(self) -> bool:
        """Whether any device did anything."""
        return bool(self.linked.busy.any())


def recommendations(
    linked: Linked,
    allocations: pl.DataFrame,
    devices: Sequence[Device] = (),
    backends: Sequence[str] = (),
) -> list[Finding]:
    """Return what makes this rank slow, in the order of the rules.

    Args:
        linked: the trace.
        allocations: :data:`ALLOCATIONS` of the table of that name, or :func:`peaks` of these.
        devices: the GPUs of the process.
        backends: of torch.distributed: ``nccl``, ``gloo``, …
    """
    case = Case(linked, overview(linked), idle.find(linked), allocations, devices, backends)
    if not case.stepped:
        return []
    return [finding for rule in RULES for finding in rule(case)]


def _finding(
    case: Case,
    cause: str,
    problem: str,
    advice: str,
    evidence: Callable[[str, str], str],
    around: bool = True,
) -> Iterator[Finding]:
    """Describe the gaps of one cause: of the operator that explains most of their time.

    ``around``: that is the outermost operator around what the host did then.
    """
    gaps = case.gaps
    of = gaps.cause == idle.CAUSES.index(cause)
    lost = int(gaps.length[of].sum())
    if lost < IDLE * case.stepped:
        return
    rows, length = gaps.row[of], gaps.length[of]
    operator = _outermost(case.linked, rows) if around else rows
    number, texts = case.linked.named
    named = number[operator]
    names = texts.cast(pl.String).to_list()
    each, total = _summed(named, length)
    most = int(total.max())
    among = [(names[key] or "", key) for key in each[total == most].tolist()]
    mine = named == max(among)[1]
    name = names[max(among)[1]]
    count = len(np.unique(operator[mine]))
    where = line(case.linked, _largest(rows[mine], length[mine]))
    share = f"{milliseconds(lost)} of {milliseconds(case.stepped)} in the recorded steps"
    at = case.linked.steps["step"][_largest(gaps.step[of], length)]
    yield Finding(
        cause,
        problem.format(share=percent(lost / case.stepped)),
        advice,
        f"{share}; {evidence(_times(count), milliseconds(most)).replace('{name}', name)}",
        lost,
        lost / case.stepped,
        None if at is None or not case.linked.stepped else int(at),
        name,
        where,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _outermost(linked: Linked, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """For each span the outermost operator (or optimizer) around it, or itself without one."""
    outermost = linked.once(_outermost_operator)[rows]
    return np.where(outermost >= 0, outermost, rows)


def _outermost_name(linked: Linked, row: int) -> str:
    return str(linked.ops["name"][int(_outermost(linked, np.array([row], np.int32))[0])])


def _outermost_operator(linked: Linked) -> npt.NDArray[np.int32]:
    """For each span the outermost operator (or optimizer) that it runs in, or -1."""
    counts = linked.host.operator | idle.named(linked, OPTIMIZING)
    around = enclosing(linked, counts)
    return enclosing(linked, counts & (around < 0))


def _summed(
    keys: npt.NDArray[np.integer], values: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]:
    """Return each key once, ascending, and the sum of its values."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return keys[first], np.add.reduceat(values[order], first)


def _largest(keys: npt.NDArray[np.integer], values: npt.NDArray[np.int64]) -> int:
    """Return the key with the greatest sum of values, of several the greatest."""
    each, total = _summed(keys, values)
    return int(each[total == total.max()][-1])


def data_loading(case: Case) -> Iterator[Finding]:
    """The device waits for the next batch; the plugin's rule if there is no device."""
    yield from _finding(
        case,
        "data_loading",
        "the device was idle for {share} of the time because the next batch was not there",
        "give the DataLoader more num_workers, pin_memory=True and persistent_workers=True, "
        "or make its work cheaper",
        lambda times, most: f"{most} of it in {{name}}, {times}",
    )
    share = _of_step(case, "dataloader")
    if not case.has_device and share > DATA_LOADING:
        lost = int(share * case.stepped)
        yield Finding(
            "data_loading",
            f"{percent(share)} of the steps is spent in the DataLoader",
            "give the DataLoader more num_workers, or make its work cheaper",
            f"{milliseconds(lost)} of {milliseconds(case.stepped)} in the recorded steps",
            lost,
            share,
        )


def synchronisation(case: Case) -> Iterator[Finding]:
    """The host waits for the device, and then the device for the host."""
    yield from _finding(
        case,
        "synchronisation",
        "the device was idle for {share} of the time because the host waited for its "
        "result before it launched anything more",
        "take .item(), .cpu(), .numpy(), print() and comparisons of tensors out of the step, or "
        "do them every few hundred steps; copy to the host with non_blocking=True",
        lambda times, most: f"{most} of it below {{name}}, {times}",
    )


def cpu_operator(case: Case) -> Iterator[Finding]:
    """Operators that work on the host while the device is idle."""
    yield from _finding(
        case,
        "cpu_operator",
        "the device was idle for {share} of the time while operators worked on the host "
        "and launched nothing",
        "move their inputs to the device, do it in the DataLoader's workers, or do it less often",
        lambda times, most: f"{most} of it in {{name}}, {times}",
        around=False,
    )


def launch(case: Case) -> Iterator[Finding]:
    """The host cannot launch as fast as the device works."""
    kernels = case.linked.in_role("kernel", "communication")
    small = kernels & (case.linked.activities["duration"].to_numpy() < SMALL)
    evidence = (
        f"{np.count_nonzero(small)} of {np.count_nonzero(kernels)} kernels last less than "
        f"{milliseconds(SMALL)}"
    )
    yield from _finding(
        case,
        "launch",
        "the device was idle for {share} of the time because the host was still "
        "preparing the next kernel",
        "use torch.compile or CUDA graphs, fused optimizers (fused=True, foreach=True), or "
        "larger batches: fewer and larger kernels",
        lambda times, most: f"{evidence}; {most} of it below {{name}}, {times}",
    )


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
    if lost < IDLE * case.stepped:
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
        f"{op} {_times(count)} in {milliseconds(took)}"
        for op, count, took in kinds.head(_NAMED).iter_rows()
    )
    more = f" and {kinds.height - _NAMED} more" if kinds.height > _NAMED else ""
    most = ran.filter(pl.col("op") == kinds["op"][0], pl.col("launcher") >= 0)
    row = _largest(*most.select("launcher", "duration").to_numpy().T) if most.height else -1
    random = RANDOM.search(kinds["op"][0]) is not None
    yield Finding(
        "slow_unit",
        f"{percent(lost / case.stepped)} of the steps is operators on the AI CPU while the cores "
        "of the NPU are idle",
        _ADVICE_RANDOM if random else _ADVICE_TYPES,
        f"{milliseconds(lost)} of {milliseconds(case.stepped)} in the recorded steps: "
        f"{names}{more}",
        lost,
        lost / case.stepped,
        int(case.linked.steps["step"][int(each.argmax())]) if case.linked.stepped else None,
        kinds["op"][0] if row < 0 else _outermost_name(case.linked, row),
        line(case.linked, row) if row >= 0 else None,
    )


def allocator(case: Case) -> Iterator[Finding]:
    """The caching allocator had to ask the driver for memory while the device waited."""
    yield from _finding(
        case,
        "allocator",
        "the device was idle for {share} of the time while memory was requested from "
        "the driver, or returned to it",
        "keep input sizes constant, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or "
        "leave more memory free",
        lambda times, most: f"{most} of it below {{name}}, {times}",
    )


def exposed_communication(case: Case) -> Iterator[Finding]:
    """Communication that no computation hides; the plugin's advice from 10 % of the step on."""
    activities = case.linked.activities
    begun, ended = activities["start"].to_numpy(), activities["end"].to_numpy()
    communicates, computes = case.linked.in_role("communication"), case.linked.in_role(*BUSY)
    if not case.has_device:
        yield from _on_host(case)
        return
    both = merge(begun[communicates], ended[communicates])
    alone = subtract(*both, *merge(begun[computes], ended[computes]))
    low, high = case.linked.steps["start"].to_numpy(), case.linked.steps["end"].to_numpy()
    each = covered(*alone, low, high)
    # With gloo and MPI the host communicates, while the device is idle.
    gaps = case.gaps
    waits = np.flatnonzero(gaps.cause == idle.CAUSES.index("communication"))
    np.add.at(each, gaps.step[waits], gaps.length[waits])
    lost = int(each.sum())
    whole = int(covered(*both, low, high).sum() + gaps.length[waits].sum())
    if lost < IDLE * case.stepped:
        return
    ran = activities.filter(pl.Series(communicates)).select("name", "duration")
    waited = pl.DataFrame(
        {
            "name": case.linked.ops["name"].gather(gaps.row[waits]),
            "duration": gaps.length[waits],
        }
    )
    names = (
        pl.concat(each.with_columns(pl.col("name").cast(pl.String)) for each in (ran, waited))
        .group_by("name")
        .agg(pl.col("duration").sum())
        .sort("duration", "name")
    )
    yield Finding(
        "exposed_communication",
        f"{percent(lost / case.stepped)} of the steps is communication during which nothing is "
        "computed",
        "overlap it with larger gradient buckets or FSDP prefetch, reduce less often by gradient "
        "accumulation, or use a faster network",
        f"{milliseconds(lost)} of the {milliseconds(whole)} of communication are not hidden",
        lost,
        lost / case.stepped,
        int(case.linked.steps["step"][int(each.argmax())]) if case.linked.stepped else None,
        names["name"][-1],
    )


def _on_host(case: Case) -> Iterator[Finding]:
    share = _of_step(case, "communication")
    if share > COMMUNICATION:
        lost = int(share * case.stepped)
        yield Finding(
            "exposed_communication",
            f"{percent(share)} of the steps is communication",
            "reduce less often by gradient accumulation, or use a faster network",
            f"{milliseconds(lost)} of {milliseconds(case.stepped)} in the recorded steps",
            lost,
            share,
        )


def utilization(case: Case) -> Iterator[Finding]:
    """The plugin's rule: the device is used for less than half of the time."""
    for row in case.overview.devices.iter_rows(named=True):
        if row["utilization"] is not None and row["utilization"] < UTILIZATION:
            yield Finding(
                "utilization",
                f"GPU {row['device']} ran kernels for {percent(row['utilization'])} of the time",
                "see the other findings for why; larger batches give each step more to do",
                f"{row['kernels']} kernels in {milliseconds(case.stepped)}",
            )


def tensor_cores(case: Case) -> Iterator[Finding]:
    """The plugin's rule: there are tensor cores, operators could use them, and none does."""
    able = [d for d in case.devices if d.capability and d.capability >= _TENSOR_CORES_SINCE]
    if able and case.overview.tensor_core == 0 and (case.overview.tensor_core_eligible or 0) > 0:
        yield Finding(
            "tensor_cores",
            f"the tensor cores of {able[0].name} are never used",
            "use automatic mixed precision (torch.autocast with bfloat16), or allow TF32 "
            "(torch.set_float32_matmul_precision('high')); sizes that are multiples of 8 help",
            f"operators that could use them launched "
            f"{percent(case.overview.tensor_core_eligible or 0)} of the kernels' time",
        )


def peaks(allocations: pl.DataFrame) -> pl.DataFrame:
    """Return one row per device that is equivalent to all of its :data:`ALLOCATIONS`."""
    return (
        allocations.filter(pl.col("device").is_not_null())
        .group_by("device")
        .agg(pl.col("total_allocated").max(), pl.col("total_reserved").max())
    )


def memory(case: Case) -> Iterator[Finding]:
    """The plugin's rule: little memory is left."""
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
                "sharded optimizer leave room",
                f"{size(most)} of {size(capacity)}",
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
    wrapped = "DistributedDataParallel.forward" in names
    if able and wrapped and case.backends and "nccl" not in case.backends:
        yield Finding(
            "backend",
            f"gradients are reduced by {', '.join(case.backends)}",
            'use backend="nccl" in torch.distributed.init_process_group',
            "DistributedDataParallel.forward was called, and NCCL was not initialised",
        )


def _of_step(case: Case, part: str) -> float:
    mean = case.overview.mean
    whole = mean.get("duration", 0)
    return mean.get(part, 0) / whole if whole else 0.0


#: The order of findings that save the same.
RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    data_loading,
    synchronisation,
    exposed_communication,
    slow_unit,
    launch,
    cpu_operator,
    allocator,
    utilization,
    tensor_cores,
    memory,
    data_parallel,
)


def stragglers(late: pl.DataFrame, steps: pl.DataFrame) -> dict[TraceKey, list[Finding]]:
    """Return the finding about each rank that keeps the others waiting, by its identity.

    Args:
        late: :meth:`haiprof.answers.deep.TraceAnswers.stragglers`.
        steps: the steps of all ranks: :data:`TRACE_KEY`, ``duration``.
    """
    by_trace: dict[TraceKey, list[Finding]] = {}
    whole = {
        (node, *who): int(total)
        for node, *who, total in steps.group_by(TRACE_KEY).agg(pl.col("duration").sum()).iter_rows()
    }
    hosts = Counter(node for node, *_ in {key[:3] for key in whole})
    for row in late.iter_rows(named=True):
        key = tuple(row[name] for name in TRACE_KEY)
        label = f"rank {row['rank']}" if row["rank"] is not None else row["node"]
        if row["rank"] is None and hosts[row["node"]] > 1:
            label = f"pid {row['pid']} on {label}"
        lost, ran = int(row["caused"]), whole.get(key, 0)
        if not ran or lost < IDLE * ran:
            continue
        by_trace.setdefault(key, []).append(
            Finding(
                "straggler",
                f"the other ranks waited for {label}, up to {percent(lost / ran)} of its steps",
                "check what takes this rank longer than the others: its own findings, its data, "
                "and the clocks and temperature of its GPU",
                f"it came last to {row['last']} of {row['collectives']} collectives, and kept the "
                f"first to come waiting for {milliseconds(lost)}; it waited "
                f"{milliseconds(int(row['waited']))} itself",
                lost,
                lost / ran,
            )
        )
    return by_trace
