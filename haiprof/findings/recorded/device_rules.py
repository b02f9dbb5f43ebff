"""The GPUs: errors that their driver reports, lower clocks, a host that keeps them waiting.

What a host loses is lost only as far as its GPU is idle meanwhile: see :func:`hidden`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from haiprof.common.numbers import percent
from haiprof.findings.finding import LEAST, Evidence, Finding
from haiprof.findings.recorded import device_errors
from haiprof.findings.recorded.case import DEVICE_FREES, Case, Device, Rank
from haiprof.views.run import gpu_clocks, gpus
from haiprof.views.run.gpu_use import Use
from haiprof.views.run.steps import OTHER

#: Lower clocks in less of the busy time may be a moment.
_SLOWED: Final = 0.10
#: A GPU is slower than others of its model if its clock is lower by this share; chips differ by
#: half of it.
_SLOWER: Final = 0.10
#: … and its power limit is lower if it is by this one.
_LOWER: Final = 0.03
#: As many others say what is usual.
_OTHERS: Final = 2
#: Kept within its power limit for this share of the time: that is what lowers the clock.
_CAPPED: Final = 0.5
_WHY: Final = {
    gpu_clocks.THERMAL: ("gpu_thermal", "because it or its memory was hot"),
    gpu_clocks.HW_THERMAL: ("gpu_thermal", "because it was too hot"),
    gpu_clocks.BRAKE: ("gpu_power", "because the power supply asked for it"),
}
_ADVICE: Final = {
    "gpu_thermal": "check that node's cooling: fans, filters, inlet temperature, the room",
    "gpu_power": "check that node's power supplies, and the GPU's limit (nvidia-smi -q -d POWER)",
    "gpu_clock": "reset its clocks (nvidia-smi -rgc, -rac); if that does not help, replace it",
}
#: Of fewer recorded steps, or of fewer blocks of steps, nothing is concluded.
_STEPS: Final = 10
_BLOCKS: Final = 3
#: A job that feeds its GPUs well leaves them idle for less than this.
_IDLE: Final = 0.15
#: What another finding explains of the idle time, from which on it explains it.
_EXPLAINS: Final = 0.5
#: Communication that nothing hides, as on the host.
_EXPOSED: Final = 0.20
#: The others' waiting must match what a GPU computes longer within this share of it.
_MATCHES: Final = 0.3
#: torch gave its whole cache back in so many of the steps.
_RETRIES: Final = 0.01
#: … or gave memory back as often as this in each of them, as so many readings have it.
_OFTEN: Final = 0.5
_READINGS: Final = 4
_RETRIED: Final = "torch.alloc_retries.count"
#: The host's phases in which it waits for data, or loads it.
_LOADING: Final = ("dataloader", "eval_dataloader")
#: Kinds of findings on what a host does all the time, and loses only if its GPU waits for it.
_OF_HOST: Final = (
    "slow_loader", "slow_storage", "garbage_collection", "host_code", "logging", "gil",
    "cpu_neighbour", "cpu_quota", "cpu_affinity", "too_many_threads",
)  # fmt: skip


def errors(case: Case) -> Iterator[Finding]:
    """Name each kind of error that the driver of a GPU reported, with the first GPU that had it."""
    of_kind: dict[str, list[tuple[int, Device, str]]] = {}
    for device in case.devices:
        for error in device_errors.causes(device.errors):
            kind = device_errors.kind(error)
            of_kind.setdefault(kind, []).append((error.time, device, error.text))
    for kind, found in of_kind.items():
        time, first, text = min(found, key=lambda one: one[0])
        others = {device.label for _, device, _ in found} - {first.label}
        also = f", and {len(others)} other GPUs" if len(others) > 1 else ""
        also = f", and {next(iter(others))}" if len(others) == 1 else also
        times = "" if len(found) == 1 else f" ({len(found)} reports{also})"
        ranks = {rank for _, device, _ in found for rank in device.ranks}
        yield Finding(
            kind=kind,
            problem=f"The driver on {first.node} reported an error of {text}{times}",
            advice=device_errors.ADVICE[kind],
            ranks=tuple(sorted(ranks)),
            confidence=0.9,
            evidence=(Evidence("events", f"driver's reports, {first.label}", len(found), "count",
                               window=(time, time)),),
            command="haiprof report",
        )  # fmt: skip


def slow_clocks(case: Case) -> Iterator[Finding]:
    """Name the GPU whose clock was lowered most, because of a fault or beside others like it."""
    found = [one for device in case.devices if (one := _slow_clock(case, device)) is not None]
    worst: dict[str, Finding] = {}
    for one in found:
        if one.kind not in worst or (one.share or 0) > (worst[one.kind].share or 0):
            worst[one.kind] = one
    for kind, one in worst.items():
        several = sum(each.kind == kind for each in found)
        more = f" ({several} GPUs in all)" if several > 1 else ""
        yield dataclasses.replace(one, problem=one.problem + more)


def _slow_clock(case: Case, device: Device) -> Finding | None:
    own = device.clocks
    if own is None or own.readings < gpu_clocks.FEWEST:
        return None
    usual = _usual(case, device)
    slowed = max(own.slowed.items(), key=lambda one: one[1], default=("", 0.0))
    lower = 1 - own.hertz / usual if usual and own.hertz else 0.0
    if slowed[1] >= _SLOWED:
        kind, why = _WHY[slowed[0]]
        problem = f"{device.label} ran at lower clocks {percent(slowed[1])} of the time, {why}"
        evidence = Evidence("samples", slowed[0], slowed[1], "share", _SLOWED)
    elif lower >= _SLOWER and _others(case, device):
        beside = _beside_others(case, device)
        if beside is None:
            return None
        kind, why = beside
        problem = f"{device.label} runs at {percent(1 - lower)} of the other GPUs' clock{why}"
        evidence = Evidence("samples", gpu_clocks.CAPPED, own.capped, "share", _CAPPED)
    else:
        return None
    # What is limited by memory loses less: this is the most.
    share = max(lower, 0.0) * own.busy
    known = share >= LEAST
    stepped = [rank.ledger.stepped for rank in case.ranks if _uses(rank, device)]
    clock = (
        (Evidence("samples", gpu_clocks.CLOCK, own.hertz, "Hz", usual),)
        if own.hertz is not None and usual is not None
        else ()
    )
    return Finding(
        kind=kind,
        problem=problem,
        advice=_ADVICE[kind],
        ranks=device.ranks,
        lost_ns=int(share * max(stepped)) if known and stepped else None,
        share=share if known and stepped else None,
        confidence=0.85,
        evidence=(evidence, *clock),
        refuted_by=(("the GPU had little to do", True),),
        command="haiprof report",
    )


def _others(case: Case, device: Device) -> list[Device]:
    """Return the other GPUs of a model that were busy, if there are enough of them."""
    found = [
        each for each in case.devices
        if each is not device and each.name == device.name
        and each.clocks is not None and each.clocks.hertz is not None
    ]  # fmt: skip
    return found if len(found) >= _OTHERS else []


def _usual(case: Case, device: Device) -> float | None:
    """Return the clock that a GPU could have, Hz: that of others like it, or its own elsewhen."""
    own = device.clocks
    clocks = [each.clocks.hertz for each in _others(case, device) if each.clocks is not None]
    known = [hertz for hertz in clocks if hertz is not None]
    if known:
        return statistics.median(known)
    return None if own is None else own.free_hertz


def _beside_others(case: Case, device: Device) -> tuple[str, str] | None:
    """Return the kind of a GPU that is slower than others, and the end of the sentence.

    None: it is kept within a power limit that the others have, too, where the clock follows the
    work.
    """
    limits = [each.power_limit_w for each in _others(case, device)]
    known = [watts for watts in limits if watts is not None]
    own = device.power_limit_w
    if own is not None and known and own < (1 - _LOWER) * statistics.median(known):
        return "gpu_power", f": it may draw {own:.0f} W, they {statistics.median(known):.0f} W"
    if device.clocks is not None and device.clocks.capped >= _CAPPED:
        return None
    return "gpu_clock", ", and no reason for that is reported"


def _uses(rank: Rank, device: Device) -> bool:
    return rank.process.rank in device.ranks and rank.process.node == device.node


def idle(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that a GPU waits for its host to give it work, other than for data."""
    use = recorded(rank)
    if use is None:
        return
    whole = 1 - use.busy_ns / use.recorded_ns
    waits = {name: ns for name, ns in use.idle_ns.items() if name not in _LOADING}
    share = sum(waits.values()) / use.recorded_ns
    if whole < _IDLE or share < LEAST:
        return
    longest = max(waits, key=lambda name: waits[name])
    where = "in no phase" if longest == OTHER else f"in {longest}"
    yield Finding(
        kind="host_bound",
        problem=f"The GPU of {rank.process.label} is busy {percent(1 - whole)} of a step, and "
        f"waits for the host {percent(share)} of it, mostly while that is {where}",
        advice="give it larger pieces of work: larger batches, torch.compile, CUDA graphs; where "
        "the code reads results (.item(), printing), do so less often",
        ranks=rank.numbers,
        lost_ns=int(share * rank.ledger.stepped),
        share=share,
        confidence=0.7,
        phase=longest,
        evidence=(
            Evidence("kernels", "GPU idle, not for data", share, "share", LEAST),
            Evidence("kernels", "recorded steps", use.recorded, "count", _STEPS),
        ),
        command="haiprof report",
    )


