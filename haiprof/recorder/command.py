"""The note that makes the recorder stay for a command of ``haiprof run``, rings or not.

A note, not an argument of the recorder: a rank may start its recorder first, and a killed one has
a successor. All of them find the note.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from haiprof.common.owned_files import Folder
from haiprof.common.places import open_rings

_NAME: Final = re.compile(r"(\d{1,10})-(\d{1,20})\.command", re.ASCII)
#: The folder of rings may go with the last recorder while a note is written.
_TRIES: Final = 100


class Command(NamedTuple):
    """A launched command: its process, and when that started (clock ticks since boot)."""

    pid: int
    start_time: int

    @property
    def note(self) -> str:
        """Name of its note."""
        return f"{self.pid}-{self.start_time}.command"


def write_note(ring_dir: Path, command: Command) -> None:
    """Make the recorder of a run stay for a command. Start it afterwards.

    Raises:
        OSError: the note cannot be written.
    """
    for left in reversed(range(_TRIES)):
        try:
            os.close(open_rings(ring_dir, make=True).update(command.note))
            return
        except FileNotFoundError:
            if not left:
                raise


def remove_note(rings: Folder, command: Command) -> None:
    """Let the recorder leave."""
    rings.remove(command.note)


def commands_in(rings: Folder) -> list[Command]:
    """Return the commands that a folder of rings has notes of; none if it is gone."""
    with contextlib.suppress(OSError):
        matches = map(_NAME.fullmatch, sorted(rings.names()))
        return [Command(int(match[1]), int(match[2])) for match in matches if match]
    return []
