"""The wire format of protocol buffers: one message as bytes, or thousands of one shape at once.

A :class:`Rows` holds a piece of each of many messages: a matrix of bytes, and which of them count.
So numbers take as many bytes as they need without a loop over messages, of which a trace has
millions; Google's protobuf makes an object of each message and field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.bool_]

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2


def varint(value: int) -> bytes:
    """Return a number of at most 64 bits; a negative one as its two's complement."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def whole(field: int, value: int) -> bytes:
    """Return a field that is a whole number."""
    return varint(field << 3 | _VARINT) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    """Return a field that is a text, or a message of these bytes."""
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


class Rows(NamedTuple):
    """A piece of each of many messages: bytes, and which of them count; one row for each."""

    data: npt.NDArray[np.uint8]
    counts: Mask


def constant(height: int, data: bytes) -> Rows:
    """Return the same bytes for each message."""
    row = np.frombuffer(data, np.uint8)
    return Rows(
        np.broadcast_to(row, (height, len(row))), np.broadcast_to(np.True_, (height, len(row)))
    )


def numbers(field: int, values: npt.NDArray[Any], there: Mask | None = None) -> Rows:
    """Return a field of whole numbers.

    Args:
        field: its number.
        values: at most 64 bits wide, signed or not.
        there: which messages have it; by default all.
    """
    return _present(_joined([constant(len(values), varint(field << 3)), _varints(values)]), there)


def doubles(field: int, values: npt.NDArray[np.float64], there: Mask | None = None) -> Rows:
    """Return a field of 64-bit fractions."""
    return _eight(field, values.astype("<f8"), there)


def fixed(field: int, values: npt.NDArray[Any], there: Mask | None = None) -> Rows:
    """Return a field of whole numbers that take 64 bits each."""
    return _eight(field, values.astype("<u8"), there)


def messages(field: int, pieces: Sequence[Rows], there: Mask | None = None) -> Rows:
    """Return a field whose value is a message of these pieces."""
    inner = _joined(pieces)
    lengths = _varints(inner.counts.sum(axis=1))
    tag = constant(len(inner.data), varint(field << 3 | _BYTES))
    return _present(_joined([tag, lengths, inner]), there)


def encoded(rows: Rows) -> bytes:
    """Return all messages, one after the other."""
    return rows.data[rows.counts].tobytes()


def _eight(field: int, values: npt.NDArray[Any], there: Mask | None) -> Rows:
    height = len(values)
    data = np.ascontiguousarray(values).view(np.uint8).reshape(height, 8)
    rows = Rows(data, np.broadcast_to(np.True_, data.shape))
    return _present(_joined([constant(height, varint(field << 3 | _FIXED64)), rows]), there)


def _varints(values: npt.NDArray[Any]) -> Rows:
    left = values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values
    left = left.astype(np.uint64)
    width = max((int(left.max(initial=0)).bit_length() + 6) // 7, 1)
    data = np.empty((len(left), width), np.uint8)
    counts = np.empty((len(left), width), np.bool_)
    for at in range(width):
        data[:, at] = left & np.uint64(0x7F)
        counts[:, at] = left != 0
        left = left >> np.uint64(7)
    counts[:, 0] = True
    # All but the last byte of a number say that another one follows.
    data[:, :-1] |= counts[:, 1:].view(np.uint8) << 7
    return Rows(data, counts)


def _joined(pieces: Sequence[Rows]) -> Rows:
    return Rows(
        np.concatenate([piece.data for piece in pieces], axis=1),
        np.concatenate([piece.counts for piece in pieces], axis=1),
    )


def _present(rows: Rows, there: Mask | None) -> Rows:
    return rows if there is None else Rows(rows.data, rows.counts & there[:, None])