def exposed(case: Case) -> Iterator[Finding]:
    """Say that GPUs do nothing but communicate: as long as the one does that waits least.

    A collective ends on all GPUs at once, so what the others take longer is waiting for that one.
    """
    found = [(rank, use) for rank in case.ranks if (use := recorded(rank)) is not None]
    if len(found) < 2:
        return
    shares = [use.exposed_ns / use.recorded_ns for _, use in found]
    share = min(shares)
    if share < _EXPOSED:
        return
    rank = found[shares.index(share)][0]
    yield Finding(
        kind="exposed_communication",
        problem=f"The GPUs do nothing but communicate for {percent(share)} of a step",
        advice="overlap it with backward (DDP buckets, prefetching), or send less "
        "(gradient accumulation, compression)",
        ranks=tuple(r.process.rank for r, _ in found if r.process.rank is not None),
        lost_ns=int(share * rank.ledger.stepped),
        share=share,
        confidence=0.8,
        phase="transfer",
        evidence=(
            Evidence("kernels", "communication alone, the rank with least", share, "share",
                     _EXPOSED),
        ),
        refuted_by=(("the time is waiting for a rank", True),),
        command="haiprof report",
    )  # fmt: skip


def late(case: Case) -> Iterator[Finding]:
    """Name the rank whose GPU computes longer than the others', which wait for it as long."""
    found = [(rank, use) for rank in case.ranks if (use := recorded(rank)) is not None]
    if len(found) < 2:
        return
    computes = [(use.busy_ns - use.exposed_ns) / use.recorded_ns for _, use in found]
    waits = [use.exposed_ns / use.recorded_ns for _, use in found]
    worst = max(range(len(found)), key=lambda number: computes[number])
    rank = found[worst][0]

    def beyond(shares: list[float]) -> float:
        others = statistics.median(shares[:worst] + shares[worst + 1 :])
        return shares[worst] - others

    more, waited = beyond(computes), -beyond(waits)
    if min(more, waited) < LEAST or abs(more - waited) > _MATCHES * max(more, waited):
        return
    yield Finding(
        kind="straggler",
        problem=f"The GPU of {rank.process.label} computes for {percent(more)} of a step longer "
        "than the others', which wait for it in their collectives",
        advice="give that rank as much work as the others, and compare its GPU's clock and "
        "temperature with theirs",
        ranks=rank.numbers,
        lost_ns=int(waited * rank.ledger.stepped),
        share=waited,
        confidence=0.85,
        evidence=(
            Evidence("kernels", "computing beyond the others'", more, "share", LEAST),
            Evidence("kernels", "the others' communication beyond its", waited, "share", more),
        ),
        refuted_by=(("the others would not wait for it", True),),
        command="haiprof report",
    )


