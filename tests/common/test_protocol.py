"""Messages: whole ones arrive unchanged, everything else is recognised as invalid."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from haiprof.common import protocol

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def _receive(connection: socket.socket, seconds: float = 5.0) -> dict[str, object]:
    return protocol.receive(connection, time.monotonic() + seconds)


def _raw(text: bytes, version: int = protocol.VERSION, letters: bytes = b"hpc") -> bytes:
    return struct.pack("<3sBI", letters, version, len(text)) + text


def test_a_message_arrives_as_it_was(pair: Pair) -> None:
    document = {"request": "start", "arguments": {"run": "größe", "time": 1.5, "hooks": None}}
    protocol.send(pair[0], protocol.encode(document), time.monotonic() + 5)
    protocol.send(pair[0], protocol.encode({}), time.monotonic() + 5)
    assert _receive(pair[1]) == document
    assert _receive(pair[1]) == {}


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a haiprof message"),
        (_raw(b"{}", letters=b"hpx"), "not a haiprof message"),
        (_raw(b"{'a': 1}"), "not JSON"),
        (_raw(b"[1]"), "not a JSON object"),
        (_raw(b'{"a": NaN}'), "not JSON"),
        (_raw(b'{"a": "\xff"}'), "not JSON"),
        (_raw(b"[" * 100_000), "not JSON"),
        (_raw(b'{"a": 1}')[:-2], "ends in the middle"),
        (b"hp", "ends in the middle"),
        (b"", "nothing was sent"),
    ],
)
def test_what_is_not_a_message_is_recognised(sent: bytes, why: str, pair: Pair) -> None:
    pair[0].sendall(sent)
    pair[0].close()
    with pytest.raises(protocol.BadMessage, match=why):
        _receive(pair[1])


def test_one_that_claims_to_be_too_long_is_not_waited_for(pair: Pair) -> None:
    pair[0].sendall(struct.pack("<3sBI", b"hpc", protocol.VERSION, protocol.MOST_BYTES + 1))
    begun = time.monotonic()
    with pytest.raises(protocol.BadMessage, match="more than a message may have"):
        _receive(pair[1])
    assert time.monotonic() - begun < 2.0
    with pytest.raises(protocol.BadMessage, match="more than a message may have"):
        protocol.encode({"a": "x" * protocol.MOST_BYTES})


def test_another_version_is_reported_before_its_content_is_read(pair: Pair) -> None:
    pair[0].sendall(_raw(b"whatever that may be", version=7))
    with pytest.raises(protocol.OtherVersion, match="version 7") as error:
        _receive(pair[1])
    assert error.value.version == 7


def test_one_that_comes_in_drops_must_be_there_in_time(pair: Pair) -> None:
    message = protocol.encode({"request": "status"})
    pair[0].sendall(message[:5])
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        _receive(pair[1], 0.2)
    assert 0.15 < time.monotonic() - begun < 3.0


def test_what_has_arrived_is_read_however_late_it_is(pair: Pair) -> None:
    pair[0].sendall(protocol.encode({"request": "status"}))
    assert _receive(pair[1], -1.0) == {"request": "status"}


def test_what_json_cannot_say_is_no_message() -> None:
    for value in (float("nan"), object(), b"bytes"):
        with pytest.raises(protocol.BadMessage, match="cannot be expressed"):
            protocol.encode({"a": value})
    assert json.loads(protocol.encode({"a": "é"})[8:]) == {"a": "é"}
