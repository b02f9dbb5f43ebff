"""Reads Arrow that may be damaged: hands on sound batches only, and raises one exception.

pyarrow checks how messages are framed, and takes what is in them as it is: a code that stands for
no text, an offset that leads out of its buffer. Whoever gets such a batch, polars or C++, crashes.

Tests: tests/sources/test_tables.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from haiprof import schema

#: What pyarrow raises of damaged bytes, beside OSError without a number.
_RAISED: Final = (pa.ArrowException, EOFError, MemoryError, OverflowError, UnicodeDecodeError)
_MOST_REASON: Final = 120
#: What every message begins with; the length of its head follows, which describes one table.
_MARK: Final = b"\xff\xff\xff\xff"
_MOST_HEAD: Final = 1 << 24


@contextlib.contextmanager
def as_invalid() -> Iterator[None]:
    """Raise ArrowInvalid for whatever damage has pyarrow raise; the system's errors stay."""
    try:
        yield
    except _RAISED as error:
        raise pa.ArrowInvalid(reason_of(error)) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise pa.ArrowInvalid(reason_of(error)) from None


def reason_of(error: BaseException) -> str:
    """Return the first line of what an error says, shortened."""
    said = str(error) or type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in said.splitlines()[0][:_MOST_REASON])


class Checks:
    """Checks the batches of one file. Texts are checked once: most batches have the same."""

    def __init__(self) -> None:
        """Know no texts yet."""
        self._texts: dict[int, pa.Array] = {}

    def sound(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch whose every value can be reached.

        Raises:
            pa.ArrowInvalid: another one.
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
    """Say whether two arrays that are still held lie at one place, so that they are the same."""
    if other is None or (one.type, len(one), one.offset) != (other.type, len(other), other.offset):
        return False
    pairs = zip(one.buffers(), other.buffers(), strict=True)
    return all((a and (a.address, a.size)) == (b and (b.address, b.size)) for a, b in pairs)


def checked_schema(found: pa.Schema) -> pa.Schema:
    """Return a schema whose columns can be told apart.

    Raises:
        pa.ArrowInvalid: a name is no text, or there twice.
    """
    with as_invalid():
        names = found.names
    if len(set(names)) < len(names):
        raise pa.ArrowInvalid("two columns have one name")
    return found


def texts_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Return metadata as text; what is no UTF-8 in it becomes a replacement character."""
    told = (metadata or {}).items()
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in told}


def rows_missing(metadata: Mapping[bytes, bytes] | None, rows: int) -> str:
    """Say how many rows should be there beside these ``rows``; empty: none, or unknown."""
    told = (metadata or {}).get(schema.KEY_ROWS.encode(), b"%d" % rows)
    if not told.isdigit() or len(told) > 18:
        return f"field '{schema.KEY_ROWS}' is no count"
    missing = int(told) - rows
    return f"{abs(missing)} rows {'are missing' if missing > 0 else 'too many'}" if missing else ""


class Stream:
    """The sound batches of an IPC stream, up to its end, its cut or its damage."""

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
        #: Why not all that there was is read; empty: it is.
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
                    made = self._checks.sound(batch), dict(metadata or {})
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
            yield made

    def _fail(self, error: pa.ArrowInvalid) -> None:
        # Whatever else lies where a message begins is taken for the length of a very long one.
        self.cut = self._file.tell() >= self._size and self._begins_a_message()
        if not self.cut and not self.damage:
            self.damage = reason_of(error)

    def _begins_a_message(self) -> bool:
        self._file.seek(self.whole)
        head = self._file.read(8)
        length = int.from_bytes(head[4:], "little")
        return head[:4] == _MARK[: len(head)] and length <= _MOST_HEAD
