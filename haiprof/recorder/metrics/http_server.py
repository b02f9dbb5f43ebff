"""Serves the newest series over HTTP to any client: one thread, few connections, none for long.

What a client may cost is bounded: a request is small, a connection is short, the oldest makes room
for the newest, and a text is made once for each snapshot, however often it is asked for.
"""

from __future__ import annotations

import contextlib
import gzip
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from haiprof.recorder.metrics.families import Snapshot

#: Connections at a time.
_MOST: Final = 16
#: Bytes of a request, and s that one may take from the connection to the last byte.
_LARGEST: Final = 8192
_LONGEST_S: Final = 5.0
#: How often it is looked whether one took too long, s.
_LOOK_S: Final = 1.0
#: After a connection that could not be taken, s.
_PAUSE_S: Final = 0.05
_PLAIN: Final = "text/plain; charset=utf-8"

#: Makes the text of a snapshot: in the format of OpenMetrics or not.
Render = Callable[[Snapshot, bool], tuple[str, bytes]]


class _Connection:
    """A client, what it has asked so far, and what it has not got yet."""

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self.until = time.monotonic() + _LONGEST_S
        self.asked = b""
        self.answer = memoryview(b"")


class HttpServer:
    """Listens at one address."""

    def __init__(self, address: tuple[str, int], render: Render) -> None:
        """Begin to listen.

        Args:
            address: host and port.
            render: makes texts.

        Raises:
            OSError: the address is taken, or is not one of this machine.
        """
        self._render = render
        self._snapshot: Snapshot | None = None
        self._texts: tuple[Snapshot | None, dict[tuple[bool, bool], bytes]] = (None, {})
        self._connections: dict[int, _Connection] = {}
        family, kind, protocol, _, where = socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._listening = socket.socket(family, kind, protocol)
        try:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.bind(where)
            self._listening.listen(_MOST)
            self._listening.setblocking(False)
        except BaseException:
            self._listening.close()
            raise
        #: Host and port that it listens at.
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        self._stop, self._stopped = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._ends = False
        self._thread = threading.Thread(target=self._serve, name="haiprof-metrics", daemon=True)
        self._thread.start()

    def publish(self, snapshot: Snapshot) -> None:
        """Serve this from now on."""
        self._snapshot = snapshot

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._connections)

    def close(self) -> None:
        """Listen no longer."""
        self._ends = True
        self._stop.close()
        self._thread.join()

    # -- its thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._ends:
            for key, _ in self._selector.select(_LOOK_S):
                if key.fileobj is self._listening:
                    self._accept()
                elif (one := self._connections.get(key.fd)) is not None:
                    self._go_on(one)
            now = time.monotonic()
            for one in [one for one in self._connections.values() if one.until < now]:
                self._drop(one)
        for one in list(self._connections.values()):
            self._drop(one)
        self._selector.close()
        self._stopped.close()
        self._listening.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listening.accept()
        except OSError:  # it has gone, or there are no more descriptors
            time.sleep(_PAUSE_S)
            return
        client.setblocking(False)
        if len(self._connections) >= _MOST:
            self._drop(next(iter(self._connections.values())))
        self._connections[client.fileno()] = _Connection(client)
        self._selector.register(client, selectors.EVENT_READ)

    def _drop(self, one: _Connection) -> None:
        del self._connections[one.socket.fileno()]
        self._selector.unregister(one.socket)
        with contextlib.suppress(OSError):
            # A client that sends more than was read gets the answer all the same.
            one.socket.shutdown(socket.SHUT_WR)
        one.socket.close()

    def _go_on(self, one: _Connection) -> None:
        """Read more of the request, or send more of the answer."""
        try:
            if one.answer:
                one.answer = one.answer[one.socket.send(one.answer) :]
                done = not one.answer
            else:
                done = self._read(one)
        except BlockingIOError:
            return
        except Exception:  # whatever it has sent: the others are served
            done = True
        if done:
            self._drop(one)

    def _read(self, one: _Connection) -> bool:
        """Read what has come; return whether nothing more is to be done."""
        more = one.socket.recv(_LARGEST + 1 - len(one.asked))
        if not more:
            return True
        one.asked += more
        if b"\r\n\r\n" in one.asked or b"\n\n" in one.asked:
            answer = self._answer(one.asked)
        elif len(one.asked) > _LARGEST:
            answer = _response("431 Request Header Fields Too Large", _PLAIN, b"too large\n")
        else:
            return False
        one.answer = memoryview(answer)
        self._selector.modify(one.socket, selectors.EVENT_WRITE)
        return False

    def _answer(self, asked: bytes) -> bytes:
        first, *lines = asked.decode("latin-1").splitlines()
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response("400 Bad Request", _PLAIN, b"not HTTP/1\n")
        if words[0] not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", _PLAIN, b"GET or HEAD\n", "Allow: GET, HEAD")
        if words[1].partition("?")[0] != "/metrics":
            return _response("404 Not Found", _PLAIN, b"see /metrics\n")
        if self._snapshot is None:
            return _response("503 Service Unavailable", _PLAIN, b"no figures yet\n")
        headers = {
            name.strip().lower(): text for name, _, text in (x.partition(":") for x in lines)
        }
        openmetrics = "application/openmetrics-text" in headers.get("accept", "")
        packed = "gzip" in headers.get("accept-encoding", "")
        answer = self._text(self._snapshot, openmetrics, packed)
        return answer if words[0] == "GET" else answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def _text(self, snapshot: Snapshot, openmetrics: bool, packed: bool) -> bytes:
        of, texts = self._texts
        if of is not snapshot:
            texts = {}
            self._texts = snapshot, texts
        answer = texts.get((openmetrics, packed))
        if answer is None:
            kind, body = self._render(snapshot, openmetrics)
            more = "Vary: Accept, Accept-Encoding"
            if packed:
                body, more = gzip.compress(body, 1), f"{more}\r\nContent-Encoding: gzip"
            answer = texts[openmetrics, packed] = _response("200 OK", kind, body, more)
        return answer


def _response(status: str, kind: str, body: bytes, more: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [*filter(None, [more]), "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body
