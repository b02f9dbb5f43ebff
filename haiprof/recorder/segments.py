"""One table of one folder on disk: a growing IPC stream, closed into a compressed IPC file.

A stream cut anywhere keeps every whole batch, so whatever kills the recorder costs no written
batch. A full disk costs none either: a batch that does not fit is kept in memory, the file is cut
back to its last whole batch, and the bytes go out when there is room.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from haiprof import schema

log = logging.getLogger(__name__)

#: A live stream is closed into a file when it has grown to this many bytes.
SEGMENT_BYTES: Final = 64 << 20
_FILE_ROWS: Final = 1 << 16
_COMPRESSION: Final = "zstd"


@dataclass(slots=True)
class Reach:
    """How far what is on disk goes: what the next recorder of a ring has to know.

    It travels with each batch, so it is true whenever the batch is there.
    """

    #: Lane -> number of its first record that is not on disk yet.
    lanes: dict[int, int] = field(default_factory=dict)
    #: Cause -> records lost before that point.
    lost: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes] | None) -> Reach:
        """Read it from Arrow metadata; empty when there is none."""
        known = metadata or {}
        lanes = json.loads(known.get(schema.KEY_THROUGH.encode(), b"{}"))
        lost = json.loads(known.get(schema.KEY_LOST.encode(), b"{}"))
        return cls({int(lane): int(number) for lane, number in lanes.items()}, lost)

    def to_metadata(self) -> dict[str, str]:
        """Return it as Arrow metadata."""
        return {
            schema.KEY_THROUGH: json.dumps(self.lanes),
            schema.KEY_LOST: json.dumps(self.lost),
        }

    def merge(self, other: Reach) -> None:
        """Take the further of both."""
        for lane, number in other.lanes.items():
            self.lanes[lane] = max(number, self.lanes.get(lane, 0))
        for cause, count in other.lost.items():
            self.lost[cause] = max(count, self.lost.get(cause, 0))


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

    def __init__(self, folder: Path, table: schema.Table, number: int) -> None:
        """Create the file.

        Raises:
            OSError: it cannot be created.
        """
        self.path = folder / f"{table.name}-{number}{schema.LIVE_SUFFIX}"
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._written = 0
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
        """Encode ``batch``; :meth:`push` brings it to disk."""
        self._stream.write_batch(batch, custom_metadata=reach.to_metadata() if reach else None)

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
            close_stream(self.path, durably=self._synced)
        except OSError as error:
            log.warning("%s stays a stream: %s", self.path, error.strerror)


def read_stream(path: Path) -> Iterator[tuple[pa.RecordBatch, Reach]]:
    """Yield the whole batches of a stream, however it ends, with what each says it reaches."""
    with path.open("rb") as file:
        try:
            stream = pa.ipc.open_stream(file)
        except (pa.ArrowInvalid, OSError, EOFError):
            return
        while True:
            try:
                batch, metadata = stream.read_next_batch_with_custom_metadata()
            except (StopIteration, pa.ArrowInvalid, OSError, EOFError):
                return
            yield batch, Reach.from_metadata(metadata)


def close_stream(path: Path, *, durably: bool = False) -> Path:
    """Rewrite ``<name>.arrows`` as ``<name>.arrow`` and remove it. Memory does not grow with it.

    The file takes the place of the stream in one rename, so a reader sees the one or the other.

    Args:
        path: the stream.
        durably: bring the file to stable storage before the stream goes; where somebody was
            promised that for the stream.

    Returns:
        The path of the file.

    Raises:
        OSError: no room or no permission; the stream is untouched.
    """
    closed = path.with_suffix(schema.CLOSED_SUFFIX)
    if closed.exists():
        path.unlink(missing_ok=True)
        return closed
    # Every batch's dictionary begins with the one before it, so the last one serves them all.
    dictionaries: dict[str, pa.Array] = {}
    reach = Reach()
    found: pa.Schema | None = None
    for batch, told in read_stream(path):
        found = batch.schema
        reach.merge(told)
        for column in batch.schema.names:
            if pa.types.is_dictionary(batch.schema.field(column).type):
                dictionaries[column] = batch.column(column).dictionary
    if found is None:
        path.unlink(missing_ok=True)
        return closed
    target = found.with_metadata({**(found.metadata or {}), **reach.to_metadata()})
    partial = path.with_suffix(".partial")
    try:
        with (
            pa.OSFile(str(partial), "wb") as sink,
            pa.ipc.new_file(
                sink, target, options=pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
            ) as file,
        ):
            for table in _row_groups(path, dictionaries, target):
                file.write_table(table, max_chunksize=_FILE_ROWS)
        partial.chmod(0o600)
        if durably:
            _sync(partial)
        partial.replace(closed)
        if durably:
            _sync(path.parent)
    except (OSError, pa.ArrowException):
        partial.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)
    return closed


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _row_groups(
    path: Path, dictionaries: Mapping[str, pa.Array], target: pa.Schema
) -> Iterator[pa.Table]:
    batches: list[pa.RecordBatch] = []
    rows = 0
    for batch, _ in read_stream(path):
        columns = [
            pa.DictionaryArray.from_arrays(
                batch.column(f.name).indices, dictionaries[f.name], safe=False
            )
            if f.name in dictionaries
            else batch.column(f.name)
            for f in target
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=target))
        rows += batch.num_rows
        if rows >= _FILE_ROWS:
            yield pa.Table.from_batches(batches).combine_chunks()
            batches, rows = [], 0
    if batches:
        yield pa.Table.from_batches(batches).combine_chunks()


def reached(folder: Path, table: schema.Table) -> Reach:
    """Return how far what is on disk of ``table`` goes."""
    reach = Reach()
    for path in folder.glob(f"{table.name}-*{schema.CLOSED_SUFFIX}"):
        with contextlib.suppress(OSError, pa.ArrowException), pa.OSFile(str(path)) as file:
            reach.merge(Reach.from_metadata(pa.ipc.open_file(file).schema.metadata))
    for path in folder.glob(f"{table.name}-*{schema.LIVE_SUFFIX}"):
        with contextlib.suppress(OSError):
            for _, told in read_stream(path):
                reach.merge(told)
    return reach


def next_number(folder: Path, table: schema.Table) -> int:
    """Return the first unused segment number of ``table`` in ``folder``."""
    used = [-1]
    for path in folder.glob(f"{table.name}-*.arrow*"):
        number = path.name[len(table.name) + 1 :].split(".", 1)[0]
        if number.isdecimal():
            used.append(int(number))
    return max(used) + 1


class TableWriter:
    """The segments of one table, one after the other."""

    def __init__(self, folder: Path, table: schema.Table) -> None:
        """Write ``table`` into ``folder``; the first file appears with the first batch."""
        self._folder = folder
        self._table = table
        self._segment: Segment | None = None

    @property
    def waiting(self) -> bool:
        """Whether something is not on disk yet."""
        return self._segment is not None and self._segment.waiting

    def prepare(self) -> None:
        """Have a file ready, so that :meth:`append` cannot fail.

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
