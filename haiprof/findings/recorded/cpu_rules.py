"""The training thread is ready to run, but the CPU runs something else: who takes it.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from haiprof.common.numbers import percent
from haiprof.findings.finding import Evidence, Finding
from haiprof.findings.recorded.case import Case, Rank
from haiprof.views.run.overview import Summary

_THROTTLED: Final = "cgroup.throttled.percent"
_LIMIT: Final = "cgroup.cpu_limit.cores"
_CPU: Final = "proc.cpu.percent"
_THREADS: Final = "proc.threads.count"
_NODE: Final = "cpu.util.percent"
_ALLOWED: Final = "proc.allowed_cpus.count"
#: A thread is in a queue now and then on any machine; this share of the time is no coincidence.
_LEAST: Final = 0.10
_SURE: Final = 0.05
#: Throttling counts from this share of the quota on.
_THROTTLES: Final = 0.05
#: Others take the CPUs if they use this share of them.
_OTHERS: Final = 0.15
#: They are named if so many of them use most of that, each a good part.
_MOST_NAMES: Final = 3
_MOSTLY: Final = 0.5
_WORTH: Final = 0.2
#: Threads of torch for each CPU from which on they keep each other waiting.
_TOO_MANY: Final = 1.5
#: … if they use at least this share of them.
_AT_LEAST: Final = 0.5
_FEWER_THREADS: Final = (
    "set OMP_NUM_THREADS (torch.set_num_threads) and num_workers so that the threads of all ranks "
    "together are no more than the CPUs"
)
#: The job takes the CPUs from itself if it uses this share of those that it may use.
_ITSELF: Final = 0.8
#: No program uses more of them than all, but for what sampling is off by.
_NO_MORE: Final = 1.1


class Taker(NamedTuple):
    """Who takes the CPUs: the finding without its cost."""

    kind: str
    problem: str
    advice: str
    evidence: tuple[Evidence, ...]


def queue(case: Case, rank: Rank) -> Iterator[Finding]:
    """Say that the training thread waits for a CPU, and who has it."""
    part = rank.ledger.of("cpu_queue")
    share = rank.share(part)
    if share.share < _LEAST or share.low < _SURE:
        return
    taker = who_takes_cpus(case, rank)
    if taker is None:
        return
    since, until = rank.extent(part)
    stepped, delayed = rank.ledger.stepped, rank.delayed_transfers
    evidence = [rank.of("cpu_queue"), *taker.evidence]
    if delayed:
        evidence.append(
            Evidence("samples", "transfers whose threads had no CPU", delayed, "ns", stepped)
        )
    yield Finding(
        kind=taker.kind,
        problem=taker.problem,
        advice=taker.advice,
        ranks=rank.numbers,
        lost_ns=int(part.sum()) + delayed,
        low_ns=int(share.low * stepped) + delayed,
        high_ns=int(share.high * stepped) + delayed,
        share=share.share + delayed / stepped,
        confidence=0.85,
        since=since,
        until=until,
        phase="cpu_queue",
        evidence=tuple(evidence),
        command="haiprof top",
    )


def who_takes_cpus(case: Case, rank: Rank) -> Taker | None:
    """Return who has the CPUs while a rank's training thread waits for one; None: not known."""
    return (
        _quota(rank)
        or _too_few(case, rank)
        or _more_threads_than_cpus(case, rank)
        or _neighbour(case, rank)
        or _itself(case, rank)
    )


def _quota(rank: Rank) -> Taker | None:
    throttled, limit = rank.stat(_THROTTLED), rank.stat(_LIMIT)
    if throttled is None or limit is None or limit.mean <= 0:
        return None
    cores = throttled.mean / 100
    if cores < _THROTTLES * limit.mean:
        return None
    return Taker(
        "cpu_quota",
        f"The control group's limit of {limit.mean:.3g} CPU cores throttles the job",
        "raise the limit (Kubernetes: limits.cpu), or run fewer threads and workers",
        (Evidence("samples", _THROTTLED, cores, "cores", limit.mean),),
    )


def _allowed(case: Case, rank: Rank) -> tuple[float | None, float | None]:
    """Return how many CPUs a rank may use, and how many its node has."""
    node = case.node_of(rank)
    util = None if node is None else node.stats.get(_NODE)
    every = float(util.parts) if util else None
    allowed = rank.stat(_ALLOWED)
    for facts in rank.facts.get("threads", ()):
        mask = facts.get("affinity")
        if isinstance(mask, int) and mask > 0:
            return float(mask), every
    return (allowed.mean if allowed else every), every


