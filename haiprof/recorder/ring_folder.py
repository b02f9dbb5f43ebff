"""What is in the folder of rings of a run, looked at many times a second."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from haiprof.common.owned_files import Folder
from haiprof.recorder.command import Command, commands_of
from haiprof.recorder.outside import is_note
from haiprof.recorder.process import is_ring

#: What is coarser than the times of files in memory, ns.
_TICK_NS: Final = 50_000_000


class RingFolder:
    """What was in the folder of rings at the last look: all names, and what they stand for."""

    def __init__(self, folder: Folder) -> None:
        """Nothing has been looked at yet."""
        self._folder = folder
        #: The folder as a path that cannot be redirected.
        self.path = folder.reached_at()
        self.names: list[str] = []
        self.rings: list[Path] = []
        self.notes: list[Path] = []
        self.commands: list[Command] = []
        #: When it was changed before that look, ns; 0: look again.
        self.changed_ns = 0

    @property
    def fd(self) -> int:
        """Its descriptor."""
        return self._folder.fd

    def unchanged(self) -> bool:
        """Say whether it has in it what it had at the last look."""
        with contextlib.suppress(OSError):
            return os.fstat(self._folder.fd).st_mtime_ns == self.changed_ns
        return False

    def look(self) -> None:
        """List it, once for all that look for something in it."""
        if self.unchanged():
            return
        try:
            changed_ns = os.fstat(self._folder.fd).st_mtime_ns
            # The clock of files is a coarse one: what comes within its tick would not show.
            self.changed_ns = changed_ns if time.time_ns() - changed_ns > _TICK_NS else 0
            names = self._folder.names()
        except OSError:  # no further file may be opened: what was there is, until it can be seen
            self.changed_ns = 0
            return
        if names == self.names:
            return
        self.names = names
        paths = [self.path / name for name in names]
        self.rings = list(filter(is_ring, paths))
        self.notes = list(filter(is_note, paths))
        self.commands = commands_of(names)
