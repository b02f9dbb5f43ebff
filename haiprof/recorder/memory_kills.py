"""Whether the kernel killed a process for lack of memory, by the counts of its control group.

SIGKILL alone proves nothing: anybody may send it. The kernel counts its kills in each control
group, so the counts are read as a process begins and as one ends, and never in between.

Tests: tests/recorder/test_ended.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

#: A larger limit of version 1 means no limit.
_NO_LIMIT: Final = 1 << 60
#: For a process in no control group that counts: the whole machine.
_MACHINE: Final = ""


class Verdict(NamedTuple):
    """What the counts say of one process that has ended."""

    #: How many the kernel has killed for memory since the last reading.
    kills: int = 0
    #: How many of those that ended meanwhile were killed by SIGKILL.
    suspects: int = 0
    #: They were of the process's control group; else anywhere on the machine.
    in_group: bool = False
    #: Of the control group, bytes.
    limit: int | None = None

    @property
    def proven(self) -> bool:
        """Whether the kernel killed that very process."""
        return self.in_group and 0 < self.suspects <= self.kills


class MemoryKills:
    """The counts of the control groups of some processes."""

    def __init__(self, procfs: str = "/proc") -> None:
        """Nothing is read yet.

        Args:
            procfs: where the processes have the pids that we know.
        """
        self._procfs = Path(procfs)
        self._groups: dict[tuple[int, int], str] = {}
        self._counts: dict[str, int] = {}
        self._verdicts: dict[tuple[int, int], Verdict] = {}

    def join(self, pid: int, start_time: int) -> None:
        """Look at the count of a living process's control group, to see later whether it grew."""
        group = self._group_of(pid)
        self._groups[pid, start_time] = group
        if group not in self._counts:
            count = self._count(group)
            if count is not None:
                self._counts[group] = count

    def judge(self, ended: Mapping[tuple[int, int], bool]) -> None:
        """Look at the counts again.

        Args:
            ended: processes (pid, start time) that have ended by now, and whether by SIGKILL.
        """
        by_group: dict[str, list[tuple[int, int]]] = {}
        for who in ended:
            if who not in self._verdicts:
                by_group.setdefault(self._groups.pop(who, _MACHINE), []).append(who)
        for group, processes in by_group.items():
            grown = self._growth(group)
            suspects = sum(ended[who] for who in processes)
            limit = self._limit(group) if grown else None
            verdict = Verdict(grown, suspects, group != _MACHINE, limit)
            self._verdicts.update(dict.fromkeys(processes, verdict))

    def verdict(self, pid: int, start_time: int) -> Verdict:
        """Return what the counts said as the process ended."""
        return self._verdicts.get((pid, start_time), Verdict())

    def _growth(self, group: str) -> int:
        count, before = self._count(group), self._counts.get(group)
        if count is None:  # the group was removed with its last process
            return 0
        self._counts[group] = count
        return 0 if before is None else max(count - before, 0)

    def _count(self, group: str) -> int | None:
        if group == _MACHINE:
            return _number(self._procfs / "vmstat", "oom_kill")
        for name in ("memory.events.local", "memory.events", "memory.oom_control"):
            count = _number(Path(group, name), "oom_kill")
            if count is not None:
                return count
        return None

    def _limit(self, group: str) -> int | None:
        """Return the smallest limit in force in a group, bytes."""
        found = []
        of_version_1 = _number(Path(group, "memory.stat"), "hierarchical_memory_limit")
        if group != _MACHINE and of_version_1 is not None and of_version_1 < _NO_LIMIT:
            found.append(of_version_1)
        for folder in (Path(group), *Path(group).parents) if group != _MACHINE else ():
            with contextlib.suppress(OSError, ValueError):
                found.append(int(_read(folder / "memory.max")))
        return min(found, default=None)

    def _group_of(self, pid: int) -> str:
        """Return the folder of the nearest control group around a process that counts."""
        try:
            lines = _read(self._procfs / f"{pid}/cgroup").splitlines()
            mounts = _read(self._procfs / "self/mountinfo").splitlines()
        except OSError:
            return _MACHINE
        # number:controllers:path, and the path may hold colons.
        parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
        own = next((part for part in parts if "memory" in part[1].split(",")), None)
        own = own or next((part for part in parts if part[:2] == ["0", ""]), None)
        folder = _visible(own[2], mounts, unified=not own[1]) if own is not None else None
        for around in () if folder is None else (folder, *folder.parents):
            if self._count(str(around)) is not None:
                return str(around)
        return _MACHINE


def _visible(path: str, mounts: Sequence[str], *, unified: bool) -> Path | None:
    """Return the folder of a control group; of several mounts the one nearest to it."""
    best: tuple[int, Path] | None = None
    for line in mounts:
        front, dash, behind = line.partition(" - ")
        kind, _, options = (*behind.split(), "", "", "")[:3]
        if not dash or kind != ("cgroup2" if unified else "cgroup"):
            continue
        if not unified and "memory" not in options.split(","):
            continue
        root, point = front.split()[3:5]
        root = root.rstrip("/")
        if path == root or path.startswith(f"{root}/") or not root:
            folder = Path(point + path[len(root) :])
            if folder.is_dir() and (best is None or len(root) > best[0]):
                best = len(root), folder
    return None if best is None else best[1]


def _read(file: Path) -> str:
    return file.read_text("utf-8", "replace")


def _number(file: Path, name: str) -> int | None:
    """Return the number behind a name in a file of lines "name number"."""
    with contextlib.suppress(OSError, ValueError):
        for line in _read(file).splitlines():
            word, _, number = line.partition(" ")
            if word == name:
                return int(number)
    return None
