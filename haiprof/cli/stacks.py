"""``haiprof stacks``: what every thread of a job does now, equal stacks together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from haiprof.cli.process.console import say, spinner
from haiprof.common.frame_texts import frame_text
from haiprof.common.printable import printable
from haiprof.control.native_frames import missing
from haiprof.control.stacks import Frame, Group, Looked, Thread, chosen, grouped, look_at
from haiprof.export.stack_texts import Weights, folded, speedscope

NOBODY: Final = 2
NOT_ALL: Final = 3
#: Processes of a group that are named one by one.
_NAMED: Final = 8
#: Lines of a group, half of them from either end of the stack.
_LINES: Final = 60


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look at, and how to print it.

    Attributes:
        target: as of :func:`haiprof.control.stacks.chosen`.
        form: ``text``, ``json``, ``folded`` or ``speedscope``.
        hosts: where, if not here.
        native: stop each process for a moment, to show its C and C++ frames, too.
    """

    target: str | None
    form: str = "text"
    hosts: Sequence[str] = ()
    native: bool = False


def show_stacks(wanted: Wanted) -> int:
    """Print the stacks of a job's processes.

    Returns:
        The exit code: 0; 2: no such job here, or no pystack; 3: of some process, or some host, they
        are not known.
    """
    complete = True
    if wanted.native and not wanted.hosts and (why := missing()):
        say(why)
        return NOBODY
    if wanted.hosts:
        from haiprof.cli.hosts.stacks import look_on

        looked, complete = look_on(wanted.hosts, wanted.target, native=wanted.native)
    else:
        with spinner("reading the stacks"):
            looked = look_at(chosen(wanted.target), native=wanted.native)
    if not looked:
        if complete:
            say(_nobody(wanted))
        return NOBODY if complete else NOT_ALL
    if wanted.form == "json":
        print(json.dumps([process.as_json() for process in looked], indent=1))
    elif wanted.form == "folded":
        for line in folded(_named(looked)).splitlines():
            print(printable(line))
    elif wanted.form == "speedscope":
        print(speedscope("stacks", "none", _named(looked)))
    else:
        for line in lines(looked):
            print(printable(line))
    incomplete = any(process.problem or process.native_problem for process in looked)
    return 0 if complete and not incomplete else NOT_ALL


def _nobody(wanted: Wanted) -> str:
    where = "any of these hosts" if wanted.hosts else "this node"
    if wanted.target is None:
        return f"nothing is recorded on {where}: name a script, a pid or a task: haiprof stacks JOB"
    return f"{wanted.target}: no Python process on {where} runs it; see haiprof ps"


def _named(looked: Sequence[Looked]) -> list[tuple[str, Weights]]:
    """Return the stack of each thread, once, with the thread's name."""
    return [
        (f"{process.label}, {_thread(process, thread)}", {_texts(thread.frames)[::-1]: 1})
        for process in looked
        for thread in process.threads
    ]


def _texts(frames: Sequence[Frame]) -> tuple[str, ...]:
    return tuple(frame_text(*frame) for frame in frames)


def _thread(process: Looked, thread: Thread) -> str:
    return "main" if thread.thread == process.pid else f"{thread.name} {thread.thread}"


def lines(looked: Sequence[Looked]) -> list[str]:
    """Return what to print, the groups of fewest threads first."""
    found = [line for group in grouped(looked) for line in _group(group)]
    others: Counter[str] = Counter()
    for process in looked:
        others.update(process.others)
    if others:
        kinds = ", ".join(f"{count} {what}" for what, count in others.most_common(_NAMED))
        found += [f"{others.total()} threads that run no Python: {kinds}", ""]
    problems: dict[str, list[Looked]] = {}
    for process in looked:
        for problem in filter(None, (process.problem, process.native_problem)):
            problems.setdefault(problem, []).append(process)
    for problem, those in problems.items():
        found.append(f"{len(those)} of {len(looked)} processes: {problem}: {_labels(those)}")
    return found if found and found[-1] else found[:-1]


def _group(group: Group) -> list[str]:
    number = len(group.members)
    kind = "main thread" if group.main else f"thread {group.name}".rstrip()
    kind += " of a worker" if group.worker and group.of == 1 else ""
    if group.of > 1:
        kind = f"{number} of {group.of} {'main threads' if group.main else f'threads {group.name}'}"
        kind += " of workers" if group.worker else ""
    states = Counter(_state(thread) for _, thread in group.members)
    said = ", ".join(
        state if number == 1 or count == number else f"{count} {state}"
        for state, count in states.most_common(3)
    )
    holders = [process for process, thread in group.members if thread.gil]
    gil = ""
    if holders:
        gil = " with the GIL" if len(holders) == number else f", {len(holders)} with the GIL"
    who = _labels([process for process, _ in group.members])
    frames = [f"    {text}" for text in _texts(group.frames)]
    if len(frames) > _LINES:
        half = _LINES // 2
        frames[half:-half] = [f"    … {len(frames) - 2 * half} more frames …"]
    if group.cut:
        frames.append("    … and more, deeper than what is read")
    return [f"{kind}, {said}{gil}: {who}", *frames, ""]


def _state(thread: Thread) -> str:
    return f"{thread.state} in {thread.waits_in}" if thread.waits_in else thread.state


def _labels(those: Sequence[Looked]) -> str:
    """Return who they are: ranks in short, other processes one by one, of many the first."""
    if len(those) == 1:
        return those[0].label
    ranks = sorted({p.rank for p in those if p.rank is not None and p.forked_by is None})
    parts = [f"{'ranks' if len(ranks) > 1 else 'rank'} {_ranges(ranks)}"] if ranks else []
    alone = [p.label for p in those if p.rank is None and p.forked_by is None]
    workers: dict[int, set[int]] = {}
    for process in those:
        if process.forked_by is not None:
            workers.setdefault(process.forked_by, set()).add(process.pid)
    alone += [
        f"{len(pids)} workers of pid {pid}" if len(pids) > 1 else f"worker {min(pids)} of pid {pid}"
        for pid, pids in workers.items()
    ]
    several = list(dict.fromkeys(alone))
    more = f" and {len(several) - _NAMED} more" if len(several) > _NAMED else ""
    return "; ".join([*parts, *several[:_NAMED]]) + more


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers in short: ``0-6, 8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
