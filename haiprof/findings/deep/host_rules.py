"""Rules on devices that were idle because the host had launched nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from haiprof.common.numbers import milliseconds, percent
from haiprof.findings.deep.case import Case
from haiprof.findings.deep.queue_rules import without_reason
from haiprof.findings.deep.recommendation import Finding
from haiprof.findings.deep.where import Lost, found, lost

#: The plugin's threshold for a job without a device: a share of the steps worth mentioning.
DATA_LOADING: Final = 0.05
#: A kernel is small if it takes less time than launching one, ns.
SMALL: Final = 5_000
_FREES: Final = re.compile(r"^(cuda|hip)Free(Async)?$")
_MAPS: Final = re.compile(r"^(cu|hip)Mem(Map|Unmap|Create|Release|SetAccess|AddressReserve)")
_OPTIMIZER: Final = "Optimizer."
_ZEROES: Final = "Optimizer.zero_grad"
_PROFILER: Final = re.compile(r"^torch/(autograd/)?profiler")
#: Operators whose result on the host the code goes on with, and those that copy.
_READS: Final = re.compile(
    r"aten::(item|_local_scalar_dense|is_nonzero|nonzero|equal|unique\w*|masked_select|__bool__)"
)
_COPIES: Final = re.compile(r"aten::(to|_to_copy|copy_|cpu|cuda)$")


def startup(case: Case) -> Iterator[Finding]:
    """The trace shows what a job does once: its steps are not what they will be."""
    mine = lost(case, "startup")
    if mine is not None:
        yield found(
            "startup",
            mine,
            "the device was idle for {share} of the time while the device was set up, or code of "
            "kernels was loaded at its first use: later steps will not do that",
            "trace later steps to see what these take: warm up first, as with "
            + (
                "torch.profiler.schedule(wait=1, warmup=3, active=3)"
                if case.job.torch
                else "nsys --delay or --capture-range"
            ),
            lambda times, most: f"{most} of it below {{name}}, {times}",
        )


def data_loading(case: Case) -> Iterator[Finding]:
    """The device waits for the next batch; the plugin's rule if there is no device."""
    mine = lost(case, "data_loading")
    single = any("_SingleProcess" in name for name in (mine.calls() if mine else ()))
    workers = (
        "load in workers: DataLoader(num_workers=…, pin_memory=True, persistent_workers=True)"
        if single
        else "give the DataLoader more workers, pin_memory=True and persistent_workers=True, or "
        "make its work cheaper"
    )
    if mine is not None:
        yield found(
            "data_loading",
            mine,
            "the device was idle for {share} of the time because the next batch was not there",
            workers,
            lambda times, most: f"{most} of it in {{name}}, {times}",
        )
    mean = case.overview.mean
    share = mean.get("dataloader", 0) / mean["duration"] if mean.get("duration") else 0.0
    if not case.has_device and share > DATA_LOADING:
        time = int(share * case.stepped)
        yield Finding(
            "data_loading",
            f"{percent(share)} of the steps is spent in the DataLoader",
            "give the DataLoader more workers (num_workers), or make its work cheaper",
            f"{milliseconds(time)} of {milliseconds(case.stepped)} in the recorded steps",
            case.saved(time),
            share,
        )


def synchronisation(case: Case) -> Iterator[Finding]:
    """The host waits for the device, and then the device for the host."""
    mine = lost(case, "synchronisation")
    if mine is None:
        return
    copies = sum(time for name, time in mine.calls().items() if "emcpy" in name)
    finding = found(
        "synchronisation",
        mine,
        "the device was idle for {share} of the time because the host waited for its result "
        "before it launched anything more",
        "",
        lambda times, most: f"{most} of it below {{name}}, {times}",
    )
    if _READS.search(finding.operator or ""):
        advice = (
            "take .item(), .cpu(), .numpy(), print(), and comparisons and sizes that depend on "
            "values out of the step, or do them every few hundred steps"
        )
    elif 2 * copies > mine.time or _COPIES.search(finding.operator or ""):
        advice = (
            "copy from and to pinned memory with non_blocking=True: a copy of pageable memory "
            "makes the host wait"
        )
    elif case.job.trains:
        advice = (
            "wait for the device less often: remove torch.cuda.synchronize() and reading of "
            "results from the step, and copy to the host with non_blocking=True"
        )
    else:
        advice = (
            "launch the next batch before waiting for the results of this one: copy these with "
            "non_blocking=True to pinned memory, and wait for that copy alone"
        )
    yield dataclasses.replace(finding, advice=advice)


def cpu_operator(case: Case) -> Iterator[Finding]:
    """Operators that work on the host while the device is idle."""
    mine = lost(case, "cpu_operator")
    if mine is not None:
        yield found(
            "cpu_operator",
            mine,
            "the device was idle for {share} of the time while operators worked on the host and "
            "launched nothing",
            "move their inputs to the device, do it in the DataLoader's workers, or do it less "
            "often"
            if case.job.trains
            else "move their inputs to the device, or do it ahead, while the device works",
            lambda times, most: f"{most} of it in {{name}}, {times}",
            around=False,
        )


