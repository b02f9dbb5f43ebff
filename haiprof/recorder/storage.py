"""Keeps a node's part of a run below its limit: removes whole segments, the oldest first.

What is removed is written down first, in ``thinned.json`` of its folder. So a recorder that is
killed meanwhile leaves either the segment or the note, and the next one finishes the work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from haiprof import schema
from haiprof.common.owned_files import Folder
from haiprof.common.process_life import process_is_alive
from haiprof.recorder.process_folder import read_process_file, whole, write_json

log = logging.getLogger(__name__)

#: What may be removed, and in which order: what costs most and answers least comes first. Any other
#: table is never touched, one of a later version included.
ORDER: Final = (
    ("kernels", "allocations", "flows"),
    ("spans", "device_spans", "collectives", "nccl"),
    ("stacks",),
    ("samples",),
)
_THINNABLE: Final = frozenset(name for names in ORDER for name in names)
_GIB: Final = 1 << 30
#: Unless a limit is given: this part of the disk, but no more than so many bytes, since a disk may
#: be that of a whole cluster, and each node has a limit of its own; and, as far as half of the disk
#: has room for them, no fewer than so many.
_PART_OF_DISK: Final = 10
_USUAL_LEAST, _USUAL_MOST = _GIB, 100 * _GIB
#: This part of the limit is made free at a time, and as much of each kind of records stays while
#: there is anything else to remove: what happened last explains most.
_SLACK: Final = 16
#: Growing streams have this part of the limit together, in segments between these sizes.
_GROWING: Final = 8
_FEWEST_STREAMS: Final = 8
_LEAST_SEGMENT: Final = 64 << 10
MOST_SEGMENT: Final = 64 << 20
#: The next segment of a table is compressed to no more than so many times the share of the last.
_MARGIN: Final = 2.0
#: What could not be removed is tried again after so long, s.
_AGAIN_SECONDS: Final = 60.0
#: Times of files go on in steps of up to this much, ns.
_COARSE_NS: Final = 10_000_000
_NAME: Final = re.compile(r"([a-z_]+)-([0-9]{1,18})\.arrows?")


class _Segment(NamedTuple):
    """A segment that does not grow any more."""

    folder: str
    name: str
    table: str
    number: int
    bytes: int
    #: All its rows are from before, ns UTC.
    until: int
    #: None: not counted yet.
    rows: int | None


def limit_of(gib: float, folder: Folder) -> int:
    """Return the limit in bytes that the option ``storage_limit`` means on the disk of a folder."""
    if gib:
        return int(gib * _GIB)
    try:
        disk = os.fstatvfs(folder.fd)
    except OSError:
        return _USUAL_MOST
    size = disk.f_blocks * disk.f_frsize
    if not size:
        return _USUAL_MOST
    return min(max(size // _PART_OF_DISK, min(_USUAL_LEAST, size // 2)), _USUAL_MOST)


class Part:
    """The tables of one folder, as those who write them know the limit."""

    def __init__(self, storage: Storage, files: Folder, now: Callable[[], int]) -> None:
        """Write into ``files``; ``now`` returns the time, ns UTC, as the rows have it."""
        self._storage, self._now = storage, now
        #: While somebody writes into it: nothing that takes the folder's name is meant.
        self.files: Folder | None = files
        self._name = files.path.name

    @property
    def segment_bytes(self) -> int:
        """A stream is closed into a file when it has grown to this many bytes."""
        return self._storage.segment_bytes

    def grow(self, name: str, size: int) -> None:
        """Make room for a stream that is about to have this size."""
        self._storage.grow(self._name, name, size)

    def closing(self, name: str, size: int) -> None:
        """Make room for the file that a stream of this size is closed into, beside it."""
        self._storage.closing(name, size)

    def closed(self, files: Folder, name: str, rows: int) -> None:
        """Take note that a stream has become a file, or stays as it is for ever."""
        self._storage.closed(files, name, rows, self._now())

    def end(self) -> None:
        """Let go of the folder."""
        self.files = None


class Storage:
    """The tables that a node's recorders have written into a run."""

    def __init__(self, run: Folder, node: str, limit: int) -> None:
        """Look for what earlier recorders of the node have left in the run.

        Args:
            run: folder of the run.
            node: name of the node, which its folders begin with.
            limit: how many bytes its tables may take.
        """
        self._run, self._limit = run, limit
        self._parts: dict[str, Part] = {}
        #: By folder, then by name.
        self._segments: dict[str, dict[str, _Segment]] = {}
        self._growing: dict[tuple[str, str], int] = {}
        #: What the last closed segment of a table was of its stream.
        self._shares: dict[str, float] = {}
        self._bytes = 0
        self._again_at = 0.0
        #: What could not be done, and whether it was passed on.
        self._remarks: dict[str, bool] = {}
        with contextlib.suppress(OSError):
            own = re.compile(re.escape(node) + r"(\.[0-9]+)?")
            for name in run.names():
                if name.startswith(f"{node}#") or own.fullmatch(name):
                    self._adopt(name)

    def _adopt(self, name: str) -> None:
        """Count a folder, unless another recorder may still write it."""
        with contextlib.suppress(OSError):
            folder = self._run.folder(name)
            known = read_process_file(folder)
            if known is not None and not _is_written(known):
                with _locked(folder):
                    self._look(folder)

    def part(self, files: Folder, now: Callable[[], int]) -> Part:
        """Return the part of a run that a folder is, for whoever writes it; nobody else does."""
        known = self._parts.get(files.path.name)
        if known is None or known.files is None:
            known = self._parts[files.path.name] = Part(self, files, now)
            with contextlib.suppress(OSError):
                self._look(files)
        return known

    @property
    def bytes(self) -> int:
        """What the tables take now."""
        return self._bytes

    @property
    def segment_bytes(self) -> int:
        """A stream is closed into a file when it has grown to this many bytes."""
        each = self._limit // _GROWING // max(len(self._growing), _FEWEST_STREAMS)
        return min(max(each, _LEAST_SEGMENT), MOST_SEGMENT)

    def remarks(self) -> list[str]:
        """Return what could not be done, each once, since the last call."""
        new = [text for text, passed_on in self._remarks.items() if not passed_on]
        self._remarks |= dict.fromkeys(new, True)
        return new

    # -- what there is ---------------------------------------------------------------------------

    def _look(self, files: Folder) -> None:
        """Count what is in a folder, and finish what an earlier recorder was about to remove."""
        folder = files.path.name
        self._forget(folder)
        note = _read_note(files)
        if note["removing"]:
            _finish(files, note)
        found = self._segments.setdefault(folder, {})
        for name in files.names():
            match = _NAME.fullmatch(name)
            if match is None or not files.has(name):
                continue
            about = files.stat(name)
            if name.endswith(schema.LIVE_SUFFIX):
                self._growing[folder, name] = about.st_size
            else:
                until = about.st_mtime_ns + _COARSE_NS
                number = int(match[2])
                found[name] = _Segment(folder, name, match[1], number, about.st_size, until, None)
            self._bytes += about.st_size

    def _forget(self, folder: str) -> None:
        for segment in self._segments.pop(folder, {}).values():
            self._bytes -= segment.bytes
        for key in [key for key in self._growing if key[0] == folder]:
            self._bytes -= self._growing.pop(key)

    def grow(self, folder: str, name: str, size: int) -> None:
        """Make room for a stream that is about to have this size."""
        more = size - self._growing.get((folder, name), 0)
        self._growing[folder, name] = size
        self.make_room(more)
        self._bytes += more

    def closing(self, name: str, size: int) -> None:
        """Make room for the file that a stream of this size is closed into, beside it."""
        match = _NAME.fullmatch(name)
        share = self._shares.get(match[1], 1.0) if match else 1.0
        self.make_room(int(size * min(1.0, _MARGIN * share)))

    def closed(self, files: Folder, name: str, rows: int, now: int) -> None:
        """Count the file that a stream has become; where it could not be closed, the stream."""
        folder = files.path.name
        before = self._growing.pop((folder, name), 0)
        self._bytes -= before
        match = _NAME.fullmatch(name)
        closed = name.removesuffix(schema.LIVE_SUFFIX) + schema.CLOSED_SUFFIX
        there = next((each for each in (closed, name) if files.has(each)), None)
        if match is None or there is None:
            return
        with contextlib.suppress(OSError):
            size = files.stat(there).st_size
            self._segments.setdefault(folder, {})[there] = _Segment(
                folder, there, match[1], int(match[2]), size, now, rows
            )
            self._bytes += size
            self._shares[match[1]] = size / max(before, 1)
            self._again_at = 0.0

    # -- what is too much ------------------------------------------------------------------------

    def make_room(self, more: int) -> None:
        """Remove the oldest segments if there is no room for so many bytes more."""
        if self._bytes + more <= self._limit or time.monotonic() < self._again_at:
            return
        chosen: dict[str, list[_Segment]] = {}
        for segment in self._choose(more):
            chosen.setdefault(segment.folder, []).append(segment)
        for folder, segments in chosen.items():
            try:
                self._remove(folder, segments)
            except BlockingIOError:  # another recorder of the node thins it right now
                pass
            except (FileNotFoundError, NotADirectoryError):
                self._forget(folder)  # somebody has removed it
            except OSError as error:
                self._remark(f"{error.filename or folder} cannot be thinned: {error.strerror}")
        if self._bytes + more > self._limit:
            self._again_at = time.monotonic() + _AGAIN_SECONDS
            self._remark(
                f"the tables of this node take more than the limit of {gib(self._limit)} "
                "(storage_limit), and nothing more can be removed"
            )

    def _remark(self, text: str) -> None:
        if text not in self._remarks:
            log.warning("%s", text)
            self._remarks[text] = False

    def _choose(self, more: int) -> Iterator[_Segment]:
        """Yield what is to be removed."""
        left = self._bytes + more
        candidates = self._candidates()
        slack = self._limit // _SLACK
        for floor, goal in ((slack, self._limit - slack), (0, self._limit)):
            for tables in ORDER:
                mine = candidates[tables]
                size = sum(segment.bytes for segment in mine)
                while mine and left > goal and size > floor:
                    oldest = mine.pop()
                    size -= oldest.bytes
                    left -= oldest.bytes
                    yield oldest

    def _candidates(self) -> dict[tuple[str, ...], list[_Segment]]:
        """Return what may be removed, the oldest last.

        Of each table of a folder the last segment stays. It says how far the ring was read, and
        where the numbers go on: no name ever means another file than the one that a note names.
        """
        last: dict[tuple[str, str], int] = {}
        for folder, name in self._growing:
            _count(last, folder, name)
        for segments in self._segments.values():
            for segment in segments.values():
                _count(last, segment.folder, segment.name)
        found: dict[tuple[str, ...], list[_Segment]] = {tables: [] for tables in ORDER}
        kinds = {table: tables for tables in ORDER for table in tables}
        for segments in self._segments.values():
            for segment in segments.values():
                newest = last[segment.folder, segment.table]
                if segment.table in kinds and segment.number < newest:
                    found[kinds[segment.table]].append(segment)
        for mine in found.values():
            mine.sort(key=lambda segment: (-segment.until, segment.folder, -segment.number))
        return found

    def _remove(self, folder: str, segments: Iterable[_Segment]) -> None:
        """Remove segments of one folder.

        Raises:
            OSError: nothing was removed that was not written down.
        """
        part = self._parts.get(folder)
        with contextlib.ExitStack() as stack:
            files = part.files if part is not None else None
            if files is None:
                files = self._run.folder(folder)
                stack.enter_context(_locked(files))
            there = [segment for segment in segments if files.has(segment.name)]
            if there:
                note = _read_note(files)
                _add(note, there, files, self._limit)
                _write_note(files, note)
                _finish(files, note)
        known = self._segments[folder]
        for segment in segments:
            del known[segment.name]
            self._bytes -= segment.bytes


