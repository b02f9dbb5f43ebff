"""Messages between a process that records and those who ask it: one JSON object each.

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
#: A message that says that it is longer is not read.
MOST_BYTES: Final = 256 << 10

_HEADER: Final = struct.Struct("<3sBI")
_LETTERS: Final = b"hpc"


class BadMessage(Exception):
    """What was received is no message; ``str()`` of it says why."""


class OtherVersion(BadMessage):
    """It is one of another version."""

    def __init__(self, version: int) -> None:
        """Keep which."""
        super().__init__(f"version {version} of the protocol, and {VERSION} is spoken here")
        self.version = version


class Refused(Exception):
    """The answer is no; ``str()`` of it is a line that says why."""


def encode(document: dict[str, Any]) -> bytes:
    """Return a message.

    Raises:
        BadMessage: JSON cannot say it, or it is too long.
    """
    try:
        text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadMessage(f"this cannot be said in JSON: {error}") from None
    if len(text) > MOST_BYTES:
        raise BadMessage(f"{len(text)} bytes are more than a message holds ({MOST_BYTES})")
    return _HEADER.pack(_LETTERS, VERSION, len(text)) + text


def send(connection: socket.socket, message: bytes, deadline: float) -> None:
    """Send a message by ``deadline`` (CLOCK_MONOTONIC, s).

    Raises:
        TimeoutError: the other side did not take it.
        OSError: it has gone.
    """
    connection.settimeout(_left(deadline))
    connection.sendall(message)


def receive(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """Receive a message by ``deadline`` (CLOCK_MONOTONIC, s).

    Raises:
        BadMessage: it is none.
        TimeoutError: it was not there in time.
        OSError: the other side has gone.
    """
    letters, version, length = _HEADER.unpack(_exactly(connection, _HEADER.size, deadline))
    if letters != _LETTERS:
        raise BadMessage("this is no message of haiprof")
    if version != VERSION:
        raise OtherVersion(version)
    if length > MOST_BYTES:
        raise BadMessage(f"{length} bytes are more than a message holds ({MOST_BYTES})")
    try:
        document = json.loads(_exactly(connection, length, deadline), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise BadMessage("this is no JSON") from None
    if not isinstance(document, dict):
        raise BadMessage("this is no JSON object")
    return document


def _exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        # What has arrived already is taken, however late it is read.
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
