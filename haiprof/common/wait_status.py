"""How a process ended, as the kernel knows it: its wait status, which only the parent gets.

Everybody else can look for it in three places, and each may be empty: the entry in /proc until the
parent has taken the status, the pidfd afterwards (Linux 6.15), and a note of the parent where that
is ``haiprof run``.

Tests: tests/recorder/test_ended.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from haiprof.common.owned_files import Folder
from haiprof.common.places import STATUS_SUFFIX

#: Of /proc/<pid>/stat, counted from field 3 on.
_STATE: Final = 0
_START_TIME: Final = 19
_START_STACK: Final = 25
_EXIT_CODE: Final = 49
#: struct pidfd_info of its first version: the mask first, the exit code last.
_INFO_BYTES: Final = 64
#: PIDFD_GET_INFO: _IOWR(0xFF, 11, struct pidfd_info).
_GET_INFO: Final = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11
_INFO_EXIT: Final = 1 << 3


def shown_to_us(stat: Sequence[str] | None) -> bool:
    """Say whether we may see all of a living process's stat: hidden fields read as 0."""
    return stat is not None and len(stat) > _START_STACK and stat[_START_STACK] != "0"


def status_in_stat(stat: Sequence[str] | None, start_time: int, *, shown: bool) -> int | None:
    """Return the wait status of a process that has ended and whose parent has not taken it yet.

    Args:
        stat: its ``/proc/<pid>/stat`` from field 3 on; None: there is none.
        start_time: field 22 of that very process.
        shown: whether we could see all of it while it lived.
    """
    if stat is None or len(stat) <= _EXIT_CODE or stat[_STATE] not in "ZX":
        return None
    if int(stat[_START_TIME]) != start_time:
        return None
    status = int(stat[_EXIT_CODE])
    return status if status or shown else None


def status_of_pidfd(fd: int | None) -> int | None:
    """Return the wait status of a process whose parent has taken it, where the kernel keeps it."""
    if fd is None:
        return None
    info = bytearray(struct.pack("Q", _INFO_EXIT).ljust(_INFO_BYTES, b"\0"))
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:  # an older kernel, or the parent has not taken it
        return None
    (mask,) = struct.unpack_from("Q", info)
    return int(struct.unpack_from("i", info, _INFO_BYTES - 4)[0]) if mask & _INFO_EXIT else None


class Noted(NamedTuple):
    """A parent's note about its child."""

    #: As of wait(2).
    status: int
    #: The newest signal by which somebody had asked the child to end; 0: none.
    asked: int


def note_status(rings: Folder, pid: int, start_time: int, noted: Noted) -> None:
    """Note for the recorder how a child ended, before the kernel forgets it.

    Raises:
        OSError: it cannot be written.
    """
    with rings.replacing(f"{pid}{STATUS_SUFFIX}") as file:
        file.write(f"{start_time} {noted.status} {noted.asked}\n".encode())


def noted_status(rings: Folder, pid: int, start_time: int) -> Noted | None:
    """Return what :func:`note_status` left of that very process."""
    with contextlib.suppress(OSError, ValueError):
        noted_start, status, asked = map(int, rings.read(f"{pid}{STATUS_SUFFIX}").split())
        return Noted(status, asked) if noted_start == start_time else None
    return None


def forget_statuses(rings: Folder) -> None:
    """Remove all notes."""
    with contextlib.suppress(OSError):
        for name in rings.names():
            if name.endswith(STATUS_SUFFIX):
                rings.remove(name)
