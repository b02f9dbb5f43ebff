"""One table of one folder on disk: a growing IPC stream, closed into a compressed IPC file.

A stream cut anywhere keeps every whole batch, so whatever kills the recorder costs no written
batch. A full disk costs none either: a batch that does not fit is kept in memory, the file is cut
back to its last whole batch, and the bytes go out when there is room.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from haiprof import schema
from haiprof.common.arrow_damage import Stream, as_invalid, reason_of, same_memory
from haiprof.common.owned_files import Folder

log = logging.getLogger(__name__)

#: A live stream is closed into a file when it has grown to this many bytes.
SEGMENT_BYTES: Final = 64 << 20
_FILE_ROWS: Final = 1 << 16
_COMPRESSION: Final = "zstd"
#: Instead of ``.arrows``: a stream of which not all could be closed into a file.
_DAMAGED_SUFFIX: Final = ".damaged"


@dataclass(slots=True)
class Reach:
    """How far the records on disk reach: what the next recorder of a ring must know.

    It travels with each batch, so it is true whenever the batch is there.
    """

    #: Lane -> number of its first record that is not on disk yet.
    lanes: dict[int, int] = field(default_factory=dict)
    #: Cause -> records lost before that point.
    lost: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes] | None) -> Reach:
        """Read it from Arrow metadata; empty when there is none.

        Raises:
            pa.ArrowInvalid: it is damaged.
        """
        known = metadata or {}
        lanes = _counts(known, schema.KEY_THROUGH)
        if not all(lane.isdecimal() and len(lane) < 10 for lane in lanes):
            raise pa.ArrowInvalid(f"field '{schema.KEY_THROUGH}' has keys that are not lanes")
        lost = _counts(known, schema.KEY_LOST)
        return cls({int(lane): number for lane, number in lanes.items()}, lost)

    def to_metadata(self) -> dict[str, str]:
        """Return it as Arrow metadata."""
        return {
            schema.KEY_THROUGH: json.dumps(self.lanes),
            schema.KEY_LOST: json.dumps(self.lost),
        }

    def merge(self, other: Reach) -> None:
        """Take the maximum of both."""
        for lane, number in other.lanes.items():
            self.lanes[lane] = max(number, self.lanes.get(lane, 0))
        for cause, count in other.lost.items():
            self.lost[cause] = max(count, self.lost.get(cause, 0))


def _counts(metadata: Mapping[bytes, bytes], key: str) -> dict[str, int]:
    try:
        counts: Any = json.loads(metadata.get(key.encode(), b"{}"))
    except (ValueError, RecursionError):
        raise pa.ArrowInvalid(f"field '{key}' is not JSON") from None
    if not isinstance(counts, dict) or not all(
        type(count) is int and 0 <= count < 2**63 for count in counts.values()
    ):
        raise pa.ArrowInvalid(f"field '{key}' is not an object of counts")
    return counts


class _Outbox:
    """Collects what pyarrow writes until it is on disk."""

    closed = False

    def __init__(self) -> None:
        self.waiting = bytearray()

    def write(self, data: bytes) -> int:
        self.waiting += data
        return len(data)

    def flush(self) -> None:
        """Nothing to do: :meth:`Segment.push` writes."""

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class Segment:
    """One ``<table>-<n>.arrows`` file that is being written."""

    def __init__(self, folder: Folder, table: schema.Table, number: int) -> None:
        """Create the file.

        Raises:
            OSError: it cannot be created.
        """
        self._folder = folder
        self._name = f"{table.name}-{number}{schema.LIVE_SUFFIX}"
        self._fd = folder.create(self._name)
        self._written = 0
        self._rows = 0
        self._synced = False
        self._outbox = _Outbox()
        self._stream = pa.ipc.new_stream(
            pa.PythonFile(self._outbox, mode="w"),
            schema.arrow_schema(table),
            options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True),
        )

    @property
    def bytes(self) -> int:
        """Bytes on disk and waiting."""
        return self._written + len(self._outbox.waiting)

    @property
    def waiting(self) -> bool:
        """Whether something is not on disk yet."""
        return bool(self._outbox.waiting)

    @property
    def ended(self) -> bool:
        """Whether no batch can follow: :meth:`close` was called, and there was no room for it."""
        return self._outbox.closed

    def append(self, batch: pa.RecordBatch, reach: Reach | None = None) -> None:
        """Encode ``batch``; :meth:`push` writes it to disk."""
        self._rows += batch.num_rows
        metadata = {schema.KEY_ROWS: str(self._rows), **(reach.to_metadata() if reach else {})}
        self._stream.write_batch(batch, custom_metadata=metadata)

    def push(self) -> None:
        """Write what waits, all or nothing.

        Raises:
            OSError: it does not fit or cannot be written; the file ends with its last whole batch
                and everything still waits.
        """
        view = memoryview(self._outbox.waiting)
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], self._written + done)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._written)
            raise
        finally:
            view.release()
        self._written += done
        self._outbox.waiting.clear()

    def sync(self) -> None:
        """Write what waits and bring the file to stable storage."""
        self.push()
        os.fdatasync(self._fd)
        self._synced = True

    def close(self) -> None:
        """Close into ``.arrow``; where there is no room for that, leave the whole ``.arrows``.

        Raises:
            OSError: something still waits and does not fit; call again.
        """
        if not self._outbox.closed:
            self._stream.close()
            self._outbox.close()
        self.push()
        os.close(self._fd)
        try:
            close_stream(self._folder, self._name, durably=self._synced)
        except OSError as error:
            path = self._folder.path / self._name
            log.warning("%s stays a stream: %s", path, error.strerror)


class Batches:
    """The sound batches of a stream, however it ends, each with its reach."""

    def __init__(self, folder: Folder, name: str) -> None:
        """Read the stream ``name`` in ``folder``; nothing is opened before it is iterated over."""
        self._folder = folder
        self._name = name
        #: Bytes at its end that are not a whole batch.
        self.rest = 0
        #: Why these are damaged, not just cut; empty: they are not.
        self.damage = ""

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, Reach]]:
        """Yield them.

        Raises:
            OSError: the file cannot be read.
        """
        with self._folder.open(self._name) as file:
            size = os.fstat(file.fileno()).st_size
            stream = Stream(file, size)
            whole, unread = 0, ""
            for batch, metadata in stream:
                try:
                    reach = Reach.from_metadata(metadata)
                except pa.ArrowInvalid as error:
                    unread = reason_of(error)
                    break
                whole = stream.whole
                yield batch, reach
            self.damage = unread or stream.damage
            self.rest = size - whole if self.damage or stream.cut else 0


def live_streams(folder: Folder) -> list[str]:
    """Return the names of the streams in a folder."""
    return [name for name in folder.names() if name.endswith(schema.LIVE_SUFFIX)]


class Closed(NamedTuple):
    """The result of closing a stream."""

    #: The file.
    name: str
    #: What of the stream is missing in it, in words; empty: nothing.
    lost: str


def close_stream(folder: Folder, name: str, *, durably: bool = False) -> Closed:
    """Rewrite ``<name>.arrows`` as ``<name>.arrow`` and remove it.

    Of the rows only some are in memory at a time. Dictionaries that take each other's place in the
    stream are made one, since a file can have no more.

    The file takes the place of the stream in one rename, so a reader sees the one or the other. A
    stream that is damaged stays, as ``<name>.damaged``.

    Args:
        folder: the stream's.
        name: the stream.
        durably: sync the file to stable storage before the stream is removed; if somebody was
            promised that for the stream.

    Raises:
        OSError: no room or no permission; the stream is untouched.
    """
    closed = name.removesuffix(schema.LIVE_SUFFIX) + schema.CLOSED_SUFFIX
    if folder.has(closed):
        folder.remove(name)
        return Closed(closed, "")
    found = _look_through(folder, name)
    if found.schema is not None:
        metadata = {schema.KEY_ROWS: str(found.rows), **found.reach.to_metadata()}
        target = found.schema.with_metadata({**(found.schema.metadata or {}), **metadata})
        options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
        with folder.replacing(closed) as out:
            with pa.ipc.new_file(out, target, options=options) as file:
                for table in _row_groups(folder, name, found, target):
                    file.write_table(table, max_chunksize=_FILE_ROWS)
            if durably:
                out.flush()
                os.fsync(out.fileno())
        if durably:
            os.fsync(folder.fd)
    if not found.damage:
        folder.remove(name)
        cut = f"{name} ended within a batch, of which {found.rest} bytes are lost"
        return Closed(closed, cut if found.rest else "")
    kept = name.removesuffix(schema.LIVE_SUFFIX) + _DAMAGED_SUFFIX
    folder.rename(name, kept)
    rows = f"{found.rows} of its rows are in {closed}" if found.rows else "nothing is read"
    return Closed(closed, f"{name} is damaged ({found.damage}): {rows}; it is kept as {kept}")


class _Found(NamedTuple):
    """The part of a stream that can be closed."""

    schema: pa.Schema | None
    #: By the place of their column.
    dictionaries: dict[int, _Dictionaries]
    reach: Reach
    batches: int
    rows: int
    rest: int
    damage: str


def _look_through(folder: Folder, name: str) -> _Found:
    dictionaries: dict[int, _Dictionaries] = {}
    reach = Reach()
    found: pa.Schema | None = None
    count = rows = 0
    damage = ""
    batches = Batches(folder, name)
    for batch, batch_reach in batches:
        damage = _why_not_closed(batch)
        if damage:
            break
        found = batch.schema
        for place, column in enumerate(batch.columns):
            if pa.types.is_dictionary(column.type):
                dictionaries.setdefault(place, _Dictionaries()).add(column.dictionary)
        reach.merge(batch_reach)
        count, rows = count + 1, rows + batch.num_rows
    rest = batches.rest
    return _Found(found, dictionaries, reach, count, rows, rest, damage or batches.damage)


def _why_not_closed(batch: pa.RecordBatch) -> str:
    """Say why no recorder can have written a batch; empty if one can."""
    strange = (each for each in batch.schema if each.type not in _kinds())
    return next((f"column '{each.name}' is {each.type}" for each in strange), "")


@functools.cache
def _kinds() -> frozenset[pa.DataType]:
    return frozenset(
        schema.arrow_type(column.kind)
        for table in schema.TABLES.values()
        for column in table.columns
    )


class _Dictionaries:
    """The successive dictionaries of one column of a stream, merged into one.

    Each batch's begins with the one before it, or takes its place.
    """

    def __init__(self) -> None:
        self._each: list[pa.Array] = []
        self._whole: pa.Array | None = None
        #: Where the texts of each are in the whole; None if there is only one.
        self._places: list[pa.Array] | None = None
        self._at = 0

    def add(self, dictionary: pa.Array) -> None:
        """Take the dictionary of the next batch."""
        if self._each and same_memory(dictionary, self._each[-1]):
            return
        if self._each and _begins_with(dictionary, self._each[-1]):
            self._each[-1] = dictionary
        else:
            self._each.append(dictionary)

    def column(self, batch: pa.DictionaryArray) -> pa.DictionaryArray:
        """Return a column with the whole dictionary; the batches come in the same order again."""
        if self._whole is None:
            self._unify()
        indices = batch.indices
        if self._places is not None:
            while not _begins_with(self._each[self._at], batch.dictionary):
                self._at += 1
            indices = self._places[self._at].take(indices)
        return pa.DictionaryArray.from_arrays(indices, self._whole, safe=False)

    def _unify(self) -> None:
        if len(self._each) == 1:
            self._whole = self._each[0]
            return
        numbered = [
            pa.DictionaryArray.from_arrays(pa.array(range(len(texts)), pa.uint32()), texts)
            for texts in self._each
        ]
        unified = pa.chunked_array(numbered).unify_dictionaries()
        self._whole = unified.chunk(0).dictionary
        self._places = [chunk.indices for chunk in unified.chunks]


def _begins_with(texts: pa.Array, first: pa.Array) -> bool:
    return len(texts) >= len(first) and bool(texts.slice(0, len(first)).equals(first))


def _row_groups(folder: Folder, name: str, found: _Found, target: pa.Schema) -> Iterator[pa.Table]:
    batches: list[pa.RecordBatch] = []
    rows = 0
    for batch, _ in itertools.islice(Batches(folder, name), found.batches):
        columns = [
            found.dictionaries[place].column(column) if place in found.dictionaries else column
            for place, column in enumerate(batch.columns)
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=target))
        rows += batch.num_rows
        if rows >= _FILE_ROWS:
            yield pa.Table.from_batches(batches).combine_chunks()
            batches, rows = [], 0
    if batches:
        yield pa.Table.from_batches(batches).combine_chunks()


def reached(folder: Folder, table: schema.Table) -> Reach:
    """Return how far what is on disk of ``table`` goes."""
    reach = Reach()
    for name in _segments(folder, table):
        if name.endswith(schema.CLOSED_SUFFIX):
            with (
                contextlib.suppress(OSError, pa.ArrowInvalid),
                folder.open(name) as file,
                as_invalid(),
            ):
                reach.merge(Reach.from_metadata(pa.ipc.open_file(file).schema.metadata))
        elif name.endswith(schema.LIVE_SUFFIX):
            with contextlib.suppress(OSError):
                for _, batch_reach in Batches(folder, name):
                    reach.merge(batch_reach)
    return reach


def next_number(folder: Folder, table: schema.Table) -> int:
    """Return the first unused segment number of ``table`` in ``folder``."""
    numbers = [name[len(table.name) + 1 :].split(".", 1)[0] for name in _segments(folder, table)]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


def rows_on_disk(folder: Folder, table: schema.Table) -> int:
    """Return how many whole rows of ``table`` a folder has."""
    rows = 0
    for name in _segments(folder, table):
        with contextlib.suppress(OSError, pa.ArrowInvalid, ValueError), as_invalid():
            if name.endswith(schema.CLOSED_SUFFIX):
                with folder.open(name) as file:
                    known = pa.ipc.open_file(file).schema.metadata or {}
                    rows += int(known[schema.KEY_ROWS.encode()])
            else:
                rows += sum(batch.num_rows for batch, _ in Batches(folder, name))
    return rows


def _segments(folder: Folder, table: schema.Table) -> list[str]:
    kinds = (".arrow", _DAMAGED_SUFFIX)
    names = [name for name in folder.names() if name.startswith(f"{table.name}-")]
    return [name for name in names if any(kind in name for kind in kinds)]


class TableWriter:
    """The segments of one table, one after the other."""

    def __init__(self, folder: Path | Folder, table: schema.Table) -> None:
        """Write ``table`` into ``folder``; the first file appears with the first batch."""
        self._folder = Folder.at(folder)
        self._table = table
        self._segment: Segment | None = None

    @property
    def waiting(self) -> bool:
        """Whether something is not on disk yet."""
        return self._segment is not None and self._segment.waiting

    def prepare(self) -> None:
        """Open a file, so that :meth:`append` cannot fail.

        Raises:
            OSError: no file can be created, or the one before cannot be closed yet.
        """
        if self._segment is not None and self._segment.ended:
            self.close()
        if self._segment is None:
            number = next_number(self._folder, self._table)
            self._segment = Segment(self._folder, self._table, number)

    def append(self, batch: pa.RecordBatch, reach: Reach | None = None) -> None:
        """Encode ``batch``; it reaches the disk with :meth:`push`. :meth:`prepare` comes first."""
        assert self._segment is not None
        self._segment.append(batch, reach)

    def push(self) -> None:
        """Write what waits; close the segment when it has grown large.

        Raises:
            OSError: see :meth:`Segment.push`.
        """
        if self._segment is None:
            return
        self._segment.push()
        if self._segment.bytes >= SEGMENT_BYTES:
            self.close()

    def sync(self) -> None:
        """Write what waits and bring it to stable storage."""
        if self._segment is not None:
            self._segment.sync()

    def close(self) -> None:
        """Close the newest segment.

        Raises:
            OSError: see :meth:`Segment.close`.
        """
        if self._segment is not None:
            self._segment.close()
            self._segment = None
