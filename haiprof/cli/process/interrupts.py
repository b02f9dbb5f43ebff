"""Ctrl-C: it ends what a command waits for or reads, and lets it finish what it writes."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_R = TypeVar("_R")


def interruptible() -> None:
    """Have SIGINT interrupt what the main thread waits for, and what it reads.

    From its first import on, polars has the system restart both: a command that reads from a pipe,
    or from a file server that hangs, would not end.
    """
    importlib.import_module("polars")
    signal.siginterrupt(signal.SIGINT, True)


def finished(what: Callable[[], _R], on_interrupt: Callable[[], None]) -> _R:
    """Return what ``what`` returns, although Ctrl-C is pressed once meanwhile.

    Args:
        what: to be done, in a thread.
        on_interrupt: called at the first Ctrl-C; the second one raises KeyboardInterrupt.
    """
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(what)
        try:
            return done.result()
        except KeyboardInterrupt:
            on_interrupt()
            return done.result()
