"""Finishes what a dead recorder left: rings in shared memory, unclosed files in run folders.

Whatever a live recorder uses is left alone. Rings are written to disk by the recorder's own code,
under its lock, so a recorder that starts meanwhile stays away.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof._core import BrokenRing, RingReader
from haiprof.common.claimed_folder import remove_abandoned
from haiprof.common.owned_files import Folder, private_folder
from haiprof.common.places import UNFINISHED_TRACE, node_name, ring_dirs, ring_roots, run_of
from haiprof.common.process_life import process_is_alive
from haiprof.errors import HaiprofError
from haiprof.options import OPTIONS, Options, resolve
from haiprof.recorder.election import Election, recorder_running
from haiprof.recorder.launch import start_recorder
from haiprof.recorder.loop import tidy
from haiprof.recorder.outside import notes_in
from haiprof.recorder.process import RecordedProcess, rings_in
from haiprof.recorder.process_folder import read_process_file, write_json
from haiprof.recorder.run_folder import open_run
from haiprof.recorder.segments import live_streams

#: An unfinished ring, or a ring folder without rings, this old (s) has lost its maker.
_ABANDONED_SECONDS: Final = 60.0
#: Files of another machine that nobody has touched this long (s) are written by nobody.
_SILENT_SECONDS: Final = 3600.0


@dataclass(slots=True)
class Recovered:
    """The outcome for one run; ``str()`` is the line for the user."""

    run: str
    run_dir: Path | None = None
    records: int = 0
    lost: int = 0
    closed: int = 0
    #: What else was done or found, one clause each.
    remarks: list[str] = field(default_factory=list)
    failed: bool = False

    def __str__(self) -> str:
        """Say what was written and what was not."""
        parts = []
        if self.records or self.lost:
            parts.append(f"{self.records} records written, {self.lost} lost")
        if self.closed:
            parts.append(f"{self.closed} file{'s' if self.closed > 1 else ''} closed")
        parts += self.remarks
        where = f" ({self.run_dir})" if self.run_dir is not None else ""
        return f"{self.run}: {'; '.join(parts) or 'nothing was left to do'}{where}"

    def fail(self, remark: str) -> None:
        """Note something that could not be done."""
        self.remarks.append(remark)
        self.failed = True


# -- rings --------------------------------------------------------------------------------------


def stale_ring_dirs() -> list[Path]:
    """Return this user's ring folders on this machine that contain rings but have no recorder."""
    folders, _ = _ring_dirs()
    return [f.path for f in folders if rings_in(f.reached_at()) and not recorder_running(f.path)]


def recover_rings() -> Iterator[Recovered]:
    """Write out the rings of dead processes and give those of live ones a new recorder.

    Yields one outcome for each run of this user that had no recorder.
    """
    folders, refused = _ring_dirs()
    yield from refused
    for rings in folders:
        if recorder_running(rings.path):
            continue
        if not rings_in(rings.reached_at()):
            _drop_empty(rings)
            continue
        yield recover_ring_dir(rings.path)


def recover_ring_dir(ring_dir: Path) -> Recovered:
    """Recover the rings of one run. A run that gets a recorder meanwhile is left to it."""
    outcome = Recovered(run_of(ring_dir.name))
    try:
        with Election(ring_dir) as election:
            if not election.win(patience=0.1):
                outcome.remarks.append("is being recorded; left alone")
                return outcome
            live, run = _write_dead(election.folder, outcome)
            if not rings_in(election.folder.reached_at()) and run is not None:
                _close_run(run, outcome)
                tidy(election.folder, run)
        if live and run is not None:
            pid = start_recorder(ring_dir, run.path, _options_of(run))
            outcome.remarks.append(f"its job still runs, so a new recorder took over (pid {pid})")
    except OSError as error:
        outcome.fail(f"{error.filename or ring_dir}: {error.strerror or error}")
    return outcome


def _ring_dirs() -> tuple[list[Folder], list[Recovered]]:
    """Return the folders of rings that are this user's, and why others are left alone."""
    folders, refused = [], []
    for root in ring_roots():
        for name in root.names():
            try:
                if not name.startswith("."):
                    folders.append(private_folder(root.path / name, above=root))
            except OSError as error:
                refused.append(Recovered(run_of(name)))
                refused[-1].fail(f"left alone: {error.filename}: {error.strerror}")
    return folders, refused


