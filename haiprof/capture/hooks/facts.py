"""Records what is so for a while, as an event, once and again when it has changed.

Tests: tests/capture/hooks/test_settings.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from haiprof import _core

#: Characters of a text that somebody else wrote.
_LONGEST: Final = 500


def record(kind: str, text: str, attributes: Mapping[str, Any]) -> bool:
    """Record an event of a kind; return whether there is a ring for it.

    Values that JSON does not know are recorded as their texts.
    """
    if not _core.ready_for_event():
        return False
    _core.event(kind, text, json.dumps(attributes, default=str))
    return True


def shortened(text: object) -> str | None:
    """Return the beginning of a text; None for none."""
    return None if text is None else str(text)[:_LONGEST]


def qualified(owner: Any) -> str:
    """Return the module and the qualified name of a class or function, or of a callable's class."""
    named = owner if hasattr(owner, "__qualname__") else type(owner)
    return f"{named.__module__}.{named.__qualname__}"


class Facts:
    """The last known facts of one kind."""

    def __init__(self, kind: str) -> None:
        """Nothing is recorded yet."""
        self._kind = kind
        self._last: Mapping[str, Any] | None = None

    def record(self, text: str, facts: Mapping[str, Any]) -> None:
        """Record them, unless they are what was recorded last."""
        if facts != self._last and record(self._kind, text, facts):
            self._last = facts
