"""A process that is observed from outside: it has no ring, but a note in the folder of rings.

The note is written by whoever wants the process observed. The recorder gives the process a folder
in the run, samples its tree into that, and removes the note once the folder is closed: when the
process has ended, its time is over, or the note is withdrawn.
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
#: Of a note that was withdrawn.
_ENDED_SUFFIX: Final = ".ended"
#: The folder of rings may go with the last recorder while a note is written.
_TRIES: Final = 100


def is_note(path: Path) -> bool:
    """Say whether a file has the name of a note, possibly a withdrawn one."""
    return path.suffix in (_SUFFIX, _ENDED_SUFFIX)


def notes_in(ring_dir: Path) -> list[Path]:
    """Return the notes in a folder of rings, withdrawn ones too."""
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
        ValueError: it is not a note.
        OSError: it is gone.
    """
    try:
        note = Note(**json.loads(Folder.at(path.parent).read(path.name)))
        numbers = (note.pid, note.start_time, note.attempt, note.created_ns)
        if all(type(n) is int for n in numbers) and math.isfinite(note.until):
            return note
    except (TypeError, ValueError, RecursionError):
        pass
    raise ValueError(f"{path}: is not a note")


def write_note(ring_dir: Path, note: Note) -> Path:
    """Make the recorder of a run observe a process from outside. Start it afterwards.

    Args:
        ring_dir: where the run's rings lie.
        note: which process.

    Returns:
        The note's file, for :func:`end_note`.

    Raises:
        OSError: it cannot be written.
    """
    name = f"{note.pid}-{time.monotonic_ns()}{_SUFFIX}"
    for left in reversed(range(_TRIES)):
        try:
            write_json(open_rings(ring_dir, make=True), name, note._asdict())
            break
        except FileNotFoundError:
            if not left:
                raise
    return ring_dir / name


def end_note(note: Path, seconds: float) -> None:
    """Withdraw a note, and wait until the files of its process are closed.

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
            kills: counts kills for lack of memory; None: a new one for this process.

        Raises:
            ValueError: it is not a note.
            OSError: it is gone, or the folder cannot be made or written.
        """
        self._note = note.with_suffix(_SUFFIX)  # missing if withdrawn before it was read
        note_read = read_note(note)
        self.pid, self._until, self.why = note_read.pid, note_read.until, note_read.why
        self._about = {
            **note_read._asdict(),
            "node": node_name(),
            "host": os.uname().nodename,
            "boot_id": _boot_id(),
        }
        self._begun = time.time_ns()
        self._process_started = started_at(note_read.start_time)
        claimed = claim(run, self._about)
        self._files, self._role = claimed.folder, claimed.role
        self.folder = self._files.path
        self._write_process_file("live")
        self.life = Life(note_read.pid, note_read.start_time)
        self._kills = kills or MemoryKills()
        self._kills.join(note_read.pid, note_read.start_time)

    @property
    def label(self) -> str:
        """What distinguishes it from the others."""
        return f"rank {self._about['rank']} (pid {self.pid})"

    def over(self) -> bool:
        """Return whether it need not be watched any more."""
        return self.life.ended() or time.monotonic() >= self._until or not self._note.exists()

    def close(self) -> None:
        """Mark the folder as closed, and remove the note.

        Raises:
            OSError: there is no room for that.
        """
        if self.folder.exists():  # else somebody has removed it: it is not wanted
            self._write_process_file("closed")
        self.life.close()
        for note in (self._note, self._note.with_suffix(_ENDED_SUFFIX)):
            note.unlink(missing_ok=True)

    def _write_process_file(self, state: str) -> None:
        process_document = document(
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
        write_json(self._files, schema.PROCESS_FILE, process_document)

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
