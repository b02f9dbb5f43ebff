"""Closes the streams of a recorder into compressed files, and reads what earlier ones left.

Tests: tests/recorder/test_segments.py.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from haiprof import schema
from haiprof.common.arrow_damage import Stream, as_invalid, reason_of, same_memory
from haiprof.common.owned_files import Folder
from haiprof.recorder.reach import Reach

_FILE_ROWS: Final = 1 << 16
_COMPRESSION: Final = "zstd"


def reach_in(metadata: Mapping[bytes, bytes] | None) -> Reach:
    """Return the reach in the metadata of a batch or a schema; an empty one if there is none.

    Raises:
        pa.ArrowInvalid: it is damaged.
    """
    known = metadata or {}
    lanes = _counts(known, schema.KEY_THROUGH)
    if not all(lane.isdecimal() and len(lane) < 10 for lane in lanes):
        raise pa.ArrowInvalid(f"field '{schema.KEY_THROUGH}' has keys that are not lanes")
    lost = _counts(known, schema.KEY_LOST)
    return Reach({int(lane): number for lane, number in lanes.items()}, lost)


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
                    reach = reach_in(metadata)
                except pa.ArrowInvalid as error:
                    unread = reason_of(error)
                    break
                whole = stream.whole
                yield batch, reach
            self.damage = unread or stream.damage
            self.rest = size - whole if self.damage or stream.cut else 0


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
    with _one_thread():
        return _close(folder, name, durably)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Have pyarrow use one thread for a while: the other cores are the job's."""
    before = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(before[0])
        pa.set_io_thread_count(before[1])


def _close(folder: Folder, name: str, durably: bool) -> Closed:
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
    kept = name.removesuffix(schema.LIVE_SUFFIX) + schema.DAMAGED_SUFFIX
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


def reach_of(folder: Folder, names: Sequence[str]) -> Reach:
    """Return how far the rows in these segments of a table go."""
    reach = Reach()
    for name in names:
        if name.endswith(schema.CLOSED_SUFFIX):
            with (
                contextlib.suppress(OSError, pa.ArrowInvalid),
                folder.open(name) as file,
                as_invalid(),
            ):
                reach.merge(reach_in(pa.ipc.open_file(file).schema.metadata))
        elif name.endswith(schema.LIVE_SUFFIX):
            with contextlib.suppress(OSError):
                for _, batch_reach in Batches(folder, name):
                    reach.merge(batch_reach)
    return reach


def rows_of(folder: Folder, names: Sequence[str]) -> int:
    """Return how many whole rows these segments of a table have."""
    rows = 0
    for name in names:
        with contextlib.suppress(OSError, pa.ArrowInvalid, ValueError), as_invalid():
            if name.endswith(schema.CLOSED_SUFFIX):
                with folder.open(name) as file:
                    known = pa.ipc.open_file(file).schema.metadata or {}
                    rows += int(known[schema.KEY_ROWS.encode()])
            else:
                rows += sum(batch.num_rows for batch, _ in Batches(folder, name))
    return rows
