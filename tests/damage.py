"""Damages files of a run: bytes, messages of Arrow, values that are valid, trees of JSON."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from haiprof import schema

_NUMBERS = (0, 1, -1, 2, 7, 127, 255, 65535, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**63 - 1)
_SIZES = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}
_PAGE = 4096


def damaged(content: bytes, other: bytes, random_: random.Random) -> bytes:
    """Damage any bytes in one to three places; ``other`` is what pieces are taken from."""
    data = bytearray(content)
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        random_.choice(_WAYS)(data, other, random_)
    return bytes(data)


def _flip(data: bytearray, other: bytes, random_: random.Random) -> None:
    for _ in range(random_.choice((1, 1, 2, 8))):
        if data:
            data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)


def _number(data: bytearray, other: bytes, random_: random.Random) -> None:
    size = random_.choice((1, 2, 4, 4, 8, 8))
    if len(data) >= size:
        _put(data, random_.randrange(len(data) - size + 1) // size * size, size, random_)


def _put(data: bytearray, at: int, size: int, random_: random.Random) -> None:
    value = random_.choice(_NUMBERS) & (1 << 8 * size) - 1
    data[at : at + size] = value.to_bytes(size, "little")


def _in_a_head(data: bytearray, other: bytes, random_: random.Random) -> None:
    """Put a number into the head of a message, or into the footer."""
    heads = _heads(bytes(data))
    if not heads:
        return _number(data, other, random_)
    at, length = random_.choice(heads)
    size = random_.choice((1, 4, 4, 8))
    if length < size:
        return None
    place = at + random_.randrange(length - size + 1) // size * size
    if random_.random() < 0.5:
        data[place] ^= 1 << random_.randrange(8)
    else:
        _put(data, place, size, random_)
    return None


def _heads(content: bytes) -> list[tuple[int, int]]:
    """Return where heads of messages are and how long they are; the footer is one."""
    found = []
    at = content.find(b"\xff\xff\xff\xff")
    while 0 <= at <= len(content) - 8:
        length = struct.unpack_from("<i", content, at + 4)[0]
        if 0 < length < len(content) - at:
            found.append((at, length + 8))
        at = content.find(b"\xff\xff\xff\xff", at + 4)
    if content.endswith(b"ARROW1") and len(content) > 10:
        length = struct.unpack_from("<i", content, len(content) - 10)[0]
        if 0 < length < len(content) - 10:
            found += [(len(content) - 10 - length, length + 10)] * max(1, len(found))
    return found


def _cut(data: bytearray, other: bytes, random_: random.Random) -> None:
    del data[random_.randrange(len(data) + 1) :]


def _zeros(data: bytearray, other: bytes, random_: random.Random) -> None:
    at = random_.randrange(len(data) + 1)
    if random_.random() < 0.5:
        at = at // _PAGE * _PAGE
    size = random_.choice((8, 64, 512, _PAGE, len(data)))
    data[at : at + size] = bytes(len(data[at : at + size]))


def _splice(data: bytearray, other: bytes, random_: random.Random) -> None:
    at = random_.randrange(len(data) + 1) // 8 * 8
    begin = random_.randrange(len(other) + 1) // 8 * 8
    piece = other[begin : begin + random_.choice((8, 64, 512, _PAGE))]
    data[at : at + random_.choice((0, len(piece)))] = piece


def _swap(data: bytearray, other: bytes, random_: random.Random) -> None:
    size = random_.choice((8, 64, 512))
    places = len(data) // size
    if places > 1:
        first, last = sorted(random_.sample(range(places), 2))
        a, b = first * size, last * size
        data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]


def _messages(data: bytearray, other: bytes, random_: random.Random) -> None:
    """Take a message out, put one twice, or change places of two."""
    marks = [at for at, _ in _heads(bytes(data))]
    starts = sorted({at for at in marks if data[at : at + 4] == b"\xff\xff\xff\xff"})
    if len(starts) < 3:
        return _splice(data, other, random_)
    pieces = [bytes(data[a:b]) for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
    one, two = random_.randrange(len(pieces)), random_.randrange(len(pieces))
    how = random_.randrange(3)
    if how == 0:
        del pieces[one]
    elif how == 1:
        pieces.insert(two, pieces[one])
    else:
        pieces[one], pieces[two] = pieces[two], pieces[one]
    data[starts[0] :] = b"".join(pieces)
    return None


_Way = Callable[[bytearray, bytes, random.Random], None]
_WAYS: tuple[_Way, ...] = (
    _flip, _flip, _number, _in_a_head, _in_a_head, _in_a_head, _cut, _zeros, _splice, _swap,
    _messages,
)  # fmt: skip


# -- Arrow that is well formed, and lies --------------------------------------------------------


def forged(table: schema.Table, rows: list[dict[str, Any]], random_: random.Random) -> bytes:
    """Write a segment in which one thing is not as it may be."""
    arrow = schema.arrow_schema(table)
    columns = [_column([row.get(f.name) for row in rows], f.type) for f in arrow]
    place = random_.randrange(len(columns))
    way = random_.choice((0, 1, 2, 2, 3, 4, 5, 6))
    if way == 2:
        place = random_.choice([n for n, f in enumerate(arrow) if pa.types.is_dictionary(f.type)])
    field = arrow.field(place)
    metadata: dict[bytes, bytes] = dict(arrow.metadata or {})
    own: dict[bytes, bytes] = {}
    if way == 0:
        name = random_.choice((arrow.field(0).name, "", "a" * 10_000, "\x00", "name"))
        arrow = arrow.set(place, field.with_name(name))
    elif way == 1:
        kind = random_.choice(_KINDS)
        columns[place] = _of_kind(kind, len(rows))
        arrow = arrow.set(place, pa.field(field.name, columns[place].type))
    elif way == 2:
        columns[place] = random_.choice(_ODD_TEXTS)(len(rows))
    elif way == 3:
        key = random_.choice([schema.KEY_THROUGH, schema.KEY_LOST]).encode()
        metadata[key] = own[key] = random_.choice(_JSON).encode("utf-8", "surrogatepass")
    elif way == 4:
        key = random_.choice([schema.KEY_FORMAT, schema.KEY_TABLE, schema.KEY_VERSION]).encode()
        metadata[key] = random_.choice((b"", b"\xff\xfe", b"1.0", b"spans", b"9" * 5000, b"1.x"))
    elif way == 5:
        keep = sorted(random_.sample(range(len(columns)), random_.randrange(len(columns))))
        columns, arrow = [columns[n] for n in keep], pa.schema([arrow.field(n) for n in keep])
    else:
        metadata[random_.choice((b"\xff", b"", b"x" * 100_000))] = b"\xff" * 100
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow.with_metadata(metadata))
    compression = random_.choice((None, "zstd", "lz4"))
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    return written(batch, random_.random() < 0.5, options, own)


def written(
    batch: pa.RecordBatch, live: bool, options: pa.ipc.IpcWriteOptions, own: dict[bytes, bytes]
) -> bytes:
    """Write a batch twice, as a stream or as a file."""
    sink = pa.BufferOutputStream()
    if live:
        with pa.ipc.new_stream(sink, batch.schema, options=options) as out:
            for _ in range(2):
                out.write_batch(batch, custom_metadata=own or None)
    else:
        with pa.ipc.new_file(sink, batch.schema, options=options) as file:
            file.write_batch(batch)
            file.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.utf8()).dictionary_encode().cast(kind)
    return pa.array(values, kind)


_KINDS = (
    pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.utf8(),
    pa.large_utf8(), pa.binary(), pa.string_view(), pa.list_(pa.int8()), pa.decimal128(5, 2),
    pa.timestamp("ns"), pa.dictionary(pa.int8(), pa.utf8()), pa.dictionary(pa.int64(), pa.utf8()),
    pa.dictionary(pa.uint32(), pa.large_utf8()), pa.dictionary(pa.uint32(), pa.int64()),
    pa.dictionary(pa.uint32(), pa.binary()), pa.struct([("a", pa.int8()), ("a", pa.int8())]),
    pa.run_end_encoded(pa.int32(), pa.int64()), pa.dictionary(pa.uint64(), pa.utf8()),
    pa.dictionary(pa.uint32(), pa.string_view()),
)  # fmt: skip


def _of_kind(kind: pa.DataType, rows: int) -> pa.Array:
    if pa.types.is_dictionary(kind):
        values = pa.array([1] if pa.types.is_integer(kind.value_type) else ["step"])
        codes = pa.array([0] * rows, kind.index_type)
        return pa.DictionaryArray.from_arrays(codes, values.cast(kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array(["step"] * rows, kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pa.array([1] * rows, pa.int64()).cast(kind)
    return pa.nulls(rows, kind)


def _texts(codes: Sequence[int], words: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.uint32()), words, safe=False)


def _words(offsets: Sequence[int], content: bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(struct.pack("<3i", *offsets)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.utf8(), 2, buffers)


#: Texts as pyarrow reads them and nobody else can: of so many rows.
WRONG_TEXTS: dict[str, Callable[[int], pa.Array]] = {
    "a code without a text": lambda rows: _texts([2**31] * rows, pa.array(["a"])),
    "a code just behind": lambda rows: _texts([1] * rows, pa.array(["a"])),
    "a text that ends too late": lambda rows: _texts([0] * rows, _words([0, 5, 3], b"abc")),
    "a text before its buffer": lambda rows: _texts([1] * rows, _words([0, -5, 3], b"abc")),
    "bytes that are no UTF-8": lambda rows: _texts([1] * rows, _words([0, 2, 4], b"\xff\xfe\xc3(")),
}
_ODD_TEXTS: tuple[Callable[[int], pa.Array], ...] = (
    *WRONG_TEXTS.values(),
    lambda rows: _texts([0] * rows, pa.array(["a", None])),
    lambda rows: _texts([1] * rows, pa.array(["a", None])),
    lambda rows: _texts([1] * rows, pa.array(["a", "a"])),
)


def with_odd_values(
    table: schema.Table, rows: list[dict[str, Any]], random_: random.Random
) -> bytes:
    """Write a sound segment in which a few values are what no recorder writes."""
    rows = [dict(row) for row in rows]
    for _ in range(random_.choice((1, 1, 2, 5))):
        column = random_.choice(table.columns)
        for row in random_.sample(rows, min(len(rows), random_.choice((1, 1, 3, len(rows))))):
            row[column.name] = _odd(column, row.get(column.name), random_)
    arrow = schema.arrow_schema(table)
    columns = [_column([row.get(f.name) for row in rows], f.type) for f in arrow]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow)
    return written(batch, random_.random() < 0.5, pa.ipc.IpcWriteOptions(), {})


def _odd(column: schema.Column, value: Any, random_: random.Random) -> Any:
    if random_.random() < 0.1:
        return None
    if column.kind == "text":
        if column.name in ("attributes", "shapes", "types", "ranks") and random_.random() < 0.8:
            return changed_json(value or "{}", random_)
        return random_.choice(("", "x" * 10_000, "\x00", "\x1b[31m", "a\nb", "step", "é", "=1+1"))
    if column.kind == "float64":
        return random_.choice((float("nan"), float("inf"), -float("inf"), 1e308, -1.0, 0.0, 1e-308))
    bits = int(column.kind.lstrip("uint"))
    low, high = (0, 2**bits - 1) if column.kind[0] == "u" else (-(2**bits) // 2, 2**bits // 2 - 1)
    flipped = (value or 0) ^ (1 << random_.randrange(bits - 1))
    return random_.choice((low, high, high - 1, 0, 1, flipped))


# -- JSON ---------------------------------------------------------------------------------------

_DEEP = "[" * 100_000
_JSON = (
    "", "{", "[]", "null", "1", '"x"', '{"0": "x"}', '{"x": 1}', '{"0": -1}', '{"0": 1e999}', _DEEP,
    '{"0": NaN}', '{"overwritten": []}', '{"overwritten": 1e999}', '{"overwritten": -5}', "\udc80",
    '{"0": 99999999999999999999999}', '{"0": null}', '{"overwritten": "7"}',
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 2**63, 2**64, 10**400,
    0.5, -0.5, 1e308, -1e308, 1e-300, float("nan"), float("inf"), -float("inf"), "", "x", "0",
    "x" * 20_000, "\ud800", "\x00", "\x1b[2J", "a\nb", "../../etc", "/", [], {}, [[]], [None], [1],
    ["x"], [{}], {"x": 1}, {"x": {"x": []}}, "\0deep",
)  # fmt: skip


def changed_json(text: str, random_: random.Random) -> str:
    """Change one to three places of a document's tree, or put another in its place."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # of what was made too deep before
        document = {}
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        document = _changed(document, random_)
    result = json.dumps(document)
    return result.replace('"\\u0000deep"', random_.choice((_DEEP, _DEEP + "]" * 100_000)))


