"""Series as a text file, which the textfile collector of Prometheus' node_exporter reads."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from haiprof.common.owned_files import Folder
from haiprof.recorder.metrics.exposition import render
from haiprof.recorder.metrics.families import Snapshot

#: node_exporter is another user.
_READABLE: Final = 0o644


class Textfile:
    """Keeps one file; it is there as long as the job is recorded."""

    def __init__(self, path: str) -> None:
        """Find its folder.

        Raises:
            OSError: there is none.
        """
        self._name = Path(path).name
        self._folder = Folder.at(Path(path).parent)
        self._partial = f".{self._name}-{os.getpid()}"

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the file in one rename.

        Raises:
            OSError: it cannot be written; what was there stays.
        """
        with self._folder.replacing(self._name, self._partial) as file:
            os.fchmod(file.fileno(), _READABLE)
            file.write(render(snapshot))

    def close(self) -> None:
        """Remove it: what it says would seem to hold on."""
        with contextlib.suppress(OSError):
            self._folder.remove(self._name)
