"""Asks a process that has haiprof loaded, through its socket.

Tests: tests/cli/test_ps.py.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from haiprof.common import protocol
from haiprof.common.owned_files import Folder
from haiprof.errors import HaiprofError

#: How long a process may take to answer by default, s.
TIMEOUT: Final = 5.0
#: How long to wait before connecting again where too many are waiting, s.
_AGAIN_SECONDS: Final = 0.02
_CREDENTIALS: Final = struct.Struct("3i")


class ControlError(HaiprofError):
    """A process could not be asked, or it refused; ``str()`` of it is one line.

    Attributes:
        reason: "gone" (there is no such process, or it has ended), "unloaded" (it has not loaded
            haiprof, or records nothing yet), "denied" (it is another user's), "busy" (it does not
            answer in time), "version" (its haiprof speaks another version of the protocol),
            "refused" (with its reason) or "failed" (something broke).
    """

    def __init__(self, reason: str, text: str) -> None:
        """Keep both."""
        super().__init__(text)
        self.reason = reason


def ask(
    path: Path,
    request: str,
    arguments: Mapping[str, Any] | None = None,
    timeout: float = TIMEOUT,
) -> dict[str, Any]:
    """Send a request to the process at ``path`` and return its result (docs/control.md).

    Args:
        path: its socket.
        request: "status", "start", "stop", "flush", "stacks", "kernels", "trace" or "set".
        arguments: of the request.
        timeout: how long the answer may take, s. A request that the process has not begun by then
            is not carried out.

    Returns:
        The result; ``pid`` in it is the process as it is numbered here, not in its container.

    Raises:
        ControlError: with the reason.
    """
    who = f"process {path.name.partition('@')[0]}"
    deadline = time.monotonic() + timeout
    message = protocol.encode({"request": request, "arguments": dict(arguments or {})})
    with _connect(path, who, deadline) as connection:
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        pid = _CREDENTIALS.unpack(credentials)[0]
        try:
            with contextlib.suppress(BrokenPipeError):  # it may have refused us without reading
                protocol.send(connection, message, deadline)
            answer = protocol.receive(connection, deadline)
        except protocol.OtherVersion as error:
            raise ControlError("version", f"{who}: its haiprof speaks {error}{_SAME}") from None
        except protocol.BadMessage as error:
            if path.exists():
                raise ControlError("failed", f"{who}: invalid answer: {error}") from None
            raise ControlError("gone", f"{who} has ended") from None
        except TimeoutError:
            text = _why_silent(who, pid, timeout, read=_was_read(connection))
            raise ControlError("busy", text) from None
        except OSError as error:
            raise ControlError("gone", f"{who} went away: {error.strerror}") from None
    if "error" in answer:
        known = ("denied", "version", "refused")
        reason = answer["error"] if answer["error"] in known else "failed"
        fix = _SAME if reason == "version" else ""
        raise ControlError(reason, f"{who}: {answer.get('text', 'no reason is given')}{fix}")
    result = answer.get("result")
    if not isinstance(result, dict):
        raise ControlError("failed", f"{who}: invalid answer: {answer!r:.200}")
    if pid > 0:
        result["pid"] = pid
    return result


_SAME: Final = "; use the haiprof command of the job's own Python"


def _connect(path: Path, who: str, deadline: float) -> socket.socket:
    try:
        listener = Folder.at(path.parent).find_socket(path.name)
    except OSError as error:
        raise _not_reached(who, error) from None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        while True:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                # Not by its path, which may be longer than a socket's address, and where a
                # container may put a link to the socket of another process.
                connection.connect(f"/proc/self/fd/{listener}")
            except BlockingIOError:  # too many are waiting
                if time.monotonic() >= deadline:
                    text = f"{who}: too many others wait for its answer; try again"
                    raise ControlError("busy", text) from None
                time.sleep(_AGAIN_SECONDS)
            except OSError as error:
                raise _not_reached(who, error) from None
            else:
                return connection
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(listener)


def _not_reached(who: str, error: OSError) -> ControlError:
    if error.errno in (errno.EACCES, errno.EPERM):
        text = f"{who} is another user's: ask as that user, or as root"
        return ControlError("denied", text)
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return ControlError("gone", f"{who} has ended, or does not record")
    return ControlError("failed", f"{who}: {error.strerror or error}")


def _was_read(connection: socket.socket) -> bool:
    """Say whether the other side has taken all that was sent."""
    waiting = array.array("i", [1])
    with contextlib.suppress(OSError):
        fcntl.ioctl(connection, termios.TIOCOUTQ, waiting)
    return waiting[0] == 0


def _why_silent(who: str, pid: int, timeout: float, *, read: bool) -> str:
    said = f"{who} does not answer within {timeout:g} s, so nothing was changed: "
    if read:
        said = (
            f"{who} has begun with it, but does not answer within {timeout:g} s; check with "
            "haiprof ps for the outcome: "
        )
    if _state(pid) in ("T", "t"):
        return f"{said}it is stopped; resume it with kill -CONT {pid}"
    return (
        f"{said}its Python is busy in code that keeps the interpreter's lock (GIL), or the machine "
        "is; try again, or allow more time"
    )


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
