"""Follows one process folder while a recorder writes it: reads only what was appended.

Of what was written before the first look, only the end is read: the messages of an Arrow stream are
walked by their headers, the texts of its dictionaries are taken, and the earlier rows are skipped.
So neither time nor memory grows with the length of a run.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from haiprof import schema
from haiprof.common.arrow_damage import Checks, as_invalid, checked_schema, reason_of
from haiprof.common.owned_files import open_regular
from haiprof.errors import HaiprofError
from haiprof.sources.segment_file import arrow_file
from haiprof.sources.segment_schema import check_schema

#: At most this many bytes of new rows are read at once; of more, the newest.
MOST_BYTES: Final = 8 << 20
#: The index of a null text.
NO_TEXT: Final = -1
_SEGMENT = re.compile(r"(?P<table>[a-z_]+)-(?P<number>\d+)\.(?P<kind>arrows?)")
#: Of a closed segment, batches are read from its end until they contain this many rows.
_CLOSED_ROWS: Final = 4096
_CLOSED_FILES: Final = 2
_NEVER: Final = -(2**63)
#: Message headers are read in pieces of this many bytes: many small messages at once.
_PIECE: Final = 1 << 16
#: A header cannot be larger: it describes the columns of one table.
_MOST_HEAD: Final = 1 << 24
_SCHEMA, _DICTIONARY, _ROWS = 1, 2, 3
_CONTINUATION: Final = 0xFFFFFFFF
#: A folder that changed less than this many seconds ago may change again within the same tick of
#: its file system's clock.
_SETTLED: Final = 2.0


class Part(NamedTuple):
    """Rows of a table as arrays.

    ``columns`` has an array for each requested column: numbers as they are (a null integer is -1),
    texts as indices into the column's list in ``texts``, or :data:`NO_TEXT`.
    """

    columns: dict[str, npt.NDArray[Any]]
    texts: dict[str, list[str]]
    #: Custom metadata of the batch, as the recorder wrote it.
    metadata: dict[bytes, bytes]


class Wanted(NamedTuple):
    """What to read of one table: these columns, and how many batches of past rows."""

    table: schema.Table
    columns: tuple[str, ...]
    batches: int


class _Message(NamedTuple):
    kind: int
    offset: int
    size: int
    #: For a dictionary: it replaces the one before.
    replaces: bool


class _Damaged(Exception):
    """The bytes at this place are not a message."""


class _Feed:
    """The part of a stream that pyarrow may read: whole messages, never a cut one."""

    closed = False

    def __init__(self) -> None:
        self._waiting = bytearray()

    def put(self, data: bytes) -> None:
        self._waiting += data

    def read(self, size: int = -1) -> bytes:
        taken = bytes(self._waiting[:size] if size >= 0 else self._waiting)
        del self._waiting[: len(taken)]
        return taken

    def close(self) -> None:
        pass

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class _Texts:
    """The dictionaries of one file as lists, which only grow until one is replaced."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}
        self.checks = Checks()

    def of(self, name: str, dictionary: pa.Array) -> list[str]:
        known = self.known.setdefault(name, [])
        if len(dictionary) > len(known):
            known += [text or "" for text in dictionary.slice(len(known)).to_pylist()]
        return known


