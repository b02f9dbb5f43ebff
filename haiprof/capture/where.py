"""Where this process records to, for code that adds files of its own and knows no session.

Tests: tests/capture/session/test_session.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Recorded(Protocol):
    """The part of a session that says where it writes."""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""

    @property
    def ring(self) -> Path | None:
        """The ring; None until there is one."""

    def folder(self) -> Path | None:
        """Return the folder of this process; None until the recorder has made it."""


def _nowhere() -> Recorded | None:
    return None


_find: Callable[[], Recorded | None] = _nowhere


def set_session_finder(find: Callable[[], Recorded | None]) -> None:
    """Set what returns the session of this process, or None while it has none."""
    global _find
    _find = find


def recorded() -> Recorded | None:
    """Return where this process records to; None if it does not."""
    return _find()
