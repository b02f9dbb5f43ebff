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
from typing import Any, Final, NamedTuple

from haiprof import schema
from haiprof.common.owned_files import Folder
from haiprof.common.places import RING_SUFFIX, node_name, open_rings
from haiprof.common.process_life import Life, started_at
from haiprof.recorder import ending
from haiprof.recorder.election import recorder_running
from haiprof.recorder.launch import RECORDER_START_SECONDS, ring_doorbell
from haiprof.recorder.memory_kills import MemoryKills
from haiprof.recorder.process_folder import claim, document, write_json

log = logging.getLogger(__name__)

_SUFFIX: Final = ".outside"
#: Of a note that was taken back.
_ENDED_SUFFIX: Final = ".ended"
#: The folder of rings may go with the last recorder while a note is written.
_TRIES: Final = 100


def is_note(path: Path) -> bool:
    """Say whether a file is called as notes are, those that were taken back, too."""
    return path.suffix in (_SUFFIX, _ENDED_SUFFIX)


def notes_in(ring_dir: Path) -> list[Path]:
    """Return the notes in a folder of rings, those that were taken back, too."""
    with contextlib.suppress(OSError):
        return sorted(filter(is_note, ring_dir.iterdir()))
    return []


def processes_of_notes(ring_dir: Path) -> list[int]:
    """Return the pids that the notes in a folder of rings name."""
    found = []
    for path in notes_in(ring_dir):
        with contextlib.suppress(OSError, ValueError):
            found.append(read_note(path).pid)
    return found


class Note(NamedTuple):
    """Which process is to be watched, and why only from outside."""

    #: The run's folder.
    run_dir: str
    pid: int
    #: Clock ticks since boot.
    start_time: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    attempt: int
    why: str
    #: How long at most (CLOCK_MONOTONIC, s).
    until: float
    #: When it was written, ns UTC.
    created_ns: int


def read_note(path: Path) -> Note:
    """Read a note.

    Raises:
        ValueError: it is none.
        OSError: it has gone.
    """
    try:
        told = Note(**json.loads(Folder.at(path.parent).read(path.name)))
        numbers = (told.pid, told.start_time, told.attempt, told.created_ns)
        if all(type(n) is int for n in numbers) and math.isfinite(told.until):
            return told
    except (TypeError, ValueError, RecursionError):
        pass
    raise ValueError(f"{path}: is no note")


def write_note(ring_dir: Path, told: Note) -> Path:
    """Have the recorder of a run watch a process from outside. It must be started then.

    Args:
        ring_dir: where the run's rings lie.
        told: which process.

    Returns:
        The note's file, for :func:`end_note`.

    Raises:
        OSError: it cannot be written.
    """
    name = f"{told.pid}-{time.monotonic_ns()}{_SUFFIX}"
    for left in reversed(range(_TRIES)):
        try:
            write_json(open_rings(ring_dir, make=True), name, told._asdict())
            break
        except FileNotFoundError:
            if not left:
                raise
    return ring_dir / name


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
            return any(is_note(p) or p.suffix == RING_SUFFIX for p in rings.iterdir())
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

    def __init__(self, note: Path, run: Folder, kills: MemoryKills | None = None) -> None:
        """Read the note and make the folder.

        Args:
            note: which process.
            run: folder of the run.
            kills: knows whom the kernel killed for memory; None: of this process nobody does.

        Raises:
            ValueError: it is no note.
            OSError: it has gone, or the folder cannot be made or written.
        """
        self._note = note.with_suffix(_SUFFIX)  # not there: it was taken back before it was read
        told = read_note(note)
        self.pid, self._until, self.why = told.pid, told.until, told.why
        self._about = {
            **told._asdict(),
            "node": node_name(),
            "host": os.uname().nodename,
            "boot_id": _boot_id(),
        }
        self._begun = time.time_ns()
        self._process_started = started_at(told.start_time)
        claimed = claim(run, self._about)
        self._files, self._role = claimed.folder, claimed.role
        self.folder = self._files.path
        self._write_process_file("live")
        self.life = Life(told.pid, told.start_time)
        self._kills = kills or MemoryKills()
        self._kills.join(told.pid, told.start_time)

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
            started_ns=self._begun,
            ended_ns=None if state == "live" else time.time_ns(),
            utc_offset_ns=time.time_ns() - time.monotonic_ns(),
            ring=None,
            outside=self.why,
            gpus=[],
            lost={"records": 0},
            ended=None if state == "live" else self._described(),
        )
        write_json(self._files, schema.PROCESS_FILE, told)

    def _described(self) -> dict[str, Any]:
        living = not self.life.ended()
        at = time.time_ns()
        if self.life.ended_at is not None:
            at -= time.monotonic_ns() - self.life.ended_at
        who = (self.pid, self.life.start_time)
        if not living:
            self._kills.judge({who: self.life.killed})
        return ending.described(
            self.life.status, at, goodbye=False, memory=self._kills.verdict(*who), living=living
        )


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