def python(case: Case) -> Iterator[Finding]:
    """Python code that launches nothing while the device is idle."""
    names, texts = case.linked.named
    own = [bool(name and _PROFILER.search(name)) for name in texts.cast(pl.String).to_list()]
    profiler = np.append(np.array(own, np.bool_)[names], False)
    mine = lost(case, "python", where=lambda idle: ~profiler[idle.span])
    if mine is not None:
        yield found(
            "python",
            mine,
            "the device was idle for {share} of the time while Python code ran that launched "
            "nothing",
            "prepare the input ahead, in DataLoader workers or another thread, so that it is done "
            "while the device works"
            if case.job.trains or not case.job.server
            else "let the server prepare the next batch while the device works on this one "
            "(vLLM with --async-scheduling, SGLang without --disable-overlap-schedule)",
            lambda times, most: f"{most} of it in {{name}}, {times}",
            around=False,
        )


def launch(case: Case) -> Iterator[Finding]:
    """The host cannot launch as fast as the device works."""
    mine = lost(case, "launch")
    if mine is None:
        return
    kernels = case.linked.in_role("kernel", "communication")
    small = kernels & (case.linked.activities["duration"].to_numpy() < SMALL)
    evidence = (
        f"{np.count_nonzero(small)} of {np.count_nonzero(kernels)} kernels last less than "
        f"{milliseconds(SMALL)}"
    )
    finding = found(
        "launch",
        mine,
        "the device was idle for {share} of the time because the host was still preparing the "
        "next kernel",
        "",
        lambda times, most: f"{evidence}; {most} of it below {{name}}, {times}",
    )
    advice, evidence = _fewer_launches(case, finding.operator or ""), finding.evidence
    if without_reason(case) is not None:
        evidence += (
            "; the trace may lack activities, and the device may have been less idle: other work "
            "was launched, and did not begin for no traced reason"
        )
    yield dataclasses.replace(finding, advice=advice, evidence=evidence)


def _fewer_launches(case: Case, operator: str) -> str:
    """Say how this job launches less: only what it does not do yet."""
    job = case.job
    if job.server:
        return _server_launches(case)
    ways = []
    if job.vendor == "ascend":
        ways.append("the second level of torch_npu's queue of operators (TASK_QUEUE_ENABLE=2)")
    if job.vendor in ("nvidia", "amd", ""):
        if job.torch and not job.compiled:
            ways.append("torch.compile")
        if not job.graphed:
            graphs = "HIP graphs" if job.vendor == "amd" else "CUDA graphs"
            ways.append(
                f"{graphs} (torch.compile(mode='reduce-overhead'))" if job.compiled else graphs
            )
    if operator.startswith(_ZEROES):
        ways.insert(0, "zero_grad(set_to_none=True)")
    elif job.trains and not job.fused_optimizer and operator.startswith(_OPTIMIZER):
        ways.insert(0, "a fused optimizer (fused=True, else foreach=True)")
    larger = "larger batches give each launch more to do"
    return f"use {' or '.join(ways)}; {larger}" if ways else larger


def _server_launches(case: Case) -> str:
    job = case.job
    steps = "prefill" if job.prefills and not (job.decodes or job.mixed) else ""
    steps = "decode" if job.decodes and not (job.prefills or job.mixed) else steps
    graphs = "serve without --enforce-eager, so that CUDA graphs are captured"
    if job.server == "SGLang":
        graphs = "serve without --disable-cuda-graph"
    batch = (
        "prefill more requests, or larger chunks, at a time (--max-num-batched-tokens)"
        if steps == "prefill" and job.server == "vLLM"
        else "serve more requests at a time"
    )
    which = f"this is a {steps} step: " if steps else ""
    return f"{which}{batch}" if job.graphed else f"{which}{graphs}; {batch}"


def allocator(case: Case) -> Iterator[Finding]:
    """The caching allocator had to ask the driver for memory while the device waited."""
    mine = lost(case, "allocator")
    if mine is not None:
        yield found(
            "allocator",
            mine,
            "the device was idle for {share} of the time while memory was requested from the "
            "driver, or returned to it",
            _allocation_advice(case, mine),
            lambda times, most: f"{most} of it below {{name}}, {times}{_called(mine)}",
        )


def _called(mine: Lost) -> str:
    calls = list(mine.calls())[:2]
    return f"; the calls were mostly {' and '.join(calls)}" if calls else ""


def _allocation_advice(case: Case, mine: Lost) -> str:
    calls = mine.calls()
    frees = sum(time for name, time in calls.items() if _FREES.search(name))
    maps = sum(time for name, time in calls.items() if _MAPS.search(name))
    emptied = any(
        name and "empty_cache" in name for name in case.linked.named[1].cast(pl.String).to_list()
    )
    if maps * 2 > sum(calls.values()):
        return (
            "expandable segments still grow: run the largest input once before the others, or "
            "bound the sizes of inputs"
        )
    if frees * 2 > sum(calls.values()):
        if emptied:
            return "do not call torch.cuda.empty_cache() in the step"
        return (
            "memory is returned and requested again, because it is nearly full or something calls "
            "torch.cuda.empty_cache(): remove such calls, or lower the peak by smaller batches"
            + (" or activation checkpointing" if case.job.trains else "")
        )
    segments = (
        ", or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        if case.job.vendor == "nvidia"
        else ""
    )
    return (
        "the cache is still growing: run the largest input first, pad inputs to few sizes"
        f"{segments}"
    )