def _drop_empty(rings: Folder) -> None:
    with contextlib.suppress(OSError):
        # A job may have made it just now, and its ring comes next.
        if time.time() - os.fstat(rings.fd).st_mtime > _ABANDONED_SECONDS:
            for note in notes_in(rings.reached_at()):
                rings.remove(note.name)
            tidy(rings, None)


def _write_dead(rings: Folder, outcome: Recovered) -> tuple[bool, Folder | None]:
    """Write out the rings that nobody writes to any more.

    Returns:
        Whether others are left, and the folder of the run.
    """
    live = False
    run: Folder | None = None
    for ring in rings_in(rings.reached_at()):
        try:
            reader = RingReader(ring)
            header = reader.header
        except BlockingIOError:
            _drop_unfinished(ring, outcome)
            continue
        except ValueError as error:
            if not ring.exists():
                continue
            shown = str(error).replace(str(rings.reached_at()), str(rings.path))
            outcome.fail(f"left in shared memory: {shown}")
            continue
        outcome.run_dir = Path(header["run_dir"])
        if run is None or run.path != outcome.run_dir:
            run = _run_of(rings.path / ring.name, outcome)
        if run is None:
            continue
        if process_is_alive(header["pid"], header["start_time"]) and not reader.closed:
            live = True
            continue
        if header["host"] != os.uname().nodename:
            outcome.fail(
                f"{rings.path / ring.name} was made by another machine or container "
                f"({header['host']}): recover it there, or remove it"
            )
            continue
        try:
            _write_out(rings, ring, run, outcome)
        except OSError as error:
            outcome.fail(
                f"{ring.name} stays in shared memory: {error.filename or outcome.run_dir}: "
                f"{error.strerror or error}"
            )
        except Exception as error:  # one damaged ring must not cost the others
            outcome.fail(f"{ring.name} stays in shared memory: it cannot be read: {error}")
    return live, run


def _run_of(ring: Path, outcome: Recovered) -> Folder | None:
    """Open the run that a ring names; None where it is no run of this user.

    A container that shares shared memory can have put the ring there, with any folder in it. It
    cannot have put a ``run.json`` of ours there.
    """
    assert outcome.run_dir is not None
    left = f"{ring.name} stays in shared memory"
    try:
        run = open_run(outcome.run_dir)
    except OSError as error:
        outcome.fail(
            f"{left}: {error.filename}: {error.strerror}; restore the run, or remove {ring}"
        )
        return None
    if not run.has_ours(schema.RUN_FILE):
        file = outcome.run_dir / schema.RUN_FILE
        outcome.fail(f"{left}: {file} is missing or not ours; restore it, or remove {ring}")
        return None
    return run


def _write_out(rings: Folder, ring: Path, run: Folder, outcome: Recovered) -> None:
    process = RecordedProcess(ring, run)
    # A ring with nothing new is done: its writer is gone.
    try:
        while not process.ended:
            process.drain()
    except BrokenRing as error:
        size = process.bytes
        why = str(error).replace(str(ring.parent), str(rings.path))
        process.abandon(f"{why}; what it still held is lost ({size} bytes)")
        rings.remove(ring.name)
        outcome.fail(f"{why}: removed, what it still held is lost ({size} bytes)")
    outcome.records += process.taken
    outcome.lost += process.lost


def _drop_unfinished(ring: Path, outcome: Recovered) -> None:
    if time.time() - ring.stat().st_mtime > _ABANDONED_SECONDS:
        ring.unlink(missing_ok=True)
        outcome.remarks.append(f"{ring.name} was never finished and is removed")


def _options_of(run: Folder) -> Options:
    """Return the options that the run was started with; defaults for what cannot be read."""
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
        recorded_options = json.loads(run.read(schema.RUN_FILE)).get("options")
        known = {
            name: recorded_options[name]
            for name in OPTIONS
            if name in recorded_options and name != "log_dir"
        }
    options, _ = resolve(known)
    return options


# -- folders ------------------------------------------------------------------------------------


