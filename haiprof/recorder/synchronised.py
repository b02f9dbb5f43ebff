"""How far the kernel believes the wall clock to be from UTC, as set by NTP or PTP.

Tests: tests/recorder/test_machine.py.
"""

from __future__ import annotations

import ctypes
from typing import Final

_UNSYNCHRONISED: Final = 0x0040
_ERROR: Final = 5


class _Timex(ctypes.Structure):
    """``struct timex`` of the C library, as far as it is looked at; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def clock_error_ns() -> int | None:
    """Return the most that the wall clock can be off by, in ns; None if nothing synchronises it.

    The daemon that synchronises it sets this in the kernel; it grows until the next update.
    Nothing is changed.
    """
    answer = _Timex()  # modes 0: only read
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(answer))
    except (OSError, AttributeError):  # another C library
        return None
    return error_of(state, answer.status, answer.maxerror)


def error_of(state: int, status: int, most_us: int) -> int | None:
    """Return the error in an answer of adjtimex(2), in ns; None if there is none."""
    if state < 0 or state == _ERROR or status & _UNSYNCHRONISED:
        return None
    return most_us * 1000
