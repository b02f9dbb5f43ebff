"""Which counters of the hardware would be read: of this machine, or of the tree of another one.

Tests: tests/cli/test_doctor_plan.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from haiprof.cli.doctor.finding import ABSENT, DENIED, OK, Finding
from haiprof.common.choices import did_you_mean, listed
from haiprof.common.places import find_procfs, find_sysfs, mounted

_WHAT: Final = "counter plan"
_NONE_HERE: Final = "most virtual machines have none; elsewhere see docs/doctor.md#counters"
_REPORT: Final = "report what is in their folders events and format, with the CPU's name"
#: In a problem (src/uncore/plan.cpp) that naming the CPU solves.
_NO_CPU: Final = "a CPU that is not known"
#: As /proc/cpuinfo names them; ARM is that of all CPUs of AArch64.
_VENDORS: Final = ("GenuineIntel", "AuthenticAMD", "HygonGenuine", "ARM")
#: The source that reads the counters of a metric.
_SOURCES: Final = {
    "dram_rd": "memory_bandwidth",
    "dram_wr": "memory_bandwidth",
    "dram_rw": "memory_bandwidth",
    "xsock_tx": "links",
    "pcie_in": "pcie",
    "pcie_out": "pcie",
    "c2c_in": "c2c",
    "c2c_out": "c2c",
    "cpu_J": "cpu_power",
    "dram_J": "dram_power",
}
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
    #: PMUs of the machine that may count such things, too, of which haiprof knows no event.
    unknown: list[str]
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
        ValueError: ``cpu`` is not of that form, or of no vendor that is known; one line.
    """
    from haiprof import _core

    vendor = cpu.partition(":")[0]
    if ":" in cpu and vendor not in _VENDORS:
        hint = f"{did_you_mean(vendor, _VENDORS)} ".lstrip()
        raise ValueError(
            f"--cpu {cpu}: {vendor!r} is no vendor that haiprof knows; {hint}they are "
            f"{', '.join(_VENDORS)}"
        )
    answer = _core.uncore_plan(sysfs=tree.sysfs, procfs=tree.procfs, cpu=cpu)
    return Plan(
        [{name: value for name, value in e.items() if name != "socket"} for e in answer["events"]],
        list(answer["problems"]),
        list(answer["unknown"]),
        float(answer["dram_peak_bytes_per_s"] or 0),
        str(answer["dram_peak_how"] or ""),
    )


def summary(found: Plan, findings: Sequence[Finding]) -> Finding:
    """Say in one line how many counters there are, of what, and what prevents more.

    Args:
        found: the counters.
        findings: what was found of the sources that read them; empty: they were not asked.
    """
    problems = "".join(f"; {problem}" for problem in found.problems)
    if found.unknown:
        problems += f"; PMUs that haiprof does not know: {listed(found.unknown)}"
    fix = ""
    if any(_NO_CPU in problem for problem in found.problems):
        fix = "say whose CPU it is, as its /proc/cpuinfo does: --cpu VENDOR:FAMILY:MODEL"
    if not found.events:
        text = f"no PMU that counts memory bandwidth, cross-socket traffic or energy{problems}"
        usual = _REPORT if found.unknown else _NONE_HERE
        return Finding(_WHAT, ABSENT, text, fix or usual)
    pmus = len({event["pmu"] for event in found.events})
    counts = Counter(str(event["metric"]) for event in found.events)
    kinds = ", ".join(f"{metric} {count}" for metric, count in counts.items())
    counters = _several(len(found.events), "counter")
    peak = f"; DRAM peak {found.peak / 1e9:.1f} GB/s ({found.peak_how})" if found.peak else ""
    text = f"{counters} on {_several(pmus, 'PMU')}: {kinds}{peak}{problems}"
    readers = {_SOURCES[metric] for metric in counts}
    asked = [finding for finding in findings if finding.name in readers]
    if not asked or any(finding.state == OK for finding in asked):
        return Finding(_WHAT, OK, text, fix)
    why = next((finding for finding in asked if finding.state == DENIED), asked[0])
    return Finding(_WHAT, why.state, f"none will be read: {why.found}; {text}", why.fix)


def _several(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count != 1 else "")
