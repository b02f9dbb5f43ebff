"""One table of one folder on disk: a growing IPC stream, closed into a compressed IPC file.

A stream cut anywhere keeps every whole batch, so whatever kills the recorder costs no written
batch. A full disk costs none either: a batch that does not fit is kept in memory, the file is cut
back to its last whole batch, and the bytes go out when there is room.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from haiprof import schema
from haiprof.common.owned_files import Folder
from haiprof.recorder.arrow_stream import END, FILE_BEGIN, Batch, StreamWriter
from haiprof.recorder.process_folder import read_process_file
from haiprof.recorder.reach import Reach
from haiprof.recorder.storage import MOST_SEGMENT, Part

log = logging.getLogger(__name__)


class Segment:
    """One ``<table>-<n>.arrows`` file that is being written."""

    def __init__(self, folder: Folder, table: schema.Table, number: int) -> None:
        """Create the file.

        Raises:
            OSError: it cannot be created.
        """
        self._folder = folder
        #: Of the file.
        self.name = f"{table.name}-{number}{schema.LIVE_SUFFIX}"
        self._fd = folder.create(self.name)
        self._written = 0
        #: How many rows were appended.
        self.rows = 0
        self._reach = Reach()
        self._synced = False
        self._stream = StreamWriter(table)
        self._waiting = bytearray(self._stream.begin())
        #: Whether no batch can follow: :meth:`close` was called, and there was no room for it.
        self.ended = False

    @property
    def size(self) -> int:
        """Bytes on disk and waiting."""
        return self._written + len(self._waiting)

    @property
    def waiting(self) -> bool:
        """Whether something is not on disk yet."""
        return bool(self._waiting)

    def append(self, batch: Batch, reach: Reach | None = None) -> None:
        """Encode ``batch``; :meth:`push` writes it to disk."""
        self.rows += batch.rows
        metadata = {schema.KEY_ROWS: str(self.rows)}
        if reach is not None:
            self._reach.merge(reach)
            metadata |= reach.to_metadata()
        self._waiting += self._stream.batch(batch, metadata)

    def push(self) -> None:
        """Write what waits, all or nothing.

        Raises:
            OSError: it does not fit or cannot be written; the file ends with its last whole batch
                and everything still waits.
        """
        view = memoryview(self._waiting)
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
        self._waiting.clear()

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
        if not self.ended:
            self._waiting += END
            self.ended = True
        self.push()
        path = self._folder.path / self.name
        file_end = self._stream.file_end(
            {schema.KEY_ROWS: str(self.rows), **self._reach.to_metadata()}
        )
        try:
            stream = b"" if file_end is None else os.pread(self._fd, self._written + 1, 0)
            # Another length: somebody else has written, too, and the places are not those.
            if file_end is not None and self.rows and len(stream) == self._written:
                self._close_as_it_is(stream, file_end)
                return
            from haiprof.recorder.closing import close_stream

            close_stream(self._folder, self.name, durably=self._synced)
        except OSError as error:
            log.warning("%s stays a stream: %s", path, error.strerror)
        except ImportError as error:  # what this runs from has been replaced since it was started
            log.warning("%s stays a stream: %s", path, error)
        finally:
            os.close(self._fd)

    def _close_as_it_is(self, stream: bytes, file_end: bytes) -> None:
        """Make a file of the stream without pyarrow."""
        closed = self.name.removesuffix(schema.LIVE_SUFFIX) + schema.CLOSED_SUFFIX
        with self._folder.replacing(closed) as file:
            file.write(FILE_BEGIN + stream + file_end)
            if self._synced:
                file.flush()
                os.fsync(file.fileno())
        if self._synced:
            os.fsync(self._folder.fd)
        self._folder.remove(self.name)


def live_streams(folder: Folder) -> list[str]:
    """Return the names of the streams in a folder."""
    return [name for name in folder.names() if name.endswith(schema.LIVE_SUFFIX)]


def close_left(folder: Folder) -> list[str]:
    """Close the streams that an earlier recorder has left in a folder.

    Returns:
        What of them is missing now, in words.

    Raises:
        OSError: no room or no permission; what is not closed is untouched.
    """
    names = live_streams(folder)
    if not names:
        return []
    try:
        from haiprof.recorder.closing import close_stream
    except ImportError as error:  # no pyarrow: readers can do without
        log.warning("%s: %d streams stay as they are: %s", folder.path, len(names), error)
        return []
    return [lost for name in names if (lost := close_stream(folder, name).lost)]


def close_ended(run: Path) -> None:
    """Close the streams that a recorder without pyarrow has left of processes that have ended.

    What cannot be closed stays a stream, which is read as well.
    """
    with contextlib.suppress(OSError):
        folder = Folder.at(run)
        for name in folder.names():
            try:
                process = folder.folder(name)
                known = read_process_file(process)
                if known is not None and known.get("state") != "live":
                    close_left(process)
            except Exception as error:  # a container may have written anything
                log.warning("%s/%s: streams stay as they are: %r", run, name, error)


def reached(folder: Folder, table: schema.Table) -> Reach:
    """Return how far what is on disk of ``table`` goes."""
    names = names_of(folder, table)
    if not names:
        return Reach()
    from haiprof.recorder.closing import reach_of

    return reach_of(folder, names)


def rows_on_disk(folder: Folder, table: schema.Table) -> int:
    """Return how many whole rows of ``table`` a folder has."""
    names = names_of(folder, table)
    if not names:
        return 0
    from haiprof.recorder.closing import rows_of

    return rows_of(folder, names)


def next_number(folder: Folder, table: schema.Table) -> int:
    """Return the first unused segment number of ``table`` in ``folder``."""
    numbers = [name[len(table.name) + 1 :].split(".", 1)[0] for name in names_of(folder, table)]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


def names_of(folder: Folder, table: schema.Table) -> list[str]:
    """Return the names of the segments of ``table`` in ``folder``."""
    kinds = (".arrow", schema.DAMAGED_SUFFIX)
    names = [name for name in folder.names() if name.startswith(f"{table.name}-")]
    return [name for name in names if any(kind in name for kind in kinds)]


class TableWriter:
    """The segments of one table, one after the other."""

    def __init__(
        self, folder: Path | Folder, table: schema.Table, part: Part | None = None
    ) -> None:
        """Write ``table`` into ``folder``; the first file appears with the first batch.

        Args:
            folder: where.
            table: which.
            part: the folder as a part of what is limited; None: nothing limits it.
        """
        self._folder = Folder.at(folder)
        self._table = table
        self._part = part
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

    def append(self, batch: Batch, reach: Reach | None = None) -> None:
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
        self._make_room(self._segment)
        self._segment.push()
        most = MOST_SEGMENT if self._part is None else self._part.segment_bytes
        if self._segment.size >= most:
            self.close()

    def _make_room(self, segment: Segment) -> None:
        if self._part is not None and segment.waiting:
            self._part.grow(segment.name, segment.size)

    def sync(self) -> None:
        """Write what waits and bring it to stable storage."""
        if self._segment is not None:
            self._make_room(self._segment)
            self._segment.sync()

    def close(self) -> None:
        """Close the newest segment.

        Raises:
            OSError: see :meth:`Segment.close`.
        """
        segment = self._segment
        if segment is None:
            return
        if self._part is not None:
            self._make_room(segment)
            self._part.closing(segment.name, segment.size)
        segment.close()
        self._segment = None
        if self._part is not None:
            self._part.closed(self._folder, segment.name, segment.rows)
