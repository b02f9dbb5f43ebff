"""Lines for the user on stderr: whatever is in the way of recording is told once.

Tests: tests/capture/session/test_session.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_told: set[str] = set()
_listening: list[list[str]] = []


def tell(text: str) -> None:
    """Show the user one line on stderr, the same one once."""
    for lines in _listening:
        lines.append(text)
    if text in _told or sys.stderr is None:
        return
    _told.add(text)
    with contextlib.suppress(Exception):
        print(f"haiprof: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def overheard() -> Iterator[list[str]]:
    """Collect what the user is told meanwhile, for one who asked from elsewhere."""
    lines: list[str] = []
    _listening.append(lines)
    try:
        yield lines
    finally:
        _listening.remove(lines)
