"""A process that is looked at from outside: it has no ring, but a note in the folder of rings.

Who wants it watched writes the note. The recorder gives the process a folder in the run, samples
its tree into that, and removes the note once the folder is closed: when the process has ended, its
time is over, or who wrote the note takes it back.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof.launcher import Placement
from haiprof.places import make_private, node_name, ring_root
from haiprof.recorder.election import recorder_running
from haiprof.recorder.launch import RECORDER_START_SECONDS, ring_doorbell
from haiprof.recorder.life import Life, started_at
from haiprof.recorder.process_folder import claim, document, write_json

log = logging.getLogger(__name__)

_SUFFIX: Final = ".outside"
#: Of a note that was taken back.
_ENDED_SUFFIX: Final = ".ended"
#: The folder of rings may go with the last recorder while a note is written.
_TRIES: Final = 100


def notes_in(ring_dir: Path) -> list[Path]:
    """Return the notes in a folder of rings, those that were taken back, too."""
    with contextlib.suppress(OSError):
        return sorted(p for p in ring_dir.iterdir() if p.suffix in (_SUFFIX, _ENDED_SUFFIX))
    return []


def processes_of_notes(ring_dir: Path) -> list[int]:
    """Return the pids that the notes in a folder of rings name."""
    found = []
    for path in notes_in(ring_dir):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(_read(path)["pid"]))
    return found


def write_note(
    ring_dir: Path, pid: int, start_time: int, place: Placement, why: str, until: float
) -> Path:
    """Have the recorder of a run watch a process from outside. It must be started then.

    Args:
        ring_dir: where the run's rings lie.
        pid: the process.
        start_time: when it started, clock ticks since boot.
        place: its place in its job.
        why: it is only watched from outside.
        until: how long at most (CLOCK_MONOTONIC, s).

    Returns:
        The note, for :func:`end_note`.

    Raises:
        OSError: it cannot be written.
    """
    told = {
        "pid": pid,
        "start_time": start_time,
        "rank": place.rank,
        "local_rank": place.local_rank,
        "world_size": place.world_size,
        "attempt": place.attempt,
        "why": why,
        "until": until,
    }
    note = ring_dir / f"{pid}-{time.monotonic_ns()}{_SUFFIX}"
    for left in reversed(range(_TRIES)):
        make_private(ring_root())
        make_private(ring_dir)
        try:
            write_json(note, told)
            break
        except FileNotFoundError:
            if not left:
                raise
    return note


def end_note(note: Path, seconds: float) -> None:
    """Take a note back, and wait until the files of its process are closed.

    With the last process of the run those of the node are closed, too. Never raises.

    Args:
        note: which.
        seconds: how long to wait at most.
    """
    begun = time.monotonic()
    rings = note.parent
    ended = note.with_suffix(_ENDED_SUFFIX)
    with contextlib.suppress(OSError):  # it is gone: all is closed
        note.rename(ended)

    def recorded() -> bool:
        return recorder_running(rings) or time.monotonic() - begun < RECORDER_START_SECONDS

    def more() -> bool:
        with contextlib.suppress(OSError):
            return any(p.suffix in (_SUFFIX, _ENDED_SUFFIX, ".ring") for p in rings.iterdir())
        return False

    ring_doorbell(rings)
    while ended.exists() and recorded() and time.monotonic() - begun < seconds:
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        ended.unlink()
    while recorder_running(rings) and not more() and time.monotonic() - begun < seconds:
        time.sleep(0.01)


class OutsideProcess:
    """A process that a note names, and its folder."""

    def __init__(self, note: Path, run_dir: Path) -> None:
        """Read the note and make the folder.

        Raises:
            ValueError: it is no note.
            OSError: it has gone, or the folder cannot be made or written.
        """
        self._note = note.with_suffix(_SUFFIX)  # not there: it was taken back before it was read
        told = _read(note)
        try:
            self.pid = int(told["pid"])
            self._until = float(told["until"])
            self.why = str(told["why"])
            start_time = int(told["start_time"])
            about = {
                **{name: told[name] for name in ("rank", "local_rank", "world_size", "attempt")},
                "node": node_name(),
                "host": os.uname().nodename,
                "pid": self.pid,
                "start_time": start_time,
                "boot_id": _boot_id(),
                "created_ns": time.time_ns(),
            }
        except (KeyError, TypeError) as error:
            raise ValueError(f"{note}: {error!r}") from None
        self._about = about
        self._process_started = started_at(start_time)
        claimed = claim(run_dir, about)
        self.folder, self._role = claimed.folder, claimed.role
        self._write_process_file("live")
        self.life = Life(self.pid, start_time)

    @property
    def label(self) -> str:
        """How it is told from the others."""
        return f"rank {self._about['rank']} (pid {self.pid})"

    def over(self) -> bool:
        """Return whether it need not be watched any more."""
        return self.life.ended() or time.monotonic() >= self._until or not self._note.exists()

    def close(self) -> None:
        """Say in the folder that all there is closed, and remove the note.

        Raises:
            OSError: there is no room to say so.
        """
        if self.folder.exists():  # else somebody has removed it, so nobody wants it
            self._write_process_file("closed")
        self.life.close()
        for note in (self._note, self._note.with_suffix(_ENDED_SUFFIX)):
            note.unlink(missing_ok=True)

    def _write_process_file(self, state: str) -> None:
        told = document(
            self._about,
            role=self._role,
            state=state,
            process_started_ns=self._process_started,
            started_ns=self._about["created_ns"],
            ended_ns=None if state == "live" else time.time_ns(),
            utc_offset_ns=time.time_ns() - time.monotonic_ns(),
            ring=None,
            outside=self.why,
            gpus=[],
            lost={"records": 0},
        )
        write_json(self.folder / schema.PROCESS_FILE, told)


def _read(note: Path) -> dict[str, Any]:
    told = json.loads(note.read_text(encoding="utf-8"))
    if not isinstance(told, dict) or not math.isfinite(told.get("until", math.nan)):
        raise ValueError(f"{note}: is no note")
    return told


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
