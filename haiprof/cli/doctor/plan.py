"""Which counters of the hardware would be read: of this machine, or of the tree of another one.

Tests: tests/cli/test_doctor_plan.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from haiprof.cli.doctor.finding import ABSENT, OK, Finding
from haiprof.common.places import find_procfs, find_sysfs, mounted

_WHAT: Final = "counter plan"
#: In a problem (src/uncore/plan.cpp) that naming the CPU solves.
_NO_CPU: Final = "a CPU that is not known"
#: The columns of a plan, as ``--json`` has them.
COLUMNS: Final = ("pmu", "type", "cpu", "metric", "config", "scale")


@dataclass(frozen=True, slots=True)
class Tree:
    """Where /sys and /proc are read; ``dumped``: copies, most likely of another machine."""

    sysfs: str
    procfs: str
    dumped: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The counters of a machine, and what prevented more.

    ``events`` have :data:`COLUMNS`, and ``config1`` and ``config2`` where they are not 0.
    """

    events: list[dict[str, Any]]
    problems: list[str]
    peak: float
    peak_how: str


def find_tree(sysfs_root: str, procfs_root: str) -> Tree:
    """Return the tree that is asked about; a copy of a /sys has its /proc beside it.

    Raises:
        ValueError: one of them is missing; one line that begins with the name of its option.
    """
    try:
        sysfs = find_sysfs(sysfs_root or "/sys")
    except ValueError as error:
        raise ValueError(f"--sysfs-root {sysfs_root or '/sys'}: {error}") from None
    dumped = bool(sysfs_root) and not mounted(sysfs, "sysfs")
    if not procfs_root:
        # The CPU of this machine would be the wrong one for the tree of another.
        return Tree(
            str(sysfs), str(sysfs.absolute().parent / "proc") if dumped else "/proc", dumped
        )
    try:
        return Tree(str(sysfs), str(find_procfs(Path(procfs_root))), dumped)
    except ValueError as error:
        raise ValueError(f"--procfs-root {procfs_root}: {error}") from None


def plan(tree: Tree, cpu: str) -> Plan:
    """Return the counters that would be read; opens none.

    Args:
        tree: where to read about the machine.
        cpu: ``VENDOR:FAMILY:MODEL``; empty: what the tree's /proc/cpuinfo says.

    Raises:
        ValueError: ``cpu`` is not of that form; one line.
    """
    from haiprof import _core

    answer = _core.uncore_plan(sysfs=tree.sysfs, procfs=tree.procfs, cpu=cpu)
    return Plan(
        [{name: value for name, value in e.items() if name != "socket"} for e in answer["events"]],
        list(answer["problems"]),
        float(answer["dram_peak_bytes_per_s"] or 0),
        str(answer["dram_peak_how"] or ""),
    )


def summary(found: Plan) -> Finding:
    """Say in one line how many counters there are, of what, and what prevents more."""
    problems = "".join(f"; {problem}" for problem in found.problems)
    fix = ""
    if any(_NO_CPU in problem for problem in found.problems):
        fix = "say whose CPU it is, as its /proc/cpuinfo does: --cpu VENDOR:FAMILY:MODEL"
    if not found.events:
        return Finding(
            _WHAT,
            ABSENT,
            f"no PMU that counts memory bandwidth, cross-socket traffic or energy{problems}",
            fix or "most virtual machines have none; elsewhere see docs/doctor.md#counters",
        )
    pmus = len({event["pmu"] for event in found.events})
    counts = Counter(str(event["metric"]) for event in found.events)
    kinds = ", ".join(f"{metric} {count}" for metric, count in counts.items())
    counters = _several(len(found.events), "counter")
    peak = f"; DRAM peak {found.peak / 1e9:.1f} GB/s ({found.peak_how})" if found.peak else ""
    text = f"{counters} on {_several(pmus, 'PMU')}: {kinds}{peak}{problems}"
    return Finding(_WHAT, OK, text, fix)


def _several(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count != 1 else "")
