"""Real threads, locks and sockets for our work beside the job, under gevent, too.

gevent's replacements take turns on the job's own thread: ours would run there, only when the job
yields, and keep a job from ending that waits until all are done.

Tests: tests/cli/test_run.py.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any


def own(module: str, name: str) -> Any:
    """Return what Python itself has under a name, not what gevent has put there."""
    monkey = sys.modules.get("gevent.monkey")
    with contextlib.suppress(AttributeError):  # it is just being imported
        if monkey is not None:
            return monkey.get_original(module, name)
    return getattr(importlib.import_module(module), name)


_start: Callable[..., int] = own("_thread", "start_new_thread")
lock: Callable[[], Any] = own("_thread", "allocate_lock")
reentrant_lock: Callable[[], Any] = own("_thread", "RLock")
sleep: Callable[[float], None] = own("time", "sleep")
_LONGEST: float = own("_thread", "TIMEOUT_MAX")


class Background:
    """A thread that the end of the job does not wait for, invisible to tracers of threads."""

    def __init__(self, run: Callable[[], None]) -> None:
        """Have ``run()`` called on a new thread.

        Raises:
            RuntimeError: the process may have no more threads, or Python ends.
        """
        self._running = lock()
        self._running.acquire()
        # Not kept: it could form a cycle for the job's garbage collector.
        _start(self._work, (run,))

    def _work(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            self._running.release()

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return bool(self._running.locked())

    def join(self, seconds: float) -> None:
        """Wait for its end, at most ``seconds``."""
        if self._running.acquire(timeout=seconds):
            self._running.release()


class Event:
    """Something that has happened, or that threads wait for."""

    def __init__(self) -> None:
        """It has not happened."""
        self._waiting = lock()
        self._waiting.acquire()
        self._set = False

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._set

    def set(self) -> None:
        """Wake all waiting threads."""
        self._set = True
        with contextlib.suppress(RuntimeError):  # it was set before
            self._waiting.release()

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; return whether it has happened."""
        if not self._set and self._waiting.acquire(timeout=min(max(seconds, 0.0), _LONGEST)):
            self._waiting.release()
        return self._set


class Timer:
    """Calls something later, on a thread of its own."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it in ``seconds``.

        Raises:
            RuntimeError: the process may have no more threads, or Python ends.
        """
        self._cancelled = Event()
        self._seconds, self._call = seconds, call
        Background(self._work)

    def _work(self) -> None:
        if not self._cancelled.wait(self._seconds):
            self._call()

    def cancel(self) -> None:
        """Do not call it, unless that has begun."""
        self._cancelled.set()
