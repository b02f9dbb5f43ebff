"""What a recorder watches for beside recording: it may fail, the recording may not.

Tests: tests/recorder/test_hangs.py.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from haiprof.common.owned_files import Folder
from haiprof.recorder.process_folder import write_json

log = logging.getLogger(__name__)

#: Takes an event: kind, text and attributes.
Tell: TypeAlias = Callable[[str, str, dict[str, Any]], None]


class Ends(Protocol):
    """What watches, as far as it matters here."""

    def end(self) -> None:
        """Watch no longer."""


Watch = TypeVar("Watch", bound=Ends)


class Watching(Generic[Watch]):
    """Has something watched for, and keeps what holds in a file beside the rings."""

    #: Of its events.
    kind: str
    #: Name of that file.
    file: str
    #: Where it looks, after "looks".
    looks: str

    def __init__(self, rings: Folder, tell: Tell, watch: Watch) -> None:
        """Begin to watch.

        Args:
            rings: the folder of its rings.
            tell: takes events.
            watch: what watches.
        """
        self._rings, self._tell = rings, tell
        self._watch: Watch | None = watch
        if rings.has(self.file):
            text = f"a new recorder took over, and looks anew {self.looks}"
            tell(self.kind, text, {"over": True})
            self._forget()

    def _turn(self, look: Callable[[Watch], None]) -> None:
        """Look, unless it is not watched for any more. Never raises."""
        if self._watch is None:
            return
        try:
            look(self._watch)
        except Exception:  # the recording is worth more
            log.exception("nobody looks %s any more", self.looks)
            self.close()

    def close(self) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        self._forget()

    def _keep(self, state: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            write_json(self._rings, self.file, state)

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self._rings.remove(self.file)
