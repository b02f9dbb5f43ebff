"""Finds the processes of a job that runs on this node: by pid, script, task, or container.

Only /proc is read. A process is identified by the command line and the environment that it was
started with, which the launcher wrote.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from haiprof.common.launcher import Placement, placement
from haiprof.common.process_life import parent_of, start_time_of

#: Variables that name a task, and thereby all of its processes.
_TASKS: Final = (
    "HAIPROF_TASK_ID", "MARSV2_TASK_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID",
    "OMPI_MCA_ess_base_jobid",
)  # fmt: skip
#: Modules and programs that start others: the script on their command line is their children's.
_LAUNCHERS: Final = frozenset(
    {
        "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate",
        "accelerate.commands.launch", "deepspeed", "deepspeed.launcher.launch",
        "deepspeed.launcher.runner", "mpirun", "mpiexec", "srun", "haiprof", "haiprof.cli.main",
    }
)  # fmt: skip
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "env", "sudo", "timeout"})
#: A container's id has 64 characters; this many identify it.
_CONTAINER_PREFIX: Final = 12


class Found(NamedTuple):
    """A process that may be profiled."""

    pid: int
    #: Clock ticks since boot: with ``pid``, this very process.
    start_time: int
    uid: int
    command: tuple[str, ...]
    place: Placement

    @property
    def label(self) -> str:
        """What distinguishes it: its rank, if a launcher gave it one, and its pid."""
        rank = f"rank {self.place.rank}, " if self.place.launched else ""
        return f"{rank}pid {self.pid}"


def find(what: str) -> list[Found]:
    """Return the processes that match ``what``, by rank.

    Args:
        what: a pid; the name or path of a script or of a module (``train.py``); a task id, as
            launchers put it into the environment; or the id of a container, 12 characters at
            least. A number that is no pid may still be a task id.

    Returns:
        No process of haiprof's own, no launcher of the matching ones, no shell, and of a process
        and the workers that it forked only the former. For the pid of a launcher, the ranks
        beneath it. Empty when none matches.
    """
    everybody = list(_everybody())
    by_pid = {process.pid: process for process in everybody}
    if what.isdecimal() and int(what) in by_pid:
        return _of_pid(by_pid[int(what)], everybody)
    chosen = [p for p in everybody if _runs(p.command, what)]
    if not chosen:
        chosen = [p for p in everybody if _is_python(p.pid) and what in _tasks(p.pid)]
    if not chosen and len(what) >= _CONTAINER_PREFIX:
        chosen = [p for p in everybody if _is_python(p.pid) and _in_container(p.pid, what)]
    return _ranks(chosen)


def with_pids(pids: Iterable[int]) -> list[Found]:
    """Return the processes with these pids, by rank; for that of a launcher, the ranks beneath."""
    everybody = list(_everybody())
    by_pid = {process.pid: process for process in everybody}
    those = [by_pid[pid] for pid in pids if pid in by_pid]
    return _ranks(list({p.pid: p for one in those for p in _of_pid(one, everybody)}.values()))


def python_below(pids: Iterable[int]) -> list[tuple[Found, int]]:
    """Return the Python processes below others, each with the one of these that it is below."""
    above = {pid: pid for pid in pids}
    found = []
    for each in sorted(_everybody(), key=lambda p: p.start_time):
        top = above.get(parent_of(each.pid))
        if top is not None and each.pid not in above:
            above[each.pid] = top
            if _is_python(each.pid) and not _starts_others(each):
                found.append((each, top))
    return found


def _of_pid(process: Found, everybody: Iterable[Found]) -> list[Found]:
    if not _starts_others(process):
        return [process]
    beneath = {process.pid}
    for each in sorted(everybody, key=lambda p: p.start_time):
        if parent_of(each.pid) in beneath:
            beneath.add(each.pid)
    beneath.discard(process.pid)
    return _ranks([p for p in everybody if p.pid in beneath and _is_python(p.pid)])


def _ranks(chosen: list[Found]) -> list[Found]:
    """Leave out launchers, ourselves, and forks of others among them; sort the rest by rank."""
    own = _ancestors(os.getpid())
    chosen = [p for p in chosen if p.pid not in own and not _starts_others(p)]
    by_pid = {process.pid: process for process in chosen}

    def forked(process: Found) -> bool:
        parent = by_pid.get(parent_of(process.pid))
        return (
            parent is not None
            and parent.command == process.command
            and parent.place == process.place
        )

    return sorted(
        (p for p in chosen if not forked(p)), key=lambda p: (p.place.rank, p.start_time, p.pid)
    )


def _ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 1 and pid not in found:
        found.add(pid)
        pid = parent_of(pid)
    return found


def _everybody() -> Iterable[Found]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (found := _look(int(entry.name))) is not None:
            yield found


def _look(pid: int) -> Found | None:
    command = _words(pid, "cmdline")
    start_time = start_time_of(pid)
    if not command or start_time is None:
        return None
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    return Found(pid, start_time, uid, tuple(command), placement(_environment(pid)))


def _words(pid: int, name: str) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return []
    return [os.fsdecode(word) for word in text.split(b"\0") if word]


def _environment(pid: int) -> Mapping[str, str]:
    pairs = (word.partition("=") for word in _words(pid, "environ"))
    return {name: value for name, _, value in pairs}


def _is_python(pid: int) -> bool:
    try:
        program = Path(f"/proc/{pid}/exe").readlink()
    except OSError:
        return False
    return program.name.startswith("python")


def _runs(command: tuple[str, ...], what: str) -> bool:
    """Say whether a Python command line runs this script or module: ``-m what``, ``…/what``."""
    program, *words = command
    if not Path(program).name.startswith("python"):
        # Started through its first line, or by a launcher that renames itself.
        return _same_script(program, what)
    script = _script(words)
    return script is not None and _same_script(script, what)


def _script(words: list[str]) -> str | None:
    """Return what an interpreter with these arguments runs; None for code in its arguments."""
    left = iter(words)
    for word in left:
        if word == "-c":
            return None
        if word in ("-m", "--module"):
            return next(left, None)
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(left, None)
        elif not word.startswith("-"):
            return word
    return None


def _same_script(script: str, what: str) -> bool:
    if script == what or Path(script).name == what:
        return True
    if "/" in what:
        with contextlib.suppress(FileNotFoundError):  # the working folder has been removed
            return Path(script).is_absolute() and Path(script) == Path(what).absolute()
    return False


def _starts_others(process: Found) -> bool:
    program, *words = process.command
    name = Path(program).name
    if name in _SHELLS or name in _LAUNCHERS:
        return True
    if not name.startswith("python"):
        return False
    script = _script(words)
    return script is not None and (script in _LAUNCHERS or Path(script).name in _LAUNCHERS)


def _tasks(pid: int) -> set[str]:
    environment = _environment(pid)
    return {environment[name] for name in _TASKS if name in environment}


def _in_container(pid: int, what: str) -> bool:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    parts = (part for line in lines for part in line.replace("-", "/").replace(".", "/").split("/"))
    return any(part.startswith(what) for part in parts)
