"""Ctrl-C: it ends what a command waits for or reads, and lets it finish what it writes."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Final, TypeVar

_R = TypeVar("_R")
#: After what time an interrupt that was inconvenient comes again, s.
_LATER_SECONDS: Final = 0.02


def interruptible() -> None:
    """Have SIGINT interrupt what the main thread waits for, and what it reads.

    From its first import on, polars has the system restart both: a command that reads from a pipe,
    or from a file server that hangs, would not end. Where polars has called back into Python, an
    interrupt would be a panic of it: there it comes a moment later.
    """
    importlib.import_module("polars")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    signal.siginterrupt(signal.SIGINT, True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _within_polars(frame):
        raise KeyboardInterrupt
    main = threading.main_thread().ident
    assert main is not None
    again = threading.Timer(_LATER_SECONDS, signal.pthread_kill, (main, number))
    again.daemon = True
    again.start()


def _within_polars(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "polars":
            return True
        frame = frame.f_back
    return False


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
