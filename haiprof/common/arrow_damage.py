"""Reads Arrow that may be damaged: hands on sound batches only, and raises one exception.

pyarrow checks how messages are framed, and takes what is in them as it is: a code that stands for
no text, an offset that leads out of its buffer. polars and C++ crash on such a batch.

Tests: tests/sources/test_tables.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from haiprof import schema

#: What pyarrow raises for damaged bytes, beside OSError without a number.
_RAISED: Final = (pa.ArrowException, EOFError, MemoryError, OverflowError, UnicodeDecodeError)
_MOST_REASON: Final = 120
#: What every message begins with; the length of its head follows, which describes one table.
_MARK: Final = b"\xff\xff\xff\xff"
_MOST_HEAD: Final = 1 << 24


@contextlib.contextmanager
def as_invalid() -> Iterator[None]:
    """Convert what pyarrow raises for damage to ArrowInvalid; system errors pass unchanged."""
    try:
        yield
    except _RAISED as error:
        raise pa.ArrowInvalid(reason_of(error)) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise pa.ArrowInvalid(reason_of(error)) from None


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message, shortened."""
    said = str(error) or type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in said.splitlines()[0][:_MOST_REASON])


class Checks:
    """Checks the batches of one file. Texts are checked once: most batches share them."""

    def __init__(self) -> None:
        """Start without texts."""
        self._texts: dict[int, pa.Array] = {}

    def sound(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch if every value of it can be read.

        Raises:
            pa.ArrowInvalid: it is damaged.
        """
        with as_invalid():
            batch.validate()
            for place, column in enumerate(batch.columns):
                texts = column.dictionary if pa.types.is_dictionary(column.type) else None
                if texts is not None and same_memory(texts, self._texts.get(place)):
                    # Raises if a code stands for no text; what the texts are does not matter.
                    pa.DictionaryArray.from_arrays(column.indices, pa.nulls(len(texts)))
                    continue
                column.validate(full=True)
                if texts is not None:
                    self._texts[place] = texts
        return batch


def same_memory(one: pa.Array, other: pa.Array | None) -> bool:
    """Say whether two living arrays have the same memory, and so the same content."""
    if other is None or (one.type, len(one), one.offset) != (other.type, len(other), other.offset):
        return False
    pairs = zip(one.buffers(), other.buffers(), strict=True)
    return all((a and (a.address, a.size)) == (b and (b.address, b.size)) for a, b in pairs)


def checked_schema(found: pa.Schema) -> pa.Schema:
    """Return a schema after checking that its columns have distinct names.

    Raises:
        pa.ArrowInvalid: a name is not text, or occurs twice.
    """
    with as_invalid():
        names = found.names
    if len(set(names)) < len(names):
        raise pa.ArrowInvalid("two columns have one name")
    return found


def texts_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Return metadata as text; invalid UTF-8 becomes replacement characters."""
    items = (metadata or {}).items()
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in items}


def rows_missing(metadata: Mapping[bytes, bytes] | None, rows: int) -> str:
    """Say how many rows are missing, given ``rows``; empty: none, or unknown."""
    count = (metadata or {}).get(schema.KEY_ROWS.encode(), b"%d" % rows)
    if not count.isdigit() or len(count) > 18:
        return f"field '{schema.KEY_ROWS}' is not a count"
    missing = int(count) - rows
    return f"{abs(missing)} rows {'are missing' if missing > 0 else 'too many'}" if missing else ""


class Stream:
    """The sound batches of an IPC stream, up to its end or to where it is cut or damaged."""

    def __init__(self, file: Any, size: int) -> None:
        """Read the schema.

        Args:
            file: pyarrow's or Python's, where the stream begins.
            size: of the file. Where reading fails there, the file is cut, and else damaged.
        """
        self._file = file
        self._size = size
        self._reader: Any = None
        self._checks = Checks()
        #: None where it cannot be read.
        self.schema: pa.Schema | None = None
        #: It ends within a message: it is being written, or whoever wrote it was killed.
        self.cut = False
        #: Why not everything was read; empty if it was.
        self.damage = ""
        #: Where the last sound batch ends.
        self.whole = file.tell()
        try:
            with as_invalid():
                self._reader = pa.ipc.open_stream(file)
                self.schema = checked_schema(self._reader.schema)
        except pa.ArrowInvalid as error:
            self._fail(error)

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, dict[bytes, bytes]]]:
        """Yield the batches, each with the metadata of its own."""
        if self.schema is None:
            return
        rows = 0
        while True:
            try:
                with as_invalid():
                    batch, metadata = self._reader.read_next_batch_with_custom_metadata()
                    sound = self._checks.sound(batch), dict(metadata or {})
            except StopIteration:
                if self._file.tell() < self._size and not self.damage:
                    self.damage = "something follows its end"
                return
            except pa.ArrowInvalid as error:
                self._fail(error)
                return
            self.whole = self._file.tell()
            rows += batch.num_rows
            self.damage = self.damage or rows_missing(metadata, rows)
            yield sound

    def _fail(self, error: pa.ArrowInvalid) -> None:
        # Other bytes where a message should begin are read as the length of a very long one.
        self.cut = self._file.tell() >= self._size and self._begins_a_message()
        if not self.cut and not self.damage:
            self.damage = reason_of(error)

    def _begins_a_message(self) -> bool:
        self._file.seek(self.whole)
        head = self._file.read(8)
        length = int.from_bytes(head[4:], "little")
        return head[:4] == _MARK[: len(head)] and length <= _MOST_HEAD