def _changed(document: Any, random_: random.Random) -> Any:
    places = _places(document)
    if not places or random_.random() < 0.03:
        return copy.deepcopy(random_.choice(_VALUES))
    holder, key = random_.choice(places)
    how = random_.random()
    if how < 0.12:
        del holder[key]
    elif how < 0.2 and isinstance(holder, dict):
        holder[random_.choice(("x", "", "\ud800", "format"))] = holder.pop(key)
    elif how < 0.26:
        other, from_ = random_.choice(places)
        holder[key] = json.loads(json.dumps(other[from_]))
    elif how < 0.3:
        holder[key] = [holder[key]] * 2
    else:
        holder[key] = copy.deepcopy(random_.choice(_VALUES))
    return document


def _places(document: Any) -> list[tuple[Any, Any]]:
    found = []
    waiting = [document]
    while waiting:
        one = waiting.pop()
        keys = (
            list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        )
        for key in keys:
            found.append((one, key))
            waiting.append(one[key])
    return found


def damaged_json(content: bytes, other: bytes, random_: random.Random) -> bytes:
    """Damage a JSON file by its tree, its encoding or its bytes."""
    how = random_.random()
    if how < 0.1:
        return damaged(content, other, random_)
    if how < 0.15:
        ways = (b"", b"[", b"\xef\xbb\xbf" + content, content.decode().encode("utf-16"), b"null",
                b"\xff" * 40, _DEEP.encode(), content * 2, b"[" + content + b"]")  # fmt: skip
        return random_.choice(ways)
    return changed_json(content.decode(), random_).encode("utf-8", "surrogatepass")
