"""Messages between a recording process and its clients: one JSON object each.

A message is a header of eight bytes (the letters ``hpc``, the version, the length of what follows
as a little-endian number) and the object as UTF-8. A request is ``{"request": NAME, "arguments":
{…}}``, its answer ``{"result": {…}}`` or ``{"error": REASON, "text": LINE}``. Header and errors are
the same in every version; all else may change with it.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, Final, NoReturn

VERSION: Final = 1
#: A message with a larger length is not read.
MOST_BYTES: Final = 256 << 10

_HEADER: Final = struct.Struct("<3sBI")
_LETTERS: Final = b"hpc"


class BadMessage(Exception):
    """What was received is not a message; ``str()`` of it says why."""


class OtherVersion(BadMessage):
    """The message is of another version."""

    def __init__(self, version: int) -> None:
        """Keep which."""
        super().__init__(f"version {version} of the protocol; this is version {VERSION}")
        self.version = version


class Refused(Exception):
    """The request is refused; ``str()`` of it is a line that says why."""


def encode(document: dict[str, Any]) -> bytes:
    """Return a message.

    Raises:
        BadMessage: JSON cannot express it, or it is too long.
    """
    try:
        text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadMessage(f"this cannot be expressed in JSON: {error}") from None
    if len(text) > MOST_BYTES:
        raise BadMessage(f"{len(text)} bytes are more than a message may have ({MOST_BYTES})")
    return _HEADER.pack(_LETTERS, VERSION, len(text)) + text


def send(connection: socket.socket, message: bytes, deadline: float) -> None:
    """Send a message by ``deadline`` (CLOCK_MONOTONIC, s).

    Raises:
        TimeoutError: the other side did not take it.
        OSError: it disconnected.
    """
    connection.settimeout(_left(deadline))
    connection.sendall(message)


def receive(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """Receive a message by ``deadline`` (CLOCK_MONOTONIC, s).

    Raises:
        BadMessage: it is not a message.
        TimeoutError: it did not arrive in time.
        OSError: the other side disconnected.
    """
    letters, version, length = _HEADER.unpack(_exactly(connection, _HEADER.size, deadline))
    if letters != _LETTERS:
        raise BadMessage("this is not a haiprof message")
    if version != VERSION:
        raise OtherVersion(version)
    if length > MOST_BYTES:
        raise BadMessage(f"{length} bytes are more than a message may have ({MOST_BYTES})")
    try:
        document = json.loads(_exactly(connection, length, deadline), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise BadMessage("this is not JSON") from None
    if not isinstance(document, dict):
        raise BadMessage("this is not a JSON object")
    return document


def _exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        # Data that has already arrived is taken, however late it is read.
        connection.settimeout(_left(deadline))
        piece = connection.recv(size - len(pieces))
        if not piece:
            raise BadMessage("it ends in the middle" if pieces else "nothing was sent")
        pieces += piece
    return bytes(pieces)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)  # 0 would mean: do not wait


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)
