"""The wire format, compared with a plain reading of its bytes: messages one by one and at once."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haiprof.export import protobuf as pb


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def _fields(data: bytes) -> list[tuple[int, object]]:
    fields: list[tuple[int, object]] = []
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        if tag & 7 == 0:
            value, at = _number(data, at)
            fields.append((tag >> 3, value))
        elif tag & 7 == 1:
            fields.append((tag >> 3, data[at : at + 8]))
            at += 8
        else:
            assert tag & 7 == 2
            size, at = _number(data, at)
            assert at + size <= len(data)
            fields.append((tag >> 3, data[at : at + size]))
            at += size
    return fields


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.booleans(), st.floats()), min_size=1))
def test_messages_at_once_are_those_one_by_one(rows: list[tuple[int, bool, float]]) -> None:
    values = np.array([value for value, _, _ in rows], np.uint64)
    there = np.array([is_there for _, is_there, _ in rows])
    reals = np.array([real for _, _, real in rows])
    inner = [
        pb.numbers(1, values),
        pb.doubles(2, reals, there),
        pb.fixed(300, values),
        pb.constant(len(rows), pb.text(4, "ä")),
    ]
    fields = _fields(pb.encoded(pb.messages(7, [pb.messages(9, inner, there)])))
    assert len(fields) == len(rows)
    for (field, message), (value, is_there, real) in zip(fields, rows, strict=True):
        assert field == 7
        one = pb.whole(1, value) + b"\x11" + struct.pack("<d", real)
        one += pb.varint(300 << 3 | 1) + struct.pack("<Q", value) + pb.text(4, "ä")
        assert message == (pb.text(9, one) if is_there else b"")


@pytest.mark.parametrize("value", [-1, -(2**63), 2**63 - 1, 0])
def test_numbers_below_zero_take_ten_bytes(value: int) -> None:
    data = pb.encoded(pb.numbers(1, np.array([value], np.int64)))
    assert data == pb.whole(1, value)
    assert _fields(data) == [(1, value % 2**64)]
    assert len(data) == (11 if value < 0 else len(data))


def test_small_kinds_of_numbers() -> None:
    for kind in (np.uint16, np.uint32, np.int32, np.int8):
        values = np.array([0, 127], kind)
        assert _fields(pb.encoded(pb.numbers(2, values))) == [(2, 0), (2, 127)]
