"""What the commands print on the terminal: lines, and a spinner for long tasks.

Tests: tests/cli/test_report.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

from haiprof.common.printable import printable

#: What takes longer than this, s, gets a spinner.
_PATIENCE: Final = 1.0
#: As a shell reports death by SIGPIPE.
_BROKEN_PIPE: Final = 141


def say(line: str) -> None:
    """Print one line of ours on stderr; a stderr that is gone is no reason to fail."""
    if sys.stderr is None:  # print would take stdout, which is the command's
        return
    with contextlib.suppress(OSError, ValueError):
        print(f"haiprof: {printable(line)}", file=sys.stderr, flush=True)


def reader_gone() -> int:
    """Give up on a stdout whose reader has seen enough; return the exit code for that."""
    # What is buffered must not fail again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return _BROKEN_PIPE


@contextlib.contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show ``text`` with a spinner on stderr while the body runs, if that takes long."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    import threading

    lock = threading.Lock()
    over = False
    shown: list[Any] = []

    def show() -> None:
        from rich.console import Console

        with lock:
            if not over:
                status = Console(stderr=True).status(text)
                status.start()
                shown.append(status)

    timer = threading.Timer(_PATIENCE, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
            for status in shown:
                status.stop()
