"""What the events of a deep trace take of the process's memory.

torch keeps no account of that. What malloc() has handed out grows by the events from the end of one
step to that of the next: a job has by then given back what it needs within a step, however much
that is, and what the process has grown by would count that, too, and the holes between events.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_FIELDS: Final = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


class EventMemory:
    """Follows the memory of one trace, from its begin."""

    def __init__(self) -> None:
        """Begin: all that is there now belongs to the job."""
        self._used = _counter()
        self._private = private_bytes()
        #: How much more than now the job has had at once: it may need that in each step again.
        self._room = max(_greatest_private_bytes() - self._private, 0)
        self._before = self._used()
        #: At the end of the first step, with what only the first one adds, as gradients.
        self._first = self._last = self._before
        self._steps = 0
        #: The two greatest growths within one step. torch allocates events in blocks: a few steps
        #: take several times the mean. One such growth alone may be the job's, as an evaluation.
        self._greatest = (0, 0)

    def step_ended(self) -> None:
        """Note that a step has ended."""
        self._steps += 1
        used = self._used()
        if self._steps == 1:
            self._first = used
        else:
            second, first = sorted((*self._greatest, used - self._last))[1:]
            self._greatest = (second, first)
        self._last = used

    @property
    def taken(self) -> int:
        """What the events took at the end of the last step, bytes; of the first as of the others.

        0 before the second step has ended.
        """
        if self._steps < 2:
            return 0
        return max(self._last - self._first, 0) * self._steps // (self._steps - 1)

    def would_take(self) -> int:
        """Return what they will take when one more step has ended, by those before, bytes."""
        return self.taken + max(self._greatest[0], self.taken // max(self._steps, 1))

    def grown(self) -> int:
        """Return at least what has come with the trace, in the middle of a step, bytes.

        That is what the process uses beyond the most that it had before.
        """
        if not self.process_grown():  # the cheaper question: holes are a part of that
            return 0
        return max(self._used() - self._before - self._room, 0)

    def process_grown(self) -> int:
        """Return how much more the process has than it ever had before, bytes.

        Freed memory between events, which no large block fits into, is a part of that.
        """
        return max(private_bytes() - self._private - self._room, 0)

    def at_end(self) -> int:
        """Return what they take now, at most, bytes."""
        if self._steps < 2:
            return max(self._used() - self._before, 0)
        return self.taken + max(self._used() - self._last, 0)


def private_bytes() -> int:
    """Return how much memory of this process belongs to no file."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - twenty times a second
        fields = file.read().split()
    return (int(fields[1]) - int(fields[2])) * _PAGE


def _greatest_private_bytes() -> int:
    """Return the most that it was; 0 where the kernel does not tell."""
    with open("/proc/self/status", "rb") as file:  # noqa: PTH123 - of the process itself
        text = file.read()
    found = {
        name: int(kib) << 10
        for name, kib in re.findall(rb"(VmHWM|RssFile|RssShmem):\s+(\d+) kB", text)
    }
    return found.get(b"VmHWM", 0) - found.get(b"RssFile", 0) - found.get(b"RssShmem", 0)


def give_memory_back() -> None:
    """Have glibc return to the system what torch has freed: hundreds of MiB after a trace."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _counter() -> Callable[[], int]:
    """Return what counts the bytes that malloc() has handed out.

    With another allocator than glibc's, or before its version 2.33, it counts all of the process's.
    """
    try:
        process, libc = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
        ask = libc.mallinfo2
        glibcs = _address(process.malloc) == _address(libc.malloc)
    except (OSError, AttributeError):
        return private_bytes
    if not glibcs:
        return private_bytes
    ask.restype = _Mallinfo

    def handed_out() -> int:
        info = ask()
        return int(info.uordblks) + int(info.hblkhd)

    return handed_out


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
