"""The stacks of one process and its workers, as tables in its folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof._core import StackSampler
from haiprof.common.owned_files import Folder
from haiprof.recorder.segments import TableWriter, rows_on_disk
from haiprof.recorder.storage import Part
from haiprof.recorder.tables import RowTable

log = logging.getLogger(__name__)

_UNKNOWN: Final = "stacks are read of CPython 3.10 to 3.14 with the GIL, and this is another Python"
#: What is counted, see :meth:`StackSampler.counts`.
_COUNTS: Final = ("torn", "dropped", "cut")
_NOT_IT: Final = "its process had ended, or runs as another user"


class ProcessStacks:
    """Takes what was sampled of a process, and writes it."""

    def __init__(
        self,
        sampler: StackSampler | None,
        ring: Path,
        header: Mapping[str, Any],
        files: Folder,
        before: Mapping[str, Any] | None = None,
        part: Part | None = None,
    ) -> None:
        """Begin to sample it.

        Args:
            sampler: of this recorder; None: no stacks are sampled.
            ring: its file, whose owner the process must have, too.
            header: of its ring.
            files: the folder of its tables.
            before: what :meth:`described` of an earlier recorder returned.
            part: that folder as a part of what is limited.
        """
        self._sampler = sampler
        self._pid: int = header["pid"]
        self._problem = ""
        self._read = False  # whether anything was sampled
        self._before = _of_earlier(before)
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._hz = self._before["hz"] if sampler is None else sampler.hz
        self._tables = {table.name: RowTable(table) for table in (schema.FRAMES, schema.STACKS)}
        # Frames first: what names them comes behind.
        self._writers = {
            name: TableWriter(files, schema.TABLES[name], part) for name in self._tables
        }
        if sampler is not None:
            self._problem = self._watch(sampler, ring, header, files) or ""
            # Of one that an earlier recorder has sampled to its end nothing is missing.
            self._problem = "" if before and self._problem == _NOT_IT else self._problem

    def _watch(
        self, sampler: StackSampler, ring: Path, header: Mapping[str, Any], files: Folder
    ) -> str | None:
        """Have it sampled; return why it is not."""
        layout = header["python"]
        if layout is None:
            why: str | None = _UNKNOWN
        else:
            first = rows_on_disk(files, schema.FRAMES)
            try:
                owner, started = ring.stat().st_uid, header["start_time"]
                is_it = sampler.watch(self._pid, started, owner, layout, first)
                why = None if is_it else _NOT_IT
            except ValueError as error:
                why = f"its ring describes no Python: {error}"
        if why is not None:
            self._sampler = None
        return why

    @property
    def rows(self) -> int:
        """How many rows wait to be encoded."""
        return sum(len(table) for table in self._tables.values())

    @property
    def waiting(self) -> bool:
        """Whether something encoded is not on disk yet."""
        return any(writer.waiting for writer in self._writers.values())

    def described(self) -> dict[str, Any]:
        """Return what ``process.json`` says of them: counts, and why there are none."""
        counts = {name: self._before[name] + count for name, count in self._counts.items()}
        return {"hz": self._hz, **counts, "problem": self._problem or None}

    def collect(self, utc_offset_ns: int | None, *, last: bool = False) -> None:
        """Take what was sampled since.

        Args:
            utc_offset_ns: from CLOCK_MONOTONIC to the times of the tables; None: not known yet.
            last: take what still goes on, too, and sample no more.
        """
        if self._sampler is None or (utc_offset_ns is None and not last):
            return
        self._hz = self._sampler.hz
        counts = self._sampler.counts(self._pid)
        self._counts = {name: counts[name] for name in _COUNTS}
        take = self._sampler.unwatch if last else self._sampler.take
        samples, nodes = take(self._pid)
        self._read = self._read or bool(samples)
        # What has stopped recording lets us read no more, and that is not why stacks are missing.
        if not last or self._problem or not self._read:
            self._problem = counts["problem"]
        if last:
            self._sampler = None
        if utc_offset_ns is None:
            return
        for node in nodes:
            self._tables["frames"].add(*node)
        for time, *others in samples:
            self._tables["stacks"].add(time + utc_offset_ns, *others)

    def prepare(self) -> None:
        """Open the files of rows that wait, so that :meth:`write` cannot fail.

        Raises:
            OSError: a file cannot be created.
        """
        for name, table in self._tables.items():
            if len(table):
                self._writers[name].prepare()

    def write(self) -> None:
        """Encode the rows that wait; :meth:`prepare` comes first."""
        for name, table in self._tables.items():
            if len(table):
                self._writers[name].append(table.take())

    def push(self) -> None:
        """Write to disk what is encoded.

        Raises:
            OSError: there is no room for it yet.
        """
        for writer in self._writers.values():
            writer.push()
        for name, table in self._tables.items():
            table.renew(self._writers[name])

    def sync(self) -> None:
        """Write what waits and bring it to stable storage."""
        for writer in self._writers.values():
            writer.sync()

    def close(self) -> None:
        """Close the files.

        Raises:
            OSError: something still waits and does not fit; call again.
        """
        for writer in self._writers.values():
            writer.close()


def _of_earlier(known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return rate and counts of an earlier recorder, 0 where a file does not have them."""
    known = known or {}
    counts = {name: count if type(count := known.get(name)) is int else 0 for name in _COUNTS}
    hz = known.get("hz")
    return {"hz": float(hz) if isinstance(hz, (int, float)) else 0.0, **counts}