def gib(size: int) -> str:
    """Return a size in GiB, for people."""
    return f"{size / _GIB:.4g} GiB"


def _is_written(known: Mapping[str, Any]) -> bool:
    """Say whether a process that a ``process.json`` describes may still be recorded."""
    pid, started = whole(known, "pid"), whole(known, "start_time")
    if known.get("state") != "live":
        return False
    elsewhere = known.get("host") != os.uname().nodename
    return elsewhere or pid is None or started is None or process_is_alive(pid, started)


@contextlib.contextmanager
def _locked(files: Folder) -> Iterator[None]:
    """Have a folder that nobody writes for oneself: a node's name may have several recorders.

    Raises:
        BlockingIOError: somebody else has it.
    """
    try:
        fcntl.flock(files.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(files.fd, fcntl.LOCK_UN)


def _count(last: dict[tuple[str, str], int], folder: str, name: str) -> None:
    match = _NAME.fullmatch(name)
    if match is not None:
        key = folder, match[1]
        last[key] = max(int(match[2]), last.get(key, 0))


# -- the note ------------------------------------------------------------------------------------


def _read_note(files: Folder) -> dict[str, Any]:
    """Return the note of a folder; an empty one if there is none, or one that makes no sense."""
    known: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        known = json.loads(files.read(schema.THINNED_FILE))
    known = known if isinstance(known, dict) else {}
    tables, removing = known.get("tables"), known.get("removing")
    return {
        "format": schema.THINNED_FORMAT,
        "version": f"{schema.MAJOR}.{schema.MINOR}",
        "limit_bytes": whole(known, "limit_bytes") or 0,
        "tables": {
            table: {field: whole(entry, field) or 0 for field in schema.THINNED_FIELDS}
            for table, entry in (tables if isinstance(tables, dict) else {}).items()
            if table in _THINNABLE and isinstance(entry, dict)
        },
        "removing": [
            name
            for name in (removing if isinstance(removing, list) else [])
            if isinstance(name, str)
            and (match := _NAME.fullmatch(name)) is not None
            and match[1] in _THINNABLE
        ],
    }


def _add(note: dict[str, Any], segments: Iterable[_Segment], files: Folder, limit: int) -> None:
    """Add what is about to be removed to a note."""
    note["limit_bytes"] = limit
    for segment in segments:
        if segment.name in note["removing"]:
            continue  # counted when it could not be removed
        rows = segment.rows
        if rows is None:
            from haiprof.recorder.closing import rows_of

            rows = rows_of(files, [segment.name])
        entry = note["tables"].setdefault(segment.table, dict.fromkeys(schema.THINNED_FIELDS, 0))
        entry["segments"] += 1
        entry["rows"] += rows
        entry["bytes"] += segment.bytes
        entry["until_ns"] = max(entry["until_ns"], segment.until)
        note["removing"].append(segment.name)


def _write_note(files: Folder, note: Mapping[str, Any]) -> None:
    """Bring a note to stable storage.

    Raises:
        OSError: it cannot be written; the one before is untouched.
    """
    with files.replacing(schema.THINNED_FILE) as file:
        file.write(f"{json.dumps(note, indent=1)}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    os.fsync(files.fd)


def _finish(files: Folder, note: dict[str, Any]) -> None:
    """Remove the segments that a note says are removed."""
    for name in note["removing"]:
        if files.has(name):
            files.remove(name)
    note["removing"] = []
    # So that no later recorder has to look for them: it may be lost.
    with contextlib.suppress(OSError):
        write_json(files, schema.THINNED_FILE, note)
