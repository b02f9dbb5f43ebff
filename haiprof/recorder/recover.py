"""Finishes what a dead recorder left: rings in shared memory, unclosed files in run folders.

Whatever a live recorder has is left alone. Rings are written by the code that the recorder writes
them with, under its lock, so a recorder that starts meanwhile stays away.
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
from haiprof._core import RingReader
from haiprof.errors import HaiprofError
from haiprof.held import remove_abandoned
from haiprof.options import OPTIONS, Options, resolve
from haiprof.places import UNFINISHED_TRACE, node_name, ring_dir, ring_root
from haiprof.recorder.election import Election, recorder_running
from haiprof.recorder.launch import start_recorder
from haiprof.recorder.life import process_is_alive
from haiprof.recorder.loop import tidy
from haiprof.recorder.outside import notes_in
from haiprof.recorder.process import RecordedProcess, rings_in
from haiprof.recorder.process_folder import write_json
from haiprof.recorder.segments import close_stream

#: An unfinished ring, or a ring folder without rings, this old (s) has lost its maker.
_ABANDONED_SECONDS: Final = 60.0
#: Files of another machine that nobody has touched this long (s) are written by nobody.
_SILENT_SECONDS: Final = 3600.0


@dataclass(slots=True)
class Recovered:
    """What became of one run; ``str()`` is the line for the user."""

    run: str
    run_dir: Path | None = None
    records: int = 0
    lost: int = 0
    closed: int = 0
    #: What was done or found beyond that, one clause each.
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
    """Return this user's ring folders on this machine that hold rings but have no recorder."""
    return [p for p in _ring_dirs() if rings_in(p) and not recorder_running(p)]


def recover_rings() -> Iterator[Recovered]:
    """Write out the rings of dead processes and give those of live ones a new recorder.

    Yields one outcome for each run of this user that had no recorder.
    """
    for rings in _ring_dirs():
        if recorder_running(rings):
            continue
        if not rings_in(rings):
            _drop_empty(rings)
            continue
        yield recover_ring_dir(rings)


def recover_ring_dir(ring_dir: Path) -> Recovered:
    """Recover the rings of one run. A run that gets a recorder meanwhile is left to it."""
    told = Recovered(ring_dir.name)
    try:
        with Election(ring_dir) as election:
            if not election.win(patience=0.1):
                told.remarks.append("is being recorded; left alone")
                return told
            live = _write_dead(ring_dir, told)
            if not rings_in(ring_dir) and told.run_dir is not None:
                _close_run(told.run_dir, told)
                tidy(ring_dir, told.run_dir)
        if live and told.run_dir is not None:
            pid = start_recorder(ring_dir, told.run_dir, _options_of(told.run_dir))
            told.remarks.append(f"its job still runs, so a new recorder took over (pid {pid})")
    except OSError as error:
        told.fail(f"{error.filename or ring_dir}: {error.strerror or error}")
    return told


def _ring_dirs() -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(p for p in ring_root().iterdir() if p.is_dir() and not p.name.startswith("."))
    return []


def _drop_empty(ring_dir: Path) -> None:
    with contextlib.suppress(OSError):
        # A job may have made it just now, and its ring comes next.
        if time.time() - ring_dir.stat().st_mtime > _ABANDONED_SECONDS:
            for note in notes_in(ring_dir):
                note.unlink(missing_ok=True)
            tidy(ring_dir, ring_dir / "nowhere")


def _write_dead(ring_dir: Path, told: Recovered) -> bool:
    """Write out the rings that nobody writes to any more; return whether others are left."""
    live = False
    for ring in rings_in(ring_dir):
        try:
            header = RingReader(str(ring)).header
        except BlockingIOError:
            _drop_unfinished(ring, told)
            continue
        except FileNotFoundError:
            continue
        except ValueError as error:
            told.fail(f"left in shared memory: {error}")
            continue
        told.run_dir = Path(header["run_dir"])
        if process_is_alive(header["pid"], header["start_time"]) and not _closed(ring):
            live = True
            continue
        if header["host"] != os.uname().nodename:
            told.fail(
                f"{ring} was made by another machine or container ({header['host']}): recover it "
                "there, or remove it"
            )
            continue
        try:
            _write_out(ring, told.run_dir, told)
        except OSError as error:
            told.fail(
                f"{ring.name} stays in shared memory: {error.filename or told.run_dir}: "
                f"{error.strerror or error}"
            )
        except Exception as error:  # one damaged ring must not cost the others
            told.fail(f"{ring.name} stays in shared memory: it cannot be read: {error}")
    return live


