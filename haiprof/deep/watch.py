"""The memory that events take, and a way to have the main thread do something soon."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any, Final

#: How often a trace is looked at while it records, and before, s.
_RECORDING_PERIOD: Final = 0.05
_WAITING_PERIOD: Final = 0.2

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def private_bytes() -> int:
    """Return how much memory this process has that is no file's."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - twenty times a second
        fields = file.read().split()
    return (int(fields[1]) - int(fields[2])) * _PAGE


def give_memory_back() -> None:
    """Have glibc return to the system what torch has freed: hundreds of MiB after a trace."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class Watch:
    """A thread that looks after a trace while the thread that trains is busy."""

    def __init__(self, look: Callable[[], bool | None]) -> None:
        """Call ``look()`` now and then; it returns whether the trace records, None at its end."""
        self._look = look
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="haiprof-trace", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                recording = self._look()
            except Exception:  # once more at the next look
                recording = True
            if recording is None:
                return
            if self._ended.wait(_RECORDING_PERIOD if recording else _WAITING_PERIOD):
                return

    def leave(self) -> None:
        """Look no more. Does not wait."""
        self._ended.set()


_wanted: Callable[[], None] | None = None


def _on_main_thread(_: Any) -> int:
    global _wanted
    try:
        if _wanted is not None:
            _wanted()
    except KeyboardInterrupt:  # the user's; ctypes would swallow it
        _thread.interrupt_main()
    except BaseException:
        pass
    finally:
        # Not before: while one call waits and another runs, Python 3.11 enters no function for ever
        # where a profiler of Python functions has begun.
        _wanted = None
    return 0


_CALL: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_on_main_thread)


def soon_on_main_thread(what: Callable[[], None]) -> None:
    """Have the main thread call ``what`` between two instructions of its Python code.

    Like a signal's handler, and without one: the job has its own.
    """
    global _wanted
    if _wanted is None:
        _wanted = what
        if ctypes.pythonapi.Py_AddPendingCall(_CALL, None) != 0:
            _wanted = None  # too many are waiting; the caller will ask again