def recover_folder(path: Path) -> Iterator[Recovered]:
    """Close what is left open in a run folder, or in every run of a log directory.

    Raises:
        HaiprofError: ``path`` is neither.
    """
    for run in _runs_in(path):
        outcome = Recovered(run.path.name, run.path)
        try:
            busy = _why_busy(run)
            if busy is not None:
                outcome.remarks.append(busy)
            else:
                _close_run(run, outcome)
        except OSError as error:
            outcome.fail(f"{error.filename or run.path}: {error.strerror or error}")
        yield outcome


def _runs_in(path: Path) -> Sequence[Folder]:
    try:
        folder = Folder.at(Path(os.path.realpath(path)))
        # In a folder that everybody may write, anybody can put a run.json.
        if folder.is_ours() and folder.has_ours(schema.RUN_FILE):
            return [folder]
        runs = [run for name in folder.names() if (run := _run_in(folder, name)) is not None]
    except OSError as error:
        raise HaiprofError(
            f"{path}: {error.strerror}; give a run folder or log directory"
        ) from None
    if not runs:
        raise HaiprofError(
            f"{path}: neither a run nor a folder with runs (no {schema.RUN_FILE} of yours); give "
            "one of them"
        )
    return runs


def _run_in(folder: Folder, name: str) -> Folder | None:
    with contextlib.suppress(OSError):
        run = folder.folder(name, own_link=True)
        if run.has_ours(schema.RUN_FILE):
            return run
    return None


def _why_busy(run: Folder) -> str | None:
    """Return why the run must be left alone, or None."""
    if not run.is_ours():
        return f"belongs to user {run.owner}, who can recover it"
    for rings in ring_dirs(run.path):
        if recorder_running(rings):
            return "is being recorded; left alone"
        if rings_in(rings):
            return "rings of it are still in shared memory; left alone"
    return None


def _why_open(folder: Folder, known: dict[str, Any]) -> str | None:
    """Return why somebody may still write to a process's folder, or None."""
    host = str(known.get("host") or known.get("node"))
    if host not in (os.uname().nodename, node_name()):
        silent = time.time() - _last_written(folder)
        if silent < _SILENT_SECONDS:
            return f"{host} wrote to {folder.path.name} {silent:.0f} s ago; recover it there"
        return None
    pid, start_time = known.get("pid"), known.get("start_time")
    if (
        known.get("state") == "live"
        and isinstance(pid, int)
        and isinstance(start_time, int)
        and process_is_alive(pid, start_time)
    ):
        return f"process {pid} of it still runs; {folder.path.name} is left alone"
    return None


def _process_folders(run: Folder) -> Iterator[tuple[Folder, dict[str, Any]]]:
    for name in run.names():
        with contextlib.suppress(OSError):
            folder = run.folder(name)
            known = read_process_file(folder)
            if known is not None:
                yield folder, known


def _last_written(folder: Folder) -> float:
    # A later recorder may have thinned what was written.
    names = [name for name in folder.names() if name != schema.THINNED_FILE]
    return max(folder.stat(name).st_mtime for name in names)


def _close_run(run: Folder, outcome: Recovered) -> None:
    removed = remove_abandoned(run.reached_at(), UNFINISHED_TRACE)
    if removed:
        what = "an unfinished deep trace is" if removed == 1 else f"{removed} unfinished traces are"
        outcome.remarks.append(f"{what} removed")
    for folder, known in _process_folders(run):
        streams = live_streams(folder)
        live = known.get("state") == "live"
        if not streams and not live:
            continue
        why = _why_open(folder, known)
        if why is not None:
            outcome.remarks.append(why)
            continue
        ended = _last_written(folder)
        if streams:
            from haiprof.recorder.closing import close_stream
        for stream in streams:
            lost = close_stream(folder, stream).lost
            outcome.closed += folder.has(
                stream.removesuffix(schema.LIVE_SUFFIX) + schema.CLOSED_SUFFIX
            )
            if lost:
                outcome.remarks.append(f"{folder.path.name}/{lost}")
        if live:
            ended_ns = int(ended * 1e9)
            write_json(
                folder, schema.PROCESS_FILE, {**known, "state": "died", "ended_ns": ended_ns}
            )
            outcome.remarks.append(f"{folder.path.name} died")