def _closed(ring: Path) -> bool:
    return RingReader(str(ring)).closed


def _write_out(ring: Path, run_dir: Path, told: Recovered) -> None:
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    process = RecordedProcess(ring, run_dir)
    # A ring that says nothing new has nothing to say any more: its writer is gone.
    while not process.ended:
        process.drain()
    told.records += process.taken
    told.lost += process.lost


def _drop_unfinished(ring: Path, told: Recovered) -> None:
    if time.time() - ring.stat().st_mtime > _ABANDONED_SECONDS:
        ring.unlink(missing_ok=True)
        told.remarks.append(f"{ring.name} was never finished and is removed")


def _options_of(run_dir: Path) -> Options:
    """Return the options that the run was started with; defaults for what cannot be read."""
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        document = json.loads((run_dir / schema.RUN_FILE).read_text(encoding="utf-8"))
        told = document.get("options")
        known = {name: told[name] for name in OPTIONS if name in told and name != "log_dir"}
    options, _ = resolve(known)
    return options


# -- folders ------------------------------------------------------------------------------------


def recover_folder(path: Path) -> Iterator[Recovered]:
    """Close what is left open in a run folder, or in every run of a log directory.

    Raises:
        HaiprofError: ``path`` is neither.
    """
    for run_dir in _runs_in(path):
        told = Recovered(run_dir.name, run_dir)
        try:
            busy = _why_busy(run_dir)
            if busy is not None:
                told.remarks.append(busy)
            else:
                _close_run(run_dir, told)
        except OSError as error:
            told.fail(f"{error.filename or run_dir}: {error.strerror or error}")
        yield told


def _runs_in(path: Path) -> Sequence[Path]:
    path = Path(os.path.abspath(path))
    try:
        if (path / schema.RUN_FILE).is_file():
            return [path]
        runs = sorted(p for p in path.iterdir() if (p / schema.RUN_FILE).is_file())
    except OSError as error:
        raise HaiprofError(
            f"{path}: {error.strerror}; give a run folder or log directory"
        ) from None
    if not runs:
        raise HaiprofError(
            f"{path}: neither a run nor a folder with runs (no {schema.RUN_FILE}); give one of them"
        )
    return runs


def _why_busy(run_dir: Path) -> str | None:
    """Return why the run must be left alone, or None."""
    owner = run_dir.stat().st_uid
    if owner != os.getuid():
        return f"belongs to user {owner}, who can recover it"
    rings = ring_dir(run_dir.name)
    if recorder_running(rings):
        return "is being recorded; left alone"
    if rings_in(rings):
        return "rings of it are still in shared memory; left alone"
    return None


def _why_open(folder: Path, known: dict[str, Any]) -> str | None:
    """Return why somebody may still write to a process's folder, or None."""
    host = str(known.get("host") or known.get("node"))
    if host not in (os.uname().nodename, node_name()):
        silent = time.time() - _last_written(folder)
        if silent < _SILENT_SECONDS:
            return f"{host} wrote to {folder.name} {silent:.0f} s ago; recover it there"
        return None
    pid, start_time = known.get("pid"), known.get("start_time")
    if (
        known.get("state") == "live"
        and isinstance(pid, int)
        and isinstance(start_time, int)
        and process_is_alive(pid, start_time)
    ):
        return f"process {pid} of it still runs; {folder.name} is left alone"
    return None


def _process_folders(run_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in sorted(run_dir.glob(f"*/{schema.PROCESS_FILE}")):
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(known, dict):
                yield file.parent, known


def _last_written(folder: Path) -> float:
    return max(p.stat().st_mtime for p in folder.iterdir())


def _close_run(run_dir: Path, told: Recovered) -> None:
    removed = remove_abandoned(run_dir, UNFINISHED_TRACE)
    if removed:
        what = "an unfinished deep trace is" if removed == 1 else f"{removed} unfinished traces are"
        told.remarks.append(f"{what} removed")
    for folder, known in _process_folders(run_dir):
        streams = sorted(folder.glob(f"*{schema.LIVE_SUFFIX}"))
        live = known.get("state") == "live"
        if not streams and not live:
            continue
        why = _why_open(folder, known)
        if why is not None:
            told.remarks.append(why)
            continue
        ended = _last_written(folder)
        for stream in streams:
            close_stream(stream)
            told.closed += 1
        if live:
            write_json(
                folder / schema.PROCESS_FILE,
                {**known, "state": "died", "ended_ns": int(ended * 1e9)},
            )
            told.remarks.append(f"{folder.name} died")