class _Stream:
    """One ``.arrows`` file that grows."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self.path = path
        self._wanted = wanted
        self._position = 0
        self._feed = _Feed()
        self._reader: Any = None
        self._texts = _Texts()
        self._over = False

    def read(self) -> Iterator[Part]:
        """Yield what was appended.

        Raises:
            FileNotFoundError: it has been closed into an ``.arrow`` file.
            OSError: it cannot be read.
            HaiprofError: this version cannot read it, or it is damaged; nothing more will come.
        """
        size = self.path.stat().st_size
        if self._over or size <= self._position:
            return
        with open_regular(self.path) as file:
            fd = file.fileno()
            chosen, damage = _newest(self._messages(fd, size), self._wanted.batches)
            for message in chosen:
                data = os.pread(fd, message.size, message.offset)
                if message.kind == _SCHEMA:
                    self._open(data)
                    continue
                self._feed.put(data)
                if message.replaces:
                    self._texts.known.clear()
                if message.kind == _ROWS and self._reader is not None:
                    yield self._next()
            if damage:
                self._over = True
                raise self._damaged(damage)

    def _open(self, data: bytes) -> None:
        try:
            with as_invalid():
                found = checked_schema(pa.ipc.read_schema(pa.py_buffer(data)))
            fields = _places(found, self._wanted, self.path)
            self._feed.put(data)
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            with as_invalid():
                self._reader = pa.ipc.open_stream(self._feed, options=options)
        except pa.ArrowInvalid as error:
            self._over = True
            raise self._damaged(reason_of(error)) from None
        except HaiprofError:
            self._over = True
            raise

    def _next(self) -> Part:
        try:
            with as_invalid():
                batch, metadata = self._reader.read_next_batch_with_custom_metadata()
                return _part(batch, metadata, self._texts, self._wanted)
        except (pa.ArrowInvalid, OSError, StopIteration) as error:
            self._over = True
            raise self._damaged(reason_of(error)) from None

    def _damaged(self, why: str) -> HaiprofError:
        return HaiprofError(f"{self.path}: damaged ({why}): what follows there is not shown")

    def _messages(self, fd: int, size: int) -> Iterator[_Message]:
        """Yield the whole messages after the last one, by their headers."""
        piece, at = b"", 0
        while self._position + 8 <= size:
            offset = self._position - at
            if not piece or offset + 8 > len(piece):
                piece, at, offset = os.pread(fd, _PIECE, self._position), self._position, 0
                if len(piece) < 8:
                    return
            mark, length = struct.unpack_from("<Ii", piece, offset)
            if mark != _CONTINUATION or not 0 <= length <= _MOST_HEAD:
                raise _Damaged(f"no message at byte {self._position}")
            if length == 0:
                self._over = True
                return
            if self._position + 8 + length > size:
                return
            if offset + 8 + length > len(piece):
                piece = os.pread(fd, max(_PIECE, 8 + length), self._position)
                at, offset = self._position, 0
                if len(piece) < 8 + length:
                    return
            try:
                kind, body, replaces = _head(piece[offset + 8 : offset + 8 + length])
            except (struct.error, IndexError):
                raise _Damaged(f"no message at byte {self._position}") from None
            total = 8 + length + body
            if body < 0:
                raise _Damaged(f"no message at byte {self._position}")
            if self._position + total > size:
                return
            message = _Message(kind, self._position, total, replaces)
            self._position += total
            yield message


def _newest(messages: Iterator[_Message], batches: int) -> tuple[list[_Message], str]:
    """Drop all rows but the newest; return the messages up to any damage, and the damage."""
    kept: list[_Message] = []
    rows: deque[int] = deque()
    passed_over: set[int] = set()
    size = 0
    damage = ""
    try:
        for message in messages:
            if message.kind == _ROWS:
                rows.append(len(kept))
                size += message.size
                while len(rows) > 1 and (len(rows) > batches or size > MOST_BYTES):
                    oldest = rows.popleft()
                    size -= kept[oldest].size
                    passed_over.add(oldest)
            kept.append(message)
    except _Damaged as error:
        damage = str(error)
    return [message for n, message in enumerate(kept) if n not in passed_over], damage


def _head(data: bytes) -> tuple[int, int, bool]:
    """Read the kind, the body size and the replace flag from a message's header (a flatbuffer).

    Raises:
        struct.error: it is not a header.
    """
    root = struct.unpack_from("<I", data, 0)[0]
    kind = _slot(data, root, 1, "<B")
    body = _slot(data, root, 3, "<q")
    if kind != _DICTIONARY:
        return kind, body, False
    header = _field(data, root, 2)
    header += struct.unpack_from("<I", data, header)[0]
    return kind, body, not _slot(data, header, 2, "<B")


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a flatbuffer table's field; 0 if it has its default."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise struct.error("outside")
    if 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _slot(data: bytes, table: int, number: int, kind: str) -> int:
    at = _field(data, table, number)
    return int(struct.unpack_from(kind, data, at)[0]) if at else 0


def _places(found: pa.Schema, wanted: Wanted, path: Path) -> list[int]:
    """Return the positions of the wanted columns, all of which must exist.

    Raises:
        HaiprofError: it is of another program, table or version.
    """
    columns = [c._replace(nullable=False) for c in wanted.table.columns if c.name in wanted.columns]
    check_schema(found, wanted.table, columns, path)
    return [found.get_field_index(column) for column in wanted.columns]


def _part(batch: pa.RecordBatch, metadata: Any, texts: _Texts, wanted: Wanted) -> Part:
    """Return the rows of a batch.

    Raises:
        pa.ArrowInvalid: it is damaged.
    """
    texts.checks.sound(batch)
    columns: dict[str, npt.NDArray[Any]] = {}
    texts_of: dict[str, list[str]] = {}
    for name in wanted.columns:
        array = batch.column(name)
        if pa.types.is_dictionary(array.type):
            texts_of[name] = texts.of(name, array.dictionary)
            columns[name] = _numbers(array.indices)
        else:
            columns[name] = _numbers(array)
    return Part(columns, texts_of, dict(metadata or {}))


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    whole = pa.types.is_integer(array.type)
    if whole and array.null_count:
        if array.null_count == len(array):
            return np.full(len(array), -1)
        array = array.cast(pa.int64()).fill_null(-1)
    values = np.asarray(array.to_numpy(zero_copy_only=False))
    return values.astype(np.int64, copy=False) if whole else values


class _TableFollower:
    """One table of a folder, followed from segment to segment.

    Several may be live at once: a rank's samples come from its ring and from its node's recorder.
    """

    def __init__(self, folder: Path, wanted: Wanted, on_line: Callable[[str], None]) -> None:
        self._folder = folder
        self._wanted = wanted
        self._on_line = on_line
        self._newest = -1
        self._streams: dict[int, _Stream] = {}
        #: Per segment, the end of the newest row that was returned.
        self._until: dict[int, int] = {}

    def read(self, files: dict[int, set[str]]) -> Iterator[Part]:
        """Yield what is new; ``files`` says of each segment which kinds of file exist."""
        for number in list(self._streams):
            yield from self._read(number)
        new = sorted(number for number in files if number > self._newest)
        if not new:
            return
        closed = [number for number in new if "arrow" in files[number]]
        if self._newest < 0:
            # Of what ended before the first look: the last rows that its two writers wrote.
            closed = closed[-_CLOSED_FILES:] if len(closed) == len(new) else []
        self._newest = new[-1]
        for number in new:
            if "arrow" not in files[number]:
                path = self._folder / f"{self._wanted.table.name}-{number}{schema.LIVE_SUFFIX}"
                self._streams[number] = _Stream(path, self._wanted)
                yield from self._read(number)
            elif number in closed:
                yield from self._guarded(number, self._closed(number))

    def _read(self, number: int) -> Iterator[Part]:
        try:
            yield from self._guarded(number, self._streams[number].read())
        except FileNotFoundError:
            del self._streams[number]
            yield from self._guarded(number, self._closed(number))
            self._until.pop(number, None)

    def _guarded(self, number: int, parts: Iterator[Part]) -> Iterator[Part]:
        try:
            for part in parts:
                ends = _ends(part)
                if len(ends):
                    until = self._until.get(number, _NEVER)
                    self._until[number] = max(until, int(ends.max()))
                yield part
        except FileNotFoundError:
            raise
        except HaiprofError as error:
            self._on_line(str(error))
        except OSError as error:
            where = error.filename or self._folder
            self._on_line(f"{where}: cannot be read ({error.strerror}): ask its owner for access")

    def _closed(self, number: int) -> Iterator[Part]:
        """Yield the newest rows of a closed segment that were not returned before."""
        path = self._folder / f"{self._wanted.table.name}-{number}{schema.CLOSED_SUFFIX}"
        parts: list[Part] = []
        damage = ""
        try:
            with arrow_file(path) as file:
                with as_invalid():
                    reader = pa.ipc.open_file(file)
                    found = checked_schema(reader.schema)
                fields = _places(found, self._wanted, path)
                options = pa.ipc.IpcReadOptions(included_fields=fields)
                with as_invalid():
                    reader = pa.ipc.open_file(file, options=options)
                texts = _Texts()
                rows = 0
                for place in reversed(range(reader.num_record_batches)):
                    try:
                        with as_invalid():
                            batch = reader.get_batch(place)
                            parts.insert(0, _part(batch, found.metadata, texts, self._wanted))
                    except pa.ArrowInvalid as error:
                        damage = reason_of(error)
                        continue
                    rows += batch.num_rows
                    if rows >= _CLOSED_ROWS:
                        break
        except FileNotFoundError:
            return
        except pa.ArrowInvalid as error:
            damage = reason_of(error)
        until = self._until.get(number, _NEVER)
        for part in parts:
            new = _ends(part) > until
            yield part._replace(columns={name: v[new] for name, v in part.columns.items()})
        if damage:
            raise HaiprofError(f"{path}: damaged ({damage}): not all of it is shown")


def _ends(part: Part) -> npt.NDArray[np.int64]:
    columns = part.columns
    if "time" in columns:
        return columns["time"]
    if "start" not in columns:  # of frames: their numbers only grow, as times do
        return columns["id"].astype(np.int64)
    ends: npt.NDArray[np.int64] = columns["start"] + columns["duration"]
    return ends


@dataclass(slots=True)
class FolderFollower:
    """The tables of one process folder.

    ``changed`` is set when files appeared or disappeared since the last read, and so whenever
    ``process.json`` was rewritten.
    """

    folder: Path
    wanted: Sequence[Wanted]
    changed: bool = False
    #: One line for each file that cannot be read.
    problems: list[str] = field(default_factory=list)
    _tables: dict[str, _TableFollower] = field(default_factory=dict)
    _files: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    _listed: int = -1

    def read(self) -> dict[str, list[Part]]:
        """Return the new rows of each table that has any; never raises."""
        self._list()
        new: dict[str, list[Part]] = {}
        for wanted in self.wanted:
            name = wanted.table.name
            files = self._files.get(name)
            if not files:
                continue
            table = self._tables.get(name)
            if table is None:
                table = self._tables[name] = _TableFollower(self.folder, wanted, self._on_line)
            parts = list(table.read(files))
            if parts:
                new[name] = parts
        return new

    def _on_line(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _list(self) -> None:
        self.changed = False
        try:
            changed_at = self.folder.stat().st_mtime_ns
            if changed_at == self._listed:
                return
            names = [entry.name for entry in os.scandir(self.folder)]
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._on_line(f"{self.folder}: cannot be read ({error.strerror})")
            return
        self.changed = True
        self._listed = changed_at if time.time() - changed_at / 1e9 > _SETTLED else -1
        self._files = {}
        for name in names:
            match = _SEGMENT.fullmatch(name)
            if match:
                segments = self._files.setdefault(match["table"], {})
                segments.setdefault(int(match["number"]), set()).add(match["kind"])
