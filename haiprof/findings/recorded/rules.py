"""All rules over a recorded run, and what becomes of several findings of one thing.

A finding on each of many ranks is one finding. What explains another one makes it superfluous: a
late rank the others' waiting, a slow function the phase it is in.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from haiprof.findings.finding import Finding, ordered
from haiprof.findings.recorded import (
    beside_rules,
    cpu_rules,
    device_rules,
    disk_rules,
    host_rules,
    input_rules,
    input_size_rules,
    kernel_log_rules,
    machine_rules,
    memory_rules,
    page_rules,
    pcie_rules,
    rank_rules,
    setting_rules,
    tracker_rules,
    update_rules,
)
from haiprof.findings.recorded.case import Case, Rank

#: Lines of one function are one thing.
_LINE: Final = re.compile(r":\d+\)$")
OfRank: TypeAlias = Callable[[Case, Rank], Iterator[Finding]]
OfRun: TypeAlias = Callable[[Case], Iterator[Finding]]

OF_RANK: Final[tuple[OfRank, ...]] = (
    input_rules.slow_input,
    host_rules.collector,
    host_rules.checkpoints,
    host_rules.evaluations,
    host_rules.compilation,
    host_rules.other_threads,
    beside_rules.beside_training,
    tracker_rules.logged,
    host_rules.slow_steps,
    host_rules.slower_since,
    host_rules.slow_start,
    host_rules.stopped,
    cpu_rules.queue,
    memory_rules.leak,
    memory_rules.pressure,
    page_rules.churn,
    update_rules.skipped,
    setting_rules.left_on,
    device_rules.idle,
    device_rules.retries,
    device_rules.returned,
)
OF_RUN: Final[tuple[OfRun, ...]] = (
    rank_rules.late_ranks,
    rank_rules.uneven_exchange,
    rank_rules.bubbles,
    rank_rules.uneven_work,
    rank_rules.communication,
    device_rules.errors,
    device_rules.slow_clocks,
    device_rules.exposed,
    device_rules.late,
    pcie_rules.narrow,
    machine_rules.links,
    machine_rules.memory,
    kernel_log_rules.reported,
)


def findings(case: Case) -> list[Finding]:
    """Return what the rules find in a run, the most important first."""
    of_run: dict[tuple[str, tuple[int, ...]], Finding] = {}
    for rule in OF_RUN:
        for finding in rule(case):
            of_run.setdefault((finding.kind, finding.ranks), finding)
    of_ranks = _merged(
        finding for rank in case.ranks for rule in OF_RANK for finding in rule(case, rank)
    )
    found = _explained(kernel_log_rules.explained([*of_run.values(), *of_ranks]))
    found = input_size_rules.with_sizes(case, found)
    return ordered(device_rules.hidden(case, disk_rules.with_disks(case, found)))


def _merged(found: Iterable[Finding]) -> list[Finding]:
    """Join what several ranks have in common: they lose the same time, at the same time."""
    together: dict[tuple[str, str | None], list[Finding]] = {}
    for finding in found:
        where = None if finding.kind in _ANYWHERE else without_number(finding.line)
        together.setdefault((finding.kind, where), []).append(finding)
    merged = []
    for several in together.values():
        worst = max(several, key=lambda one: one.lost_ns or 0)
        ranks = tuple(sorted({rank for one in several for rank in one.ranks}))
        merged.append(dataclasses.replace(worst, ranks=ranks))
    return merged


def _explained(found: list[Finding]) -> list[Finding]:
    """Leave out what another finding explains."""
    found = _since(_with_causes(found))
    uneven = any(one.kind == "uneven_exchange" for one in found)
    late = {rank for one in found if one.kind in _LATE for rank in one.ranks}
    lines = {one.line for one in found if one.kind in _OF_LINES and one.line}
    loads = any(one.kind in ("slow_loader", "slow_storage") for one in found)
    lengths = any(one.kind == "uneven_lengths" for one in found)
    gil = any(one.kind == "gil" for one in found)
    saves = [one for one in found if one.kind == "blocking_checkpoint"]
    profiled = any(setting_rules.is_of_profiler(one) for one in found)
    kept = []
    for one in found:
        if one in saves and one.weight < max(each.weight for each in saves):
            continue  # with what the job does around it
        if one.kind == "memory_leak" and profiled:
            continue  # which keeps all that it records
        covered = any(
            each.kind in _OF_LINES and each.phase == one.phase and each.weight >= one.weight
            for each in found
        )
        explained = (
            covered or one.line in lines or (loads if one.phase == "input" else gil or lengths)
        )
        if one.kind == "slow_batch" and explained:
            continue
        if (late and one.kind in _IN_TURNS) or (uneven and one.kind == "straggler"):
            continue
        if late and one.ranks and set(one.ranks) <= late and one.kind not in _OF_THEIR_OWN:
            # The straggler's own sentence has it.
            continue
        kept.append(one)
    return kept


def _since(found: list[Finding]) -> list[Finding]:
    """Join what a function does with the steps from which on it makes them longer."""
    later = {
        (one.ranks, one.phase, without_number(one.line)): one
        for one in found
        if one.kind == "regression" and one.line is not None
    }
    regressions = [one for one in found if one.kind == "regression"]
    joined: list[Finding] = []
    taken: list[Finding] = []
    for one in found:
        slower = later.get((one.ranks, one.phase, without_number(one.line)))
        if one.kind == "gil" and one.since is not None:
            slower = next((each for each in regressions if _explains(one, each)), None)
        if one.kind in (*_OF_LINES, "gil") and slower is not None:
            problem = f"{one.problem}, from step {slower.since} on"
            joined.append(
                dataclasses.replace(one, problem=problem, since=slower.since, until=slower.until)
            )
            taken += [one, slower]
    return [*joined, *(one for one in found if one not in taken)]


def _explains(gil: Finding, slower: Finding) -> bool:
    """Whether steps are slower because another thread has the GIL from the same step on."""
    same = (gil.ranks, gil.since) == (slower.ranks, slower.since)
    return same and (gil.lost_ns or 0) >= _MOSTLY * (slower.lost_ns or 0)


def without_number(line: str | None) -> str | None:
    """Return a line of the job without its number: which function of which file it is."""
    return None if line is None else _LINE.sub(")", line)


def _with_causes(found: list[Finding]) -> list[Finding]:
    """Replace a late rank by what makes it late, where that is a finding of its own."""
    replaced: list[Finding] = []
    taken: list[Finding] = []
    for late in (one for one in found if one.kind == "straggler"):
        causes = [
            one for one in found
            if one.ranks == late.ranks
            and (one.kind in _OF_DEVICE or (one.kind in _MAKES_LATE and one.phase == late.phase))
        ]  # fmt: skip
        if causes:
            cause = max(causes, key=lambda one: (one.kind in _OF_DEVICE, one.weight))
            taken += [late, cause]
            replaced.append(
                dataclasses.replace(
                    late,
                    kind=cause.kind,
                    problem=f"{late.problem}. {cause.problem}",
                    advice=cause.advice,
                    line=cause.line,
                    evidence=(*late.evidence, *cause.evidence),
                )
            )
    return [*replaced, *(one for one in found if one not in taken)]


#: What explains this share of a loss explains it.
_MOSTLY: Final = 0.5
#: What may come in any function: that of each rank is another one.
_ANYWHERE: Final = ("garbage_collection",)
#: What has a name of its own, and advice that fits better than that on a late rank.
_MAKES_LATE: Final = (
    "garbage_collection", "slow_loader", "slow_storage", "cpu_quota", "cpu_affinity",
    "cpu_neighbour", "too_many_threads", "blocking_checkpoint", "recompilation",
)  # fmt: skip
#: A GPU with a fault makes its rank late in whatever phase it waits for it.
_OF_DEVICE: Final = ("gpu_thermal", "gpu_power", "gpu_clock")
#: Kinds of findings about what a function does.
_OF_LINES: Final = ("host_code", "tensor_work", "logging", "blocking_checkpoint")
#: Kinds of findings about a rank that others wait for.
_LATE: Final = ("straggler", "pipeline_stage", "uneven_exchange")
#: Kinds of findings about ranks that are late in turns.
_IN_TURNS: Final = ("uneven_lengths", "pipeline_bubble")
#: What is worth a sentence on a late rank, too.
_OF_THEIR_OWN: Final = (
    *_LATE, *_OF_DEVICE, "memory_leak", "stopped", "allocator", "gpu_lost", "gsp_timeout",
    "gpu_ecc", "gpu_row_remap", "nvlink",
    "illegal_access",
)  # fmt: skip
