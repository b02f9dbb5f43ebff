"""``haiprof ls``: the runs of a log directory, the newest first."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

from haiprof.answers.listed import Listed, look_at
from haiprof.cli.logged import is_run, log_dir, runs_at
from haiprof.cli.process.columns import aligned, clock, local_time
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources.log_dirs import user_name
from haiprof.sources.own import is_import

_HEADINGS: Final = ("RUN", "WHEN", "LASTED", "RANKS", "STEPS", "STATE")
#: Runs that are listed unless all are wanted.
_MOST: Final = 50


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
    rows = [*(look_at(run, recorder_lives) for run in shown), *closed]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for line in aligned([_HEADINGS, *map(_cells, rows)]):
        print(printable(line))
    if len(runs) > len(shown):
        print(f"and {len(runs) - len(shown)} older ones: --all lists them, too")


def recorder_lives(folder: Path) -> bool | None:
    """Return whether a run's recorder on this machine is alive; None where there is none."""
    from haiprof.cli import live_runs  # which knows how tables are written

    return live_runs.recorder_lives(folder)


def _closed_to_us(place: Path) -> list[Listed]:
    """Return the folders that nobody but their owner can look into: they may be runs."""
    found = []
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir() and not is_import(entry.name) and not _may_look(entry.path):
                state = f"closed to others by {user_name(entry.stat().st_uid)}"
                found.append(Listed(entry.name, entry.path, None, None, None, None, state))
    return sorted(found, key=lambda row: row.run)


def _may_look(folder: str) -> bool:
    return os.access(folder, os.R_OK | os.X_OK, effective_ids=True)


def _cells(row: Listed) -> tuple[str, ...]:
    return (
        row.run,
        local_time(row.created_ns),
        "-" if row.lasted_s is None else clock(row.lasted_s),
        "-" if row.ranks is None else str(row.ranks),
        "-" if row.steps is None else str(row.steps),
        row.state,
    )
