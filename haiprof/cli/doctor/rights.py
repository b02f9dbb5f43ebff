"""What this process may do: its capabilities by name, seccomp, Yama.

Tests: tests/cli/test_doctor_container.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Capabilities that something of ours can use, by their numbers in linux/capability.h.
CAPABILITIES: Final = {19: "SYS_PTRACE", 21: "SYS_ADMIN", 38: "PERFMON"}
_SECCOMP: Final = {"0": "off", "1": "strict", "2": "filter"}


def effective() -> set[str]:
    """Return those of :data:`CAPABILITIES` that are in effect."""
    mask = int(_status("CapEff") or "0", 16)
    return {name for number, name in CAPABILITIES.items() if mask >> number & 1}


def seccomp() -> str:
    """Return ``off``, ``strict`` or ``filter``; ``unknown`` where the kernel does not say."""
    return _SECCOMP.get(_status("Seccomp"), "unknown")


def yama() -> int:
    """Return ``kernel.yama.ptrace_scope``; 0 where the kernel has none."""
    return _number("/proc/sys/kernel/yama/ptrace_scope", 0)


def perf_event_paranoid() -> int:
    """Return ``kernel.perf_event_paranoid``; 2, the kernel's default, where unknown."""
    return _number("/proc/sys/kernel/perf_event_paranoid", 2)


def _status(name: str) -> str:
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key == name), "")


def _number(file: str, otherwise: int) -> int:
    try:
        return int(Path(file).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return otherwise
