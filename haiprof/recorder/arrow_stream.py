"""Encodes rows as an Arrow IPC stream, and what makes a file of it, without pyarrow.

A recorder writes a few rows every other second for as long as a job runs. To call a large library
for that costs several times what the rows do, since little of it is still in a cache by then, and
half of the recorder's memory. The format: https://arrow.apache.org/docs/format/Columnar.html
(IPC), its messages: Message.fbs, Schema.fbs and File.fbs of Arrow 1.0 and later, version 5.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from haiprof import schema

#: Before the length of a message's head; with no length behind it, the end of a stream.
_MARK: Final = b"\xff\xff\xff\xff"
END: Final = _MARK + bytes(4)
#: A file begins and ends with it.
_MAGIC: Final = b"ARROW1"
FILE_BEGIN: Final = _MAGIC + bytes(2)
_VERSION_5: Final = 4
#: Numbers of Message.fbs and Schema.fbs.
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_INT, _FLOAT, _UTF8 = 2, 3, 5
_DOUBLE: Final = 2
#: Bytes of a stream that becomes a file as it is. To compress less is not worth its cost, most of
#: which is to load pyarrow: a tenth of a second of CPU at the end of each short job.
_SMALL: Final = 1 << 15
#: Bytes that buffers begin at a multiple of.
_ALIGNED: Final = 8
_ZEROS: Final = bytes(_ALIGNED)
#: Of the values of a kind; of a text its place in a dictionary.
WIDTHS: Final = {"int64": 8, "uint64": 8, "float64": 8, "uint32": 4, "uint16": 2, "text": 4}


class Texts:
    """The texts of a column, each known by its place. They only grow in number."""

    #: How often those that it follows, of a ring or of samples, had begun anew.
    renewed: int = 0

    def __init__(self, first: Sequence[str] = ()) -> None:
        """Begin with the texts of ``first``."""
        self.all: list[str] = list(first)
        self._places: dict[str, int] = {text: i for i, text in enumerate(self.all)}

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self.all)

    def place_of(self, text: str) -> int:
        """Return the place of ``text``, adding it when it is new."""
        found = self._places.get(text)
        if found is None:
            found = self._places[text] = len(self.all)
            self.all.append(text)
        return found

    def extend(self, texts: Sequence[str]) -> None:
        """Append texts whose places the caller counts itself (two may be equal)."""
        self.all += texts


class Values(NamedTuple):
    """A column of a batch."""

    #: One a row, as the column's kind has them; empty: all are null.
    values: bytes
    #: A bit a row, least significant first; None: all rows have a value.
    validity: bytes | None
    nulls: int
    #: What the values of a text column are places of.
    texts: Texts | None = None


class Batch:
    """Rows of one table."""

    def __init__(self, table: schema.Table, rows: int, columns: Sequence[Values]) -> None:
        """Keep them.

        Args:
            table: what they are rows of.
            rows: how many.
            columns: those of the table, in its order.
        """
        self.table, self.rows, self.columns = table, rows, columns
        self._places = {column.name: i for i, column in enumerate(table.columns)}

    def column(self, name: str) -> Values:
        """Return a column by its name."""
        return self.columns[self._places[name]]

    def numbers(self, name: str) -> Sequence[Any]:
        """Return the values of a column without nulls, of a text column their places."""
        kind = self.table.columns[self._places[name]].kind
        numbers: Sequence[Any] = memoryview(self.column(name).values).cast(_CODES[kind])
        return numbers

    def value(self, name: str, row: int) -> Any:
        """Return a value; None: it is null."""
        values = self.column(name)
        if not values.values or (values.validity and not values.validity[row // 8] >> row % 8 & 1):
            return None
        number = self.numbers(name)[row]
        return number if values.texts is None else values.texts.all[number]


#: As struct and memoryview name the values of a kind.
_CODES: Final[dict[str, Any]] = {
    "int64": "q", "uint64": "Q", "float64": "d", "uint32": "I", "uint16": "H", "text": "I",
}  # fmt: skip


def packed(kind: str, values: Sequence[Any]) -> Values:
    """Return values of a kind as a column; None is null."""
    nulls = values.count(None)
    if nulls == len(values):
        return Values(b"", None, nulls)
    if not nulls:
        return Values(array(_CODES[kind], values).tobytes(), None, 0)
    there = array(_CODES[kind], [0 if value is None else value for value in values])
    bits = bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        if value is not None:
            bits[row // 8] |= 1 << row % 8
    return Values(there.tobytes(), bytes(bits), nulls)


class StreamWriter:
    """Encodes the batches of one table, one after the other."""

    def __init__(self, table: schema.Table) -> None:
        """Nothing is encoded yet."""
        self._table = table
        #: Per column the texts that the stream has, and how many of them.
        self._written: dict[int, tuple[Texts, int]] = {}
        self._bytes = 0
        #: Where dictionaries and batches are; None: it cannot become a file as it is.
        self._blocks: dict[int, list[bytes]] | None = {_DICTIONARY: [], _BATCH: []}

    def begin(self) -> bytes:
        """Return the schema, with which a stream begins."""
        head = _message(_SCHEMA, self._schema({}), 0)
        self._bytes += len(head)
        return head

    def file_end(self, about: Mapping[str, str]) -> bytes | None:
        """Return what makes a file of :data:`FILE_BEGIN`, all of the stream and :data:`END`.

        Args:
            about: metadata of the file.

        Returns:
            That; None: it is too large not to be compressed, or a dictionary began anew, which a
                file cannot have.
        """
        if self._blocks is None:
            return None
        version = struct.pack("<h", _VERSION_5)
        blocks = (_Blocks(self._blocks[kind]) for kind in (_DICTIONARY, _BATCH))
        footer = _Builder().finished(_Table(version, self._schema(about), *blocks))
        return footer + struct.pack("<i", len(footer)) + _MAGIC

    def _schema(self, about: Mapping[str, str]) -> _Table:
        fields = [_field(i, column) for i, column in enumerate(self._table.columns)]
        return _Table(None, _Vector(fields), _texts({**schema.metadata(self._table), **about}))

    def batch(self, batch: Batch, about: Mapping[str, str]) -> bytes:
        """Return a batch and what its dictionaries have gained, with its metadata ``about``."""
        pieces: list[bytes] = []
        for place, values in enumerate(batch.columns):
            if values.texts is not None:
                pieces += self._dictionary(place, values.texts)
        body = _Body()
        for column, values in zip(self._table.columns, batch.columns, strict=True):
            body.add(column, values, batch.rows)
        pieces += self._placed(_BATCH, body.table(batch.rows), body, about)
        return b"".join(pieces)

    def _placed(
        self, kind: int, head: _Table, body: _Body, about: Mapping[str, str] | None = None
    ) -> Iterable[bytes]:
        """Return a message, having noted where it is."""
        data = _message(kind, head, body.bytes, about)
        begin = len(FILE_BEGIN) + self._bytes
        self._bytes += len(data) + body.bytes
        if self._bytes > _SMALL:
            self._blocks = None
        if self._blocks is not None:
            self._blocks[kind].append(struct.pack("<qi4xq", begin, len(data), body.bytes))
        return data, *body.buffers

    def _dictionary(self, place: int, texts: Texts) -> Iterable[bytes]:
        known, count = self._written.get(place, (None, 0))
        is_delta = known is texts
        if is_delta and count == len(texts):
            return
        self._written[place] = texts, len(texts)
        if known is not None and not is_delta:
            self._blocks = None
        new = [text.encode("utf-8", "replace") for text in texts.all[count if is_delta else 0 :]]
        ends = array("i", [0])
        for text in new:
            ends.append(ends[-1] + len(text))
        body = _Body()
        body.put(b"")
        body.put(ends.tobytes())
        body.put(b"".join(new))
        body.nodes.extend((len(new), 0))
        dictionary = _Table(_int64(place), body.table(len(new)), _bool(is_delta))
        yield from self._placed(_DICTIONARY, dictionary, body)


class _Body:
    """The buffers behind the head of a message."""

    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self.bytes = 0
        self.nodes = array("q")
        self._places = array("q")

    def put(self, data: bytes) -> None:
        self._places.extend((self.bytes, len(data)))
        rest = -len(data) % _ALIGNED
        self.buffers += (data, _ZEROS[:rest]) if rest else (data,)
        self.bytes += len(data) + rest

    def add(self, column: schema.Column, values: Values, rows: int) -> None:
        self.nodes.extend((rows, values.nulls))
        if values.values or not rows:
            self.put(values.validity or b"")
            self.put(values.values)
        else:
            self.put(bytes((rows + 7) // 8))
            self.put(bytes(rows * WIDTHS[column.kind]))

    def table(self, rows: int) -> _Table:
        return _Table(_int64(rows), _Structs(self.nodes), _Structs(self._places))


# -- flatbuffers: what is behind refers to what is in front of it by its distance ------------------


class _Builder:
    """The head of a message: tables, vectors and texts, one behind the other."""

    def __init__(self) -> None:
        self.data = bytearray(4)

    def finished(self, root: _Table) -> bytes:
        self.refer(0, root)
        self.align(_ALIGNED)
        return bytes(self.data)

    def align(self, size: int, behind: int = 0) -> None:
        """Go on at a place that is a multiple of ``size`` once ``behind`` bytes follow."""
        self.data += bytes(-(len(self.data) + behind) % size)

    def refer(self, at: int, what: _Part) -> None:
        """Put something at the end, and its distance at a place that is kept for it."""
        struct.pack_into("<I", self.data, at, what.put(self) - at)


class _Part(ABC):
    """Something of a head."""

    @abstractmethod
    def put(self, builder: _Builder) -> int:
        """Put it at the end; return where it is."""


class _Table(_Part):
    """Fields by number: a scalar as its bytes, a part of its own, or None where it is left out."""

    def __init__(self, *fields: bytes | _Part | None) -> None:
        self._fields = fields

    def put(self, builder: _Builder) -> int:
        sizes = [0 if f is None else len(f) if isinstance(f, bytes) else 4 for f in self._fields]
        places, at = [0] * len(sizes), 4
        for size in (8, 4, 2, 1):  # the largest first: no gaps but one
            for number, each in enumerate(sizes):
                if each == size:
                    at += -at % size
                    places[number] = at
                    at += size
        where = struct.pack(f"<HH{len(places)}H", 4 + 2 * len(places), at, *places)
        builder.align(_ALIGNED, len(where))
        builder.data += where
        start = len(builder.data)
        builder.data += struct.pack("<i", len(where)) + bytes(at - 4)
        for field, place in zip(self._fields, places, strict=True):
            if isinstance(field, bytes):
                builder.data[start + place : start + place + len(field)] = field
        for field, place in zip(self._fields, places, strict=True):
            if isinstance(field, _Part):
                builder.refer(start + place, field)
        return start


class _Text(_Part):
    def __init__(self, text: str) -> None:
        self._bytes = text.encode()

    def put(self, builder: _Builder) -> int:
        builder.align(4)
        start = len(builder.data)
        builder.data += struct.pack("<I", len(self._bytes)) + self._bytes + b"\0"
        return start


class _Structs(_Part):
    """A vector of pairs of int64."""

    def __init__(self, pairs: array[int]) -> None:
        self._pairs = pairs

    def put(self, builder: _Builder) -> int:
        builder.align(_ALIGNED, 4)
        start = len(builder.data)
        builder.data += struct.pack("<I", len(self._pairs) // 2) + self._pairs.tobytes()
        return start


class _Blocks(_Part):
    """A vector of structs of File.fbs: where messages are."""

    def __init__(self, blocks: Sequence[bytes]) -> None:
        self._blocks = blocks

    def put(self, builder: _Builder) -> int:
        builder.align(_ALIGNED, 4)
        start = len(builder.data)
        builder.data += struct.pack("<I", len(self._blocks)) + b"".join(self._blocks)
        return start


class _Vector(_Part):
    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts

    def put(self, builder: _Builder) -> int:
        builder.align(4)
        start = len(builder.data)
        builder.data += struct.pack("<I", len(self._parts)) + bytes(4 * len(self._parts))
        for number, part in enumerate(self._parts):
            builder.refer(start + 4 + 4 * number, part)
        return start


def _field(place: int, column: schema.Column) -> _Table:
    kinds = {"text": _UTF8, "float64": _FLOAT}
    dictionary = None
    if column.kind == "text":
        kind, dictionary = _Table(), _Table(_int64(place), _int_type("uint32"))
    elif column.kind == "float64":
        kind = _Table(struct.pack("<h", _DOUBLE))
    else:
        kind = _int_type(column.kind)
    name, nullable = _Text(column.name), _bool(column.nullable)
    number = bytes([kinds.get(column.kind, _INT)])
    return _Table(name, nullable, number, kind, dictionary, _Vector([]))


def _int_type(kind: str) -> _Table:
    return _Table(struct.pack("<i", 8 * WIDTHS[kind]), _bool(not kind.startswith("u")))


def _texts(about: Mapping[str, str]) -> _Vector:
    return _Vector([_Table(_Text(key), _Text(value)) for key, value in about.items()])


def _bool(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _int64(value: int) -> bytes:
    return struct.pack("<q", value)


def _message(kind: int, head: _Table, body: int, about: Mapping[str, str] | None = None) -> bytes:
    version = struct.pack("<h", _VERSION_5)
    root = _Table(version, bytes([kind]), head, _int64(body), _texts(about) if about else None)
    data = _Builder().finished(root)
    return _MARK + struct.pack("<i", len(data)) + data