def retries(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that torch ran out of GPU memory again and again, and gave its cache back each time."""
    stat, steps = rank.stat(_RETRIED), int(rank.ledger.count.sum())
    if stat is None or not steps or stat.maximum < max(_RETRIES * steps, 2):
        return
    yield Finding(
        kind="allocator",
        problem=f"torch ran out of GPU memory {stat.maximum:.0f} times in {steps} steps of "
        f"{rank.process.label}, and each time waited for the GPU and gave its cache back",
        advice="use a little less memory (smaller batches), or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation",
        ranks=rank.numbers,
        confidence=0.8,
        evidence=(Evidence("samples", _RETRIED, stat.maximum, "count", steps),),
        command="haiprof report",
    )


def returned(_: Case, rank: Rank) -> Iterator[Finding]:
    """Say that torch gives memory back to the driver and requests it again, step after step."""
    frees, steps, retried = rank.device_frees, rank.ledger, rank.stat(_RETRIED)
    if not frees.height or not len(steps.start):
        return
    if retried is not None and retried.maximum >= _OFTEN:
        return  # which is why it does
    # At the beginning sizes are still new.
    later = len(steps.start) // 3
    begin, end = int(steps.start[later]), int(steps.start[-1] + steps.duration[-1])
    readings = frees.filter(pl.col("time").is_between(begin, end))
    if readings.height < _READINGS:
        return
    time, values = readings["time"], readings["value"]
    between = (steps.start >= time[0]) & (steps.start < time[-1])
    count, grown = int(steps.count[between].sum()), float(values[-1]) - float(values[0])
    if count < _STEPS:
        return
    if grown < _OFTEN * count:
        return
    yield Finding(
        kind="allocator",
        problem=f"torch gives GPU memory of {rank.process.label} back to the driver "
        f"{grown / count:.2g} times a step and requests it again, which waits for the GPU",
        advice="do not call torch.cuda.empty_cache() in the loop; against sizes that change, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ranks=rank.numbers,
        confidence=0.8,
        evidence=(Evidence("samples", DEVICE_FREES, grown, "count", count),),
        command="haiprof report",
    )


def hidden(case: Case, found: Sequence[Finding]) -> list[Finding]:
    """Return findings without what the GPUs' work hides.

    Of a host that is ahead of its GPU, what it does all the time costs nothing. It costs at most as
    long as the GPU is idle.
    """
    kept = []
    for one in found:
        ranks = [rank for rank in case.ranks if set(rank.numbers) <= set(one.ranks)]
        idles = [idle for rank in ranks if (idle := _idle(rank, one.phase)) is not None]
        if one.kind not in _OF_HOST or one.share is None or not idles:
            kept.append(one)
            continue
        most, metric = max(idles)
        if most < LEAST:
            continue
        less = min(1.0, most / one.share)
        lost, low, high = (
            None if ns is None else int(ns * less) for ns in (one.lost_ns, one.low_ns, one.high_ns)
        )
        evidence = Evidence(metric[0], metric[1], most, "share", one.share)
        kept.append(
            dataclasses.replace(
                one, lost_ns=lost, low_ns=low, high_ns=high, share=one.share * less,
                evidence=(*one.evidence, evidence),
            )
        )  # fmt: skip
    return _unexplained(kept)


def _unexplained(found: list[Finding]) -> list[Finding]:
    """Leave out waiting for the host where another finding says what the host does."""
    kept = []
    for one in found:
        others = sum(
            each.share or 0.0 for each in found
            if each.kind in _OF_HOST and each.phase != "input"
            and set(each.ranks) & set(one.ranks)
        )  # fmt: skip
        if one.kind != "host_bound" or others < _EXPLAINS * (one.share or 0.0):
            kept.append(one)
    return kept


def recorded(rank: Rank) -> Use | None:
    """Return how a rank's GPUs were used, if enough of its steps were recorded with kernels."""
    use = None if rank.summary is None else rank.summary.gpu
    if use is None or use.recorded < _STEPS or not use.recorded_ns:
        return None
    return use if len(rank.begins) >= _BLOCKS else None


def _idle(rank: Rank, phase: str | None) -> tuple[float, tuple[str, str]] | None:
    """Return the share of the steps in which a rank's GPUs were idle at most, and how it is known.

    With kernels recorded, while the host was loading where that is what it did; else from NVML's
    utilization, which counts the time before the first step as idle, too.
    """
    use = recorded(rank)
    if use is not None:
        idle = use.recorded_ns - use.busy_ns
        if phase == "input":
            idle = sum(use.idle_ns.get(name, 0) for name in _LOADING)
        return idle / use.recorded_ns, ("kernels", "GPU idle meanwhile")
    own = {} if rank.summary is None else rank.summary.gpu_stats
    util = gpus.together(own.values()).get(gpu_clocks.UTIL)
    if util is None or util.samples < gpu_clocks.FEWEST:
        return None
    return 1 - min(util.mean, 100.0) / 100, ("samples", "GPU idle at most")
