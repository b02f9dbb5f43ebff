"""``haiprof ls``: the runs of a log directory, the newest first."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pwd import getpwuid
from typing import Final

from haiprof.cli.logged import is_run, log_dir, runs_at
from haiprof.cli.process.columns import aligned, clock, local_time
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.findings.endings import ended_badly, newest_of_each_rank
from haiprof.runs import ROLE_NODE, Process
from haiprof.sources.own import created_ns, is_import, read_processes, read_run

_HEADINGS: Final = ("RUN", "WHEN", "LASTED", "RANKS", "STEPS", "STATE")
#: Runs that are listed unless all are wanted.
_MOST: Final = 50
#: Letters of what is wrong with a run; nobody reads more in a table.
_LONGEST: Final = 60
_NS: Final = 1_000_000_000
#: A recorder on another machine writes once a second; after this many it is silent.
_SILENT: Final = 60
_LIVE: Final = "live"


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


def list_runs(folder: Path | None, *, all_runs: bool, as_json: bool) -> None:
    """Print a line for each run, or all of them as JSON.

    Args:
        folder: a log directory, or a run; None: the log directory of this environment.
        all_runs: not only the newest ones.
        as_json: print JSON.

    Raises:
        HaiprofError: there is no run, or the folder cannot be read.
    """
    place = log_dir() if folder is None else folder
    closed = [] if is_run(place) else _closed_to_us(place)
    try:
        runs = runs_at(place)
    except HaiprofError:
        if not closed:
            raise
        runs = []
    shown = runs if all_runs else runs[:_MOST]
    rows = [*map(look_at, shown), *closed]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for line in aligned([_HEADINGS, *map(_cells, rows)]):
        print(printable(line))
    if len(runs) > len(shown):
        print(f"and {len(runs) - len(shown)} older ones: --all lists them, too")


def look_at(folder: Path) -> Listed:
    """Sum a run up by its documents; reads no table. What is wrong with it is its state."""
    created = created_ns(folder) or None
    try:
        read_run(folder)
        processes, problems = read_processes(folder)
    except HaiprofError as error:
        return Listed(folder.name, str(folder), created, None, None, None, _wrong(folder, error))
    own = [p for p in processes if p.role != ROLE_NODE]
    ranks = newest_of_each_rank(own)
    return Listed(
        folder.name,
        str(folder),
        created,
        _lasted(created, processes),
        len(ranks) or None,
        max((p.steps for p in own if p.steps is not None), default=None),
        _state(folder, processes) if processes or not problems else _wrong(folder, problems[0]),
    )


def _lasted(created: int | None, processes: Sequence[Process]) -> float | None:
    if created is None or not processes:
        return None
    ends = [p.ended_ns for p in processes if p.ended_ns is not None]
    live = any(p.state == _LIVE for p in processes)
    end = time.time_ns() if live else max(ends, default=created)
    return max(0, end - created) / _NS


def _state(folder: Path, processes: Sequence[Process]) -> str:
    own = [p for p in processes if p.role != ROLE_NODE]
    bad = ended_badly(own or processes)
    if any(p.state == _LIVE for p in processes):
        from haiprof.cli.live_runs import recorder_lives  # which knows how tables are written

        lives = recorder_lives(folder)
        if lives is None:
            lives = time.time() - _written_at(folder, processes) < _SILENT
            word = "recording" if lives else "silent"
        else:
            word = "recording" if lives else "recorder gone"
    elif own:
        word = "ended"
    else:
        word = "ended without training" if processes else "nothing recorded"
    return f"{word}, {bad}" if bad else word


def _written_at(folder: Path, processes: Sequence[Process]) -> float:
    """Return when a process that is recorded was last written to, s since 1970."""
    newest = 0.0
    for process in processes:
        if process.state == _LIVE:
            with contextlib.suppress(OSError), os.scandir(process.folder) as entries:
                newest = max((entry.stat().st_mtime for entry in entries), default=newest)
    return newest


def _wrong(folder: Path, error: object) -> str:
    """Return what is wrong, without the folder before it and the advice behind it."""
    what = ": ".join(str(error).removeprefix(f"{folder}/").split(": ")[:2])
    return what if len(what) <= _LONGEST else f"{what[: _LONGEST - 1]}…"


def _closed_to_us(place: Path) -> list[Listed]:
    """Return the folders that nobody but their owner can look into: they may be runs."""
    found = []
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir() and not is_import(entry.name) and not _may_look(entry.path):
                state = f"closed to others by {_owner(entry.stat().st_uid)}"
                found.append(Listed(entry.name, entry.path, None, None, None, None, state))
    return sorted(found, key=lambda row: row.run)


def _may_look(folder: str) -> bool:
    return os.access(folder, os.R_OK | os.X_OK, effective_ids=True)


def _owner(uid: int) -> str:
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _cells(row: Listed) -> tuple[str, ...]:
    return (
        row.run,
        local_time(row.created_ns),
        "-" if row.lasted_s is None else clock(row.lasted_s),
        "-" if row.ranks is None else str(row.ranks),
        "-" if row.steps is None else str(row.steps),
        row.state,
    )
