"""In the job: one Unix socket for each process, and one thread that serves it.

The thread sleeps in accept() and costs nothing while nobody asks. Connections are served one after
the other, each with a short deadline, so that clients that send nothing, or come by the thousand,
delay the others but not the job. Nothing here raises into the job.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from haiprof.common import protocol, threads
from haiprof.common.places import PARTIAL_SUFFIX, control_socket, open_rings

Answer = Callable[[str, dict[str, Any]], dict[str, Any]]

#: How long a request may take to arrive, and its answer to be taken, s.
_PATIENCE: Final = 0.5
#: Connections that wait for their turn; the kernel lets no more in.
_WAITING: Final = 16
#: How long to wait where there are no descriptors and no memory, or the job closes ours, s.
_PAUSE: Final = 0.5
_PASSING: Final = frozenset(
    {
        *(errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM),
        *(errno.EBADF, errno.ENOTSOCK, errno.ECONNABORTED),
    }
)
#: How long the end of the job waits for the thread, s.
_JOIN_SECONDS: Final = 0.2

_CREDENTIALS: Final = struct.Struct("3i")

#: Not those of gevent, which would run a loop of its own on our thread.
_Socket: Final = threads.own("socket", "socket")
_poll: Final = threads.own("select", "poll")

_lock = threads.lock()
_server: Server | None = None


def open_socket(answer: Answer) -> None:
    """Answer requests from now on. Idempotent.

    Args:
        answer: called with a request's name and arguments; returns a result for JSON or raises
            ``protocol.Refused``.

    Raises:
        OSError: the socket cannot be made.
        RuntimeError: the process may have no more threads.
    """
    global _server
    with _lock:
        if _server is None or not _server.alive:
            _server = Server(control_socket(), answer)


def close_socket() -> None:
    """Answer no more requests: the job ends."""
    global _server
    with _lock:
        server, _server = _server, None
    if server is not None:
        server.close()


def close_after_answer() -> None:
    """Answer no more requests after the current one."""
    global _server
    with _lock:
        server, _server = _server, None
    if server is not None:
        server.close_after_answer()


class Server:
    """A socket and its thread."""

    def __init__(self, path: Path, answer: Answer) -> None:
        """Make ``path``, in the place of one that a dead process left, and serve."""
        self._path = path
        self._answer = answer
        self._closed = False
        self._closing = threads.lock()
        self._connection: _OwnSocket | None = None
        self._listener = _OwnSocket(_Socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            self._listen()
            self._thread = threads.Background(self._run)
        except BaseException:
            self._listener.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._thread.alive

    def _listen(self) -> None:
        listener = self._listener.socket
        listener.settimeout(None)  # the job may have set a default
        folder = open_rings(self._path.parent, make=True)
        name, partial = self._path.name, f"{self._path.name}{PARTIAL_SUFFIX}"
        folder.remove(partial)
        # Not by its path, which may be longer than a socket's address.
        listener.bind(str(folder.reached_at() / partial))
        os.chmod(partial, 0o600, dir_fd=folder.fd)
        listener.listen(_WAITING)
        # It gets its name only when it listens: one that refuses is a dead process's.
        folder.rename(partial, name)

    def _listen_again(self) -> None:
        """Replace the socket if the job has closed it, as daemons close all unknown descriptors."""
        with self._closing:
            if not self._closed:
                self._listener.close()
                self._listener = _OwnSocket(_Socket(socket.AF_UNIX, socket.SOCK_STREAM))
                try:
                    self._listen()
                except OSError:
                    self._listener.close()
                    raise

    def close(self) -> None:
        """Remove the socket and end the thread, unless it is in the middle of an answer."""
        self.close_after_answer()
        if self._listener.ours:
            with contextlib.suppress(OSError):
                self._listener.socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join(_JOIN_SECONDS)

    def close_after_answer(self) -> None:
        """Remove the socket; the thread ends on its own after the current answer."""
        with self._closing:
            self._closed = True
            with contextlib.suppress(OSError):
                self._path.unlink()
            with contextlib.suppress(OSError):
                self._path.parent.rmdir()

    def in_forked_child(self) -> None:
        """Close the parent's descriptors: its clients would wait while they are open."""
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        while not self._closed:
            try:
                if not self._listener.ours:
                    self._listen_again()
                    continue
                self._connection = _OwnSocket(_accept(self._listener.socket))
            except OSError as error:
                if error.errno not in _PASSING:
                    break
                threads.sleep(_PAUSE)
                continue
            with contextlib.suppress(Exception):
                # A client with its answer may ask again at once, and must find a socket.
                if not self._listener.ours:
                    self._listen_again()
                self._converse(self._connection)
            self._connection.close()
            self._connection = None
        self._listener.close()
        if not self._closed:
            self.close_after_answer()

    def _converse(self, own_socket: _OwnSocket) -> None:
        connection = own_socket.socket
        if _uid_of_peer(connection) not in (0, os.getuid()):
            text = "it is another user's: ask as that user, or as root"
            answer = {"error": "denied", "text": text}
            protocol.send(connection, protocol.encode(answer), time.monotonic() + _PATIENCE)
            return
        try:
            message = protocol.receive(connection, time.monotonic() + _PATIENCE)
        except protocol.OtherVersion as error:
            from haiprof import __version__

            answer = {"error": "version", "text": f"haiprof {__version__} was sent {error}"}
        except protocol.BadMessage as error:
            answer = {"error": "message", "text": str(error)}
        else:
            if _gone(connection):
                return  # the client has already reported that nothing was done
            answer = self._answered(message)
        if own_socket.ours:
            protocol.send(connection, protocol.encode(answer), time.monotonic() + _PATIENCE)

    def _answered(self, message: dict[str, Any]) -> dict[str, Any]:
        request, arguments = message.get("request"), message.get("arguments", {})
        if not isinstance(request, str) or not isinstance(arguments, dict):
            return {"error": "message", "text": "this is no request"}
        try:
            return {"result": self._answer(request, arguments)}
        except protocol.Refused as error:
            return {"error": "refused", "text": str(error)}
        except Exception as error:
            return {"error": "failed", "text": f"{request}: {error!r}"[:1000]}


class _OwnSocket:
    """A socket that notices if the job has closed its descriptor, even if the number is reused."""

    def __init__(self, own_socket: socket.socket) -> None:
        self.socket = own_socket
        self._identity = _identity(own_socket.fileno())

    @property
    def ours(self) -> bool:
        """Whether the descriptor is the socket's."""
        return self._identity is not None and _identity(self.socket.fileno()) == self._identity

    def close(self) -> None:
        """Close the socket, and nothing of the job's."""
        if self.ours:
            self.socket.close()
        else:
            self.socket.detach()


def _accept(listener: socket.socket) -> socket.socket:
    # accept() would create one of gevent's class.
    descriptor, _ = listener._accept()  # type: ignore[attr-defined]
    return cast(socket.socket, _Socket(fileno=descriptor))


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def _uid_of_peer(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def _gone(connection: socket.socket) -> bool:
    poll = _poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _after_fork() -> None:
    global _lock, _server
    _lock = threads.lock()  # the parent's may have been locked by a thread that is not here
    server, _server = _server, None
    if server is not None:
        with contextlib.suppress(Exception):
            server.in_forked_child()


os.register_at_fork(after_in_child=_after_fork)
