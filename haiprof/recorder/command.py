"""The note that makes the recorder stay for a command of ``haiprof run``, rings or not.

The recorder writes into it what ``haiprof run`` is to say on its stderr, which only that can write
to without harm, wherever it leads.

A note, not an argument of the recorder: a rank may start its recorder first, and a killed one has
a successor. All of them find the note.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from haiprof.common.owned_files import Folder
from haiprof.common.places import open_rings

_NAME: Final = re.compile(r"(\d{1,10})-(\d{1,20})\.command", re.ASCII)
#: The folder of rings may go with the last recorder while a note is written.
_TRIES: Final = 100
#: Bytes that are read at once.
_MOST_SAID: Final = 1 << 16


class Command(NamedTuple):
    """A launched command: its process, and when that started (clock ticks since boot)."""

    pid: int
    start_time: int

    @property
    def note(self) -> str:
        """Name of its note."""
        return f"{self.pid}-{self.start_time}.command"


def write_note(ring_dir: Path, command: Command) -> Said:
    """Make the recorder of a run stay for a command. Start it afterwards.

    Returns:
        What the recorder says.

    Raises:
        OSError: the note cannot be written.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(FileNotFoundError):
            return Said(open_rings(ring_dir, make=True).update(command.note))
    return Said(open_rings(ring_dir, make=True).update(command.note))


class Said:
    """What the recorder has written into a note; also of one that is gone."""

    def __init__(self, fd: int) -> None:
        """Read from an open descriptor, which is closed with this."""
        self._file = os.fdopen(fd, "rb", buffering=0)
        self._waiting = b""

    def lines(self) -> list[str]:
        """Return the lines that are new."""
        with contextlib.suppress(OSError):
            self._waiting += self._file.read(_MOST_SAID) or b""
        *whole, self._waiting = self._waiting.split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]


def say_in_note(rings: Folder, command: Command, line: str) -> None:
    """Have ``haiprof run`` say a line.

    Raises:
        OSError: the note is gone, or there is no room.
    """
    fd = rings.update(command.note, os.O_WRONLY | os.O_APPEND, make=False)
    try:
        os.write(fd, f"{line}\n".encode("utf-8", "replace"))
    finally:
        os.close(fd)


def remove_note(rings: Folder, command: Command) -> None:
    """Let the recorder leave."""
    rings.remove(command.note)


def commands_in(rings: Folder) -> list[Command]:
    """Return the commands that a folder of rings has notes of; none if it is gone."""
    with contextlib.suppress(OSError):
        return commands_of(rings.names())
    return []


def commands_of(names: Iterable[str]) -> list[Command]:
    """Return the commands that these names of files are notes of."""
    matches = map(_NAME.fullmatch, names)
    return [Command(int(match[1]), int(match[2])) for match in matches if match]
