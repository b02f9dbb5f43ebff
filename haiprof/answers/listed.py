"""One run summed up by its documents alone: when, how long, ranks, steps, state.

Tests: tests/cli/test_ls.py.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from haiprof.errors import HaiprofError
from haiprof.findings.endings import ended_badly, newest_of_each_rank
from haiprof.runs import ROLE_NODE, Process
from haiprof.sources.own import created_ns, read_processes, read_run

#: Letters of what is wrong with a run; nobody reads more in a table.
_LONGEST: Final = 60
_NS: Final = 1_000_000_000
#: A recorder on another machine writes once a second; after this many it is silent.
_SILENT: Final = 60
LIVE: Final = "live"

#: Says of a run's folder whether its recorder on this machine is alive; None: there is none here.
Lives = Callable[[Path], bool | None]


@dataclass(frozen=True, slots=True)
class Listed:
    """A run in the list; None is not known."""

    run: str
    folder: str
    created_ns: int | None
    lasted_s: float | None
    ranks: int | None
    steps: int | None
    state: str


def look_at(folder: Path, lives: Lives | None = None) -> Listed:
    """Sum a run up by its documents; reads no table. What is wrong with it is its state.

    Args:
        folder: of the run.
        lives: asked of a run that has not ended; without it, it counts when it was written to.
    """
    created = created_ns(folder) or None
    try:
        read_run(folder)
        processes, problems = read_processes(folder)
    except HaiprofError as error:
        return Listed(folder.name, str(folder), created, None, None, None, wrong(folder, error))
    own = [p for p in processes if p.role != ROLE_NODE]
    ranks = newest_of_each_rank(own)
    return Listed(
        folder.name,
        str(folder),
        created,
        lasted_s(created, processes),
        len(ranks) or None,
        max((p.steps for p in own if p.steps is not None), default=None),
        state_of(folder, processes, lives)
        if processes or not problems
        else wrong(folder, problems[0]),
    )


def lasted_s(created: int | None, processes: Sequence[Process]) -> float | None:
    """Return how long a run lasted, or has lasted so far, s."""
    if created is None or not processes:
        return None
    ends = [p.ended_ns for p in processes if p.ended_ns is not None]
    live = any(p.state == LIVE for p in processes)
    end = time.time_ns() if live else max(ends, default=created)
    return max(0, end - created) / _NS


def state_of(folder: Path, processes: Sequence[Process], lives: Lives | None = None) -> str:
    """Return in words whether a run is being recorded, and how it ended."""
    own = [p for p in processes if p.role != ROLE_NODE]
    bad = ended_badly(own or processes)
    if any(p.state == LIVE for p in processes):
        alive = None if lives is None else lives(folder)
        if alive is None:
            alive = time.time() - _written_at(processes) < _SILENT
            word = "recording" if alive else "silent"
        else:
            word = "recording" if alive else "recorder gone"
    elif own:
        word = "ended"
    else:
        word = "ended without training" if processes else "nothing recorded"
    return f"{word}, {bad}" if bad else word


def _written_at(processes: Sequence[Process]) -> float:
    """Return when a process that is recorded was last written to, s since 1970."""
    newest = 0.0
    for process in processes:
        if process.state == LIVE:
            with contextlib.suppress(OSError), os.scandir(process.folder) as entries:
                newest = max((entry.stat().st_mtime for entry in entries), default=newest)
    return newest


def wrong(folder: Path, error: object) -> str:
    """Return what is wrong, without the folder before it and the advice behind it."""
    what = ": ".join(str(error).removeprefix(f"{folder}/").split(": ")[:2])
    return what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…"
