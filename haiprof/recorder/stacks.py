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
from haiprof.recorder.tables import RowTable

log = logging.getLogger(__name__)

_UNKNOWN: Final = "stacks are read of CPython 3.10 to 3.13 with the GIL, and this is another Python"
_NOT_IT: Final = "its process had ended, or runs as another user"


class ProcessStacks:
    """Takes what was sampled of a process, and writes it."""

    def __init__(
        self, sampler: StackSampler | None, ring: Path, header: Mapping[str, Any], files: Folder
    ) -> None:
        """Begin to sample it.

        Args:
            sampler: of this recorder; None: no stacks are sampled.
            ring: its file, whose owner the process must have, too.
            header: of its ring.
            files: the folder of its tables.
        """
        self._sampler = sampler
        self._pid: int = header["pid"]
        self._problem = ""
        self._counts: dict[str, Any] = {"torn": 0, "dropped": 0, "cut": 0}
        self._hz = 0.0 if sampler is None else sampler.hz
        self._tables = {table.name: RowTable(table) for table in (schema.FRAMES, schema.STACKS)}
        # Frames first: what names them comes behind.
        self._writers = {name: TableWriter(files, schema.TABLES[name]) for name in self._tables}
        if sampler is None:
            return
        if header["python"] is None:
            self._problem = _UNKNOWN
        elif not sampler.watch(
            self._pid,
            header["start_time"],
            ring.stat().st_uid,
            header["python"],
            rows_on_disk(files, schema.FRAMES),
        ):
            self._problem = _NOT_IT
        if self._problem:
            self._sampler = None

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
        return {"hz": self._hz, **self._counts, "problem": self._problem or None}

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
        self._problem = counts["problem"]
        self._counts = {name: counts[name] for name in self._counts}
        take = self._sampler.unwatch if last else self._sampler.take
        samples, nodes = take(self._pid)
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
