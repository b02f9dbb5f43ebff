"""Lists the runs recorded on this machine now, and finds the one that the user names.

Tests: tests/cli/test_top.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from haiprof import schema
from haiprof._core import RingReader
from haiprof.cli.logged import log_dir, runs_at
from haiprof.common.choices import did_you_mean
from haiprof.common.places import open_rings, ring_dirs, ring_roots
from haiprof.common.process_life import parent_of
from haiprof.errors import HaiprofError
from haiprof.recorder.command import commands_in
from haiprof.recorder.election import recorder_running
from haiprof.recorder.outside import processes_of_notes
from haiprof.recorder.process import rings_in
from haiprof.sources.own import newest_first, read_run, runs_in


class LiveRun(NamedTuple):
    """A run that a recorder of this user writes on this machine."""

    folder: Path
    rings: Path
    #: Processes that are recorded, and the command that the recorder stays for.
    pids: tuple[int, ...]


class Chosen(NamedTuple):
    """A run's folder, and the names of older runs that match, too."""

    folder: Path
    others: tuple[str, ...]


def choose(what: str | None) -> Chosen:
    """Return the matching run, the newest of several.

    Args:
        what: a run's folder, a log directory, a pid, a run's name, its beginning or its script.
            None: what is recorded here now, else the newest run of the log directory.

    Raises:
        HaiprofError: none matches; the line lists what is recorded.
    """
    if what is not None and Path(what).is_dir():
        return _newest(runs_at(Path(what)))
    live = live_runs()
    if what is None:
        found = [run.folder for run in live]
        return _newest(found or _logged()) if found or _logged() else _nothing(live, "")
    if what.isdecimal():
        pid = int(what)
        found = [run.folder for run in live if _meant(pid, run.pids)]
        if found:
            return _newest(found)
    for folders in ([run.folder for run in live], _logged()):
        found = [folder for folder in folders if _is_called(folder, what)]
        if found:
            return _newest(found)
    return _nothing(live, what)


def _nothing(live: list[LiveRun], what: str) -> Chosen:
    if what:
        known = [run.folder.name for run in live]
        here = f"recorded here now: {', '.join(sorted(known)[:5])}"
        hint = did_you_mean(what, [*known, *(folder.name for folder in _logged())])
        raise HaiprofError(
            f"{what}: no run has this name, script or pid, and no such folder; "
            f"{hint or (here if live else 'nothing is recorded here now')}"
        )
    raise HaiprofError(
        f"nothing is recorded here now, and no run lies in {log_dir()}: start one with "
        "`haiprof run`, or give its folder or log directory"
    )


def recorder_lives(folder: Path) -> bool | None:
    """Return whether a run's recorder on this machine is alive; None where there is none."""
    found = ring_dirs(folder)
    return any(map(recorder_running, found)) if found else None


def live_runs() -> list[LiveRun]:
    """Return the runs that are recorded on this machine for this user."""
    run_of: dict[Path, Path] | None = None
    found = []
    for rings in _folders_of_rings():
        if not rings.is_dir() or not recorder_running(rings):
            continue
        headers = list(_headers(rings))
        pids = [int(header["pid"]) for header in headers] + processes_of_notes(rings)
        with contextlib.suppress(OSError):
            pids += [command.pid for command in commands_in(open_rings(rings))]
        if run_of is None:
            run_of = _recorders()
        folder = run_of.get(rings)
        if folder is None and headers:  # a recorder in another container
            folder = Path(str(headers[0]["run_dir"]))
        if folder is not None and (folder / schema.RUN_FILE).is_file():
            found.append(LiveRun(folder, rings, tuple(pids)))
    return found


def _folders_of_rings() -> Iterator[Path]:
    for root in ring_roots():  # another user's could claim any folder as a run
        with contextlib.suppress(OSError):
            yield from map(root.path.joinpath, root.names())


def _headers(rings: Path) -> Iterator[dict[str, Any]]:
    for ring in rings_in(rings):
        with contextlib.suppress(OSError, ValueError):
            yield RingReader(ring).header


def _recorders() -> dict[Path, Path]:
    """Return where each recorder writes, by its folder of rings.

    A recorder may have no ring yet, so its command line is asked.
    """
    found: dict[Path, Path] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if not any(b"haiprof.recorder" in word for word in words[:4]):
            continue
        pairs = (os.fsdecode(word).partition("=") for word in words)
        arguments = {name: value for name, _, value in pairs}
        if "--ring-dir" in arguments and "--run-dir" in arguments:
            found[Path(arguments["--ring-dir"])] = Path(arguments["--run-dir"])
    return found


def _meant(pid: int, recorded: tuple[int, ...]) -> bool:
    """Say whether ``pid`` is recorded, a launcher of what is, or a worker of it."""
    above = set(_line(pid))
    return any(process in above or pid in _line(process) for process in recorded)


def _line(pid: int) -> list[int]:
    line = []
    while pid > 1 and pid not in line:
        line.append(pid)
        pid = parent_of(pid)
    return line


def _logged() -> list[Path]:
    try:
        return runs_in(log_dir())
    except OSError:
        return []


def _is_called(folder: Path, what: str) -> bool:
    if folder.name == what or folder.name.startswith(f"{what}-"):
        return True
    try:
        command = read_run(folder).command
    except HaiprofError:
        return False
    return any(word == what or Path(word).name == what for word in command)


def _newest(folders: list[Path]) -> Chosen:
    first, *others = newest_first(folders)
    return Chosen(first, tuple(folder.name for folder in others))
