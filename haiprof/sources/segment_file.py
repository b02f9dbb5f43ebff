"""The Arrow files of one table of a process folder, and each of them opened to be read by batches.

A live stream that ends in the middle of a batch (the recorder was killed, or is writing right now)
gives every whole batch before the cut. A closed file without its footer is read in the same way.
Tests: tests/sources/test_tables.py.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from haiprof import schema
from haiprof.common.arrow_damage import (
    Checks,
    Stream,
    as_invalid,
    checked_schema,
    reason_of,
    rows_missing,
)
from haiprof.common.owned_files import open_regular
from haiprof.sources.segment_schema import TIMES

#: No file has more rows, whatever its batches say, and numpy cannot allocate some larger numbers.
_MOST_ROWS: Final = 1 << 40
#: An IPC file is this many bytes of magic, then a stream, then the footer.
_FILE_MAGIC_BYTES: Final = 8
#: Smaller files are read as a whole: pyarrow takes several times as long to read one by parts.
_WHOLE_BYTES: Final = 1 << 20
#: Rows are written at most so long, ns, after those that began later, as kernels are that a GPU
#: ends late.
_LATE_NS: Final = 300_000_000_000
_SEGMENT: Final = re.compile(r"(?P<table>[a-z_]+)-(?P<number>\d+)\.(?P<kind>arrows?)")


@dataclass(slots=True)
class Segment:
    """The n-th file of a table: closed, live, or both while it is being closed."""

    number: int
    closed: Path | None = None
    live: Path | None = None


def segments(folder: Path, table: str, problems: list[str]) -> list[Segment]:
    """List the files of one table in the order in which they were written."""
    found: dict[int, Segment] = {}
    try:
        files = list(folder.iterdir())
    except OSError as error:
        problems.append(f"{folder}: cannot be read ({error.strerror}): ask its owner for access")
        return []
    for file in files:
        match = _SEGMENT.fullmatch(file.name)
        if match and match["table"] == table:
            segment = found.setdefault(int(match["number"]), Segment(int(match["number"])))
            if match["kind"] == "arrow":
                segment.closed = file
            else:
                segment.live = file
    return [found[number] for number in sorted(found)]


def bytes_of(found: Sequence[Segment]) -> int:
    """Return the size of the files of some segments, bytes."""
    size = 0
    for segment in found:
        for file in (segment.closed, segment.live):
            with contextlib.suppress(OSError):
                size += file.stat().st_size if file is not None else 0
    return size


def from_time(found: list[Segment], since: int) -> list[Segment]:
    """Return the segments from the first one on that may have rows of this time or later, ns UTC.

    They lie in the order in which they were written. So that this takes no longer in a longer run,
    it is the newest that are looked at.
    """
    since -= _LATE_NS
    for at in range(len(found) - 1, 0, -1):
        newest = _newest(found[at - 1])
        if newest is not None and newest < since:
            return found[at:]
    return found


def _newest(segment: Segment) -> int | None:
    """Return until when the last rows of a closed segment go, ns UTC; None: not known."""
    if segment.closed is None:
        return None
    with contextlib.suppress(OSError, pa.ArrowInvalid), Opened(segment, TIMES) as opened:
        if opened.live or not opened.reader.num_record_batches:
            return None
        with as_invalid():
            batch = Checks().sound(opened.reader.get_batch(opened.reader.num_record_batches - 1))
        times = {name: batch.column(name) for name in TIMES.intersection(batch.schema.names)}
        if any(each.type != pa.int64() or each.null_count for each in times.values()):
            return None
        columns = {name: np.asarray(each) for name, each in times.items()}
        begin = columns["time"] if "time" in columns else columns.get("start")
        if begin is not None and begin.size:
            return int((begin + np.maximum(columns.get("duration", 0), 0)).max())
    return None


def arrow_file(file: Path, copied: int = 0) -> pa.NativeFile:
    """Open a file of a run for pyarrow; see :func:`haiprof.common.owned_files.open_regular`.

    Args:
        file: which.
        copied: of a file of at most so many bytes, what it has now is read at once.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with open_regular(file) as opened:
        if os.fstat(opened.fileno()).st_size <= copied:
            content = opened.read(copied + 1)
            if len(content) <= copied:
                return pa.BufferReader(content)
        return pa.OSFile(f"/proc/self/fd/{opened.fileno()}")


class Cut(pa.ArrowInvalid):  # type: ignore[misc]
    """A stream ends before its first batch: nothing was in it, so nothing is missing."""


