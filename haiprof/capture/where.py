"""Where this process records to, for those who add files of their own and know no session.

Tests: tests/capture/session/test_session.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Recorded(Protocol):
    """What of a session says where it writes."""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""

    def folder(self) -> Path | None:
        """Return the folder of this process; None until the recorder has made it."""


def _nowhere() -> Recorded | None:
    return None


_find: Callable[[], Recorded | None] = _nowhere


def tell_where(find: Callable[[], Recorded | None]) -> None:
    """Name what returns the session of this process; None while it has none."""
    global _find
    _find = find


def recorded() -> Recorded | None:
    """Return where this process records to; None: it does not."""
    return _find()