def _job_cores(case: Case, rank: Rank) -> float | None:
    """Return how many cores the ranks of a rank's node use, with all their processes."""
    found = [each.stat(_CPU) for each in case.beside(rank)]
    return sum(each.mean for each in found if each) / 100 if any(found) else None


def _too_few(case: Case, rank: Rank) -> Taker | None:
    allowed, every = _allowed(case, rank)
    own = rank.stat(_CPU)
    if allowed is None or every is None or own is None or allowed >= every:
        return None
    cores, together = own.mean / 100, _job_cores(case, rank) or 0.0
    # Ranks that share their CPUs use no more than these together; others are bound to their own.
    if together <= _NO_MORE * allowed:
        cores = max(cores, together)
    if cores < _ITSELF * allowed:
        return None
    return Taker(
        "cpu_affinity",
        f"The process may run on {allowed:.0f} of the node's {every:.0f} CPUs, and needs more",
        "widen its CPU affinity (taskset, numactl, the launcher's binding)",
        (Evidence("samples", _CPU, cores, "cores", allowed),),
    )


def _more_threads_than_cpus(case: Case, rank: Rank) -> Taker | None:
    """Say that torch is set to use more threads than there are CPUs."""
    own, every = _torch_threads(rank), sum(_torch_threads(each) for each in case.beside(rank))
    mine, cpus = _allowed(case, rank)
    # Ranks may be bound to CPUs of their own.
    threads, allowed = (own, mine) if mine and own >= _TOO_MANY * mine else (every, cpus)
    cores = _job_cores(case, rank) or 0.0
    if all(_torch_threads(each) <= 1 for each in case.beside(rank)):
        return None  # which cannot be fewer
    if not allowed or threads < _TOO_MANY * allowed or cores < _AT_LEAST * allowed:
        return None
    return Taker(
        "too_many_threads",
        f"torch computes with {threads} threads on {allowed:.0f} CPUs",
        _FEWER_THREADS,
        (Evidence("events", "threads of torch, all ranks of the node", threads, "count", allowed),),
    )


def _could_use_fewer(case: Case, rank: Rank) -> bool:
    """Whether the ranks of a node have more than a thread each, or workers, as far as is known."""
    return any(
        _torch_threads(each) != 1
        or any(settings.get("num_workers") for settings in each.facts.get("loader", ()))
        for each in case.beside(rank)
    )


def _torch_threads(rank: Rank) -> int:
    known = [each.get("num_threads") for each in rank.facts.get("threads", ())]
    return next((each for each in reversed(known) if isinstance(each, int)), 0)


def _neighbour(case: Case, rank: Rank) -> Taker | None:
    node, cores = case.node_of(rank), _job_cores(case, rank)
    util = None if node is None else node.stats.get(_NODE)
    if node is None or util is None or cores is None:
        return None
    every = float(util.parts)
    others = util.mean / 100 * every - cores
    if others < _OTHERS * every:
        return None
    named = _named(node, others)
    return Taker(
        "cpu_neighbour",
        f"Other programs on the node use {others:.2g} of its {every:.0f} CPU cores"
        + (f", most of them {_listed(named)}" if named else ""),
        "move them away, or reserve cores for the job (cpuset, exclusive nodes)",
        (
            Evidence("samples", "CPU of other programs", others, "cores", every),
            *(Evidence("samples", f"CPU of {name}", used, "cores", others) for name, used in named),
        ),
    )


def _named(node: Summary, others: float) -> list[tuple[str, float]]:
    """Return the programs that use most of what others use: fewer than that name nobody."""
    found = sorted(((stat.mean, name) for name, stat in node.neighbours.items()), reverse=True)
    named = [(name, used) for used, name in found[:_MOST_NAMES] if used >= _WORTH * others]
    return named if sum(used for _, used in named) >= _MOSTLY * others else []


def _listed(named: list[tuple[str, float]]) -> str:
    return " and ".join(f"{name}, {used:.2g}" for name, used in named)


def _itself(case: Case, rank: Rank) -> Taker | None:
    allowed, every = _allowed(case, rank)
    own, threads = rank.stat(_CPU), rank.stat(_THREADS)
    cores = _job_cores(case, rank)
    if allowed and every and allowed < every:  # bound, maybe to CPUs of its own
        cores = own.mean / 100 if own else None
    if not _could_use_fewer(case, rank):
        return None
    if allowed is None or cores is None or cores < _ITSELF * allowed:
        return None
    count = f", {threads.maximum:.0f} threads in each rank" if threads else ""
    return Taker(
        "too_many_threads",
        f"The job's own threads and processes use {percent(cores / allowed)} of the CPUs that it "
        f"may use{count}, and take them from the training thread",
        _FEWER_THREADS,
        (Evidence("samples", _CPU, cores, "cores", allowed),),
    )
