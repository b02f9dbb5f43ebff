"""Looks after a trace while its thread is busy, and makes the main thread do something soon.

Tests: tests/capture/trace/test_ends.py.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Final

from haiprof import _core
from haiprof.common.threads import Background, Event

#: How often a trace is looked at while it records, and before, s.
_RECORDING_PERIOD: Final = 0.05
_WAITING_PERIOD: Final = 0.2


class Watch:
    """A thread that looks after a trace while the thread that trains is busy."""

    def __init__(self, look: Callable[[], bool | None]) -> None:
        """Call ``look()`` now and then; it returns whether the trace records, None at its end."""
        self._look = look
        self._ended = Event()
        Background(self._run)

    def _run(self) -> None:
        while True:
            try:
                recording = self._look()
            except Exception:  # retry at the next call
                recording = True
            if recording is None:
                return
            if self._ended.wait(_RECORDING_PERIOD if recording else _WAITING_PERIOD):
                return

    def leave(self) -> None:
        """Stop watching. Does not wait."""
        self._ended.set()


_wanted: Callable[[], None] | None = None


def _on_main_thread() -> None:
    global _wanted
    try:
        if _wanted is not None:
            _wanted()
    finally:
        # Not before: while one call waits and another runs, Python 3.11 never enters a function
        # again where a profiler of Python functions has begun.
        _wanted = None


def soon_on_main_thread(what: Callable[[], None]) -> None:
    """Have the main thread call ``what`` between two instructions of its Python code.

    Like a signal handler, but without one: the job has its own. ``what`` must not raise: the
    exception would reach the job.
    """
    global _wanted
    if _wanted is None:
        _wanted = what
        if not _core.call_soon(_on_main_thread):
            _wanted = None  # too many are waiting; the caller will ask again


def of_signal_handler(error: BaseException) -> bool:
    """Whether a handler of the job's for a signal raised it, which came while our code ran."""
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: object) -> object:
    """Return the code that a handler begins with; None of one that is not Python's."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)
