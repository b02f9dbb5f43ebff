"""Lines for the user on stderr: each problem of the recording is shown once.

Tests: tests/capture/session/test_session.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_shown: set[str] = set()
_listening: list[list[str]] = []


def say_once(text: str) -> None:
    """Show the user one line on stderr, the same one once."""
    for lines in _listening:
        lines.append(text)
    if text in _shown or sys.stderr is None:
        return
    _shown.add(text)
    with contextlib.suppress(Exception):
        print(f"haiprof: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def captured_lines() -> Iterator[list[str]]:
    """Collect the lines shown meanwhile, for a client of the control socket."""
    lines: list[str] = []
    _listening.append(lines)
    try:
        yield lines
    finally:
        _listening.remove(lines)