class Opened:
    """One segment opened to be read by batches; the closed file if whole, else the stream.

    Streams have columns that were not picked, too. Methods raise pa.ArrowInvalid where it is
    damaged.
    """

    def __init__(
        self, segment: Segment, columns: Collection[str] | None = None, *, threads: bool = True
    ) -> None:
        self._segment = segment
        self._columns = columns
        self._threads = threads
        #: Why what is missing of the batches is not read; empty: nothing is.
        self.damage = ""
        #: Whether it ends within a batch.
        self.cut = False

    def __enter__(self) -> Opened:
        closed, live = self._segment.closed, self._segment.live
        if closed is None and live is not None and not live.exists():
            closed = live.with_suffix(schema.CLOSED_SUFFIX)
        if closed is not None:
            try:
                return self._open(closed, self._open_file)
            except pa.ArrowInvalid:
                if live is None or not live.exists():
                    return self._open(closed, self._open_stream)
        assert live is not None
        return self._open(live, self._open_stream)

    def _open(self, file: Path, how: Callable[[], None]) -> Opened:
        self.file = file
        self.handle = arrow_file(file, _WHOLE_BYTES)
        try:
            how()
        except BaseException:
            self.handle.close()
            raise
        return self

    def _open_file(self) -> None:
        self.live = False
        with as_invalid():
            options = pa.ipc.IpcReadOptions(use_threads=self._threads)
            self.reader = pa.ipc.open_file(self.handle, options=options)
            self.schema = checked_schema(self.reader.schema)
        self._picked = list(self.schema)
        if self._columns is not None:
            self.pick(self._columns, threads=self._threads)

    def _open_stream(self) -> None:
        self.live = True
        size = self.handle.size()
        self.handle.seek(_FILE_MAGIC_BYTES if self.file.suffix == schema.CLOSED_SUFFIX else 0)
        self.stream = Stream(self.handle, size)
        if self.stream.schema is None:
            raise pa.ArrowInvalid(self.stream.damage) if self.stream.damage else Cut
        self.schema = self.stream.schema

    def __exit__(self, *_: object) -> None:
        self.handle.close()

    def pick(self, columns: Collection[str], *, threads: bool) -> None:
        """Read only these columns of a closed file, from here on."""
        fields = [i for i, name in enumerate(self.schema.names) if name in columns]
        self._picked = [self.schema.field(i) for i in fields]
        if len(fields) == len(self.schema.names) and threads == self._threads:
            return
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=threads)
        with as_invalid():
            self.reader = pa.ipc.open_file(self.handle, options=options)

    def height(self) -> int:
        """Number of rows of a closed file, according to its batches; not verified yet."""
        with as_invalid():
            if hasattr(self.reader, "count_rows"):
                rows = int(self.reader.count_rows())
            else:
                batches = range(self.reader.num_record_batches)
                rows = sum(self.reader.get_batch(n).num_rows for n in batches)
        if not 0 <= rows <= _MOST_ROWS:
            raise pa.ArrowInvalid(f"its batches claim {rows} rows")
        return rows

    def compressed(self, rows: int) -> bool:
        """Say whether a closed file is smaller than its ``rows`` are by their numbers alone."""
        bits = sum(
            (field.type.index_type if pa.types.is_dictionary(field.type) else field.type).bit_width
            for field in self.schema
            if pa.types.is_primitive(field.type) or pa.types.is_dictionary(field.type)
        )
        return bool(self.file.stat().st_size < rows * bits // 8)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the sound batches; ``damage`` and ``cut`` then say whether others are missing."""
        if self.live:
            for batch, _ in self.stream:
                yield batch
            self.damage, self.cut = self.stream.damage, self.stream.cut
            return
        rows = 0
        checks = Checks()
        for number in range(self.reader.num_record_batches):
            try:
                with as_invalid():
                    batch = checks.sound(self.reader.get_batch(number))
            except pa.ArrowInvalid as error:
                self.damage = reason_of(error)
                continue
            rows += batch.num_rows
            yield batch
        if self.damage and not rows:  # its footer may be what is damaged
            with contextlib.suppress(pa.ArrowInvalid):
                self._open_stream()
                # Whoever asks has seen the schema of the footer, and counts on it.
                if all(field in list(self.schema) for field in self._picked):
                    for batch, _ in self.stream:
                        rows += batch.num_rows
                        yield batch
        self.damage = self.damage or rows_missing(self.schema.metadata, rows)


def damaged(file: Path, error: Exception, rows: int = 0) -> str:
    """Return a line about a damaged file of which so many rows are read."""
    read = f"only {rows} rows of it are read" if rows else "left out"
    why = reason_of(error)
    return f"{file}: damaged ({why}) and {read}: copy it again from the node that wrote it"


def ends_within_batch(file: Path) -> int:
    """Return 1 for a stream that ends within a batch, else 0, without decoding it."""
    dictionaries = wanted = 0
    try:
        if file.stat().st_size == 0:
            return 0
        with arrow_file(file) as handle, as_invalid():
            reader = pa.ipc.MessageReader.open_stream(handle)
            found = pa.ipc.read_schema(reader.read_next_message())
            wanted = sum(pa.types.is_dictionary(field.type) for field in found)
            while True:
                dictionaries += reader.read_next_message().type == "dictionary"
    except StopIteration:
        # A reader wants all dictionaries with the first batch; later ones come alone.
        return int(0 < dictionaries < wanted)
    except FileNotFoundError:
        return 0
    except (OSError, pa.ArrowInvalid):
        return 1
