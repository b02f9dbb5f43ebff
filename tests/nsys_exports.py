"""Exports of Nsight Systems: real ones, and small ones made by hand.

The small ones have the tables of the real ones, and of their columns those that are read.
"""

from __future__ import annotations

import functools
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from real_data import DATA, need

REAL = ("h100_2gpu_1s", "mock")
_ARCHIVE = DATA / "other" / "nsys.tar.xz"
#: Of the process and of the first thread of a pid.
VM = 1 << 48
START_NS = 1_700_000_000_000_000_000


def key(pid: int) -> int:
    """The ``globalPid`` of a process."""
    return VM | pid << 24


@functools.cache
def _unpacked() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="haiprof-nsys-")
    with tarfile.open(_ARCHIVE) as archive:
        archive.extractall(folder.name, filter="data")
    return folder


def real(name: str) -> Path:
    """One of :data:`REAL`; the test that asks is skipped without the data."""
    need(_ARCHIVE)
    (found,) = Path(_unpacked().name).rglob(f"{name}.sqlite")
    return found


class Export:
    """A small export being made; texts get their ids by themselves."""

    def __init__(self, file: Path, environment: Mapping[str, str] | None = None) -> None:
        """Make the file, with one session and a StringIds."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file
        self._texts: dict[str, int] = {}
        self._connection = sqlite3.connect(file)
        self._connection.execute("create table StringIds (id integer primary key, value text)")
        self.add("TARGET_INFO_SESSION_START_TIME", [{"utcEpochNs": START_NS}])
        self.add("TARGET_INFO_SYSTEM_ENV", [{"name": "Hostname", "value": "node7"}])
        self.add(
            "META_DATA_CAPTURE",
            [
                {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": f'{name}="{value}"'}
                for name, value in (environment or {}).items()
            ],
        )

    def text(self, value: str) -> int:
        """The id of a text."""
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self._connection.execute(
                "insert into StringIds values (?, ?)", (self._texts[value], value)
            )
        return self._texts[value]

    def add(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Add rows; the first ones say which columns the table has."""
        rows = list(rows)
        if not rows:
            return
        columns = list(rows[0])
        names = ", ".join(f'"{name}"' for name in columns)
        self._connection.execute(f"create table if not exists {table} ({names})")
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(
            f"insert into {table} values ({marks})", ([row[c] for c in columns] for row in rows)
        )

    def kernel(self, name: str, start: Any, end: int, pid: int = 10, **further: Any) -> None:
        """Add a kernel."""
        row = {
            "start": start, "end": end, "deviceId": 0, "streamId": 7, "correlationId": 0,
            "globalPid": key(pid), "demangledName": self.text(name), "shortName": self.text(name),
            "gridX": 1, "gridY": 1, "gridZ": 1, "graphId": None, "graphNodeId": None,
        }  # fmt: skip
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", [row | further])

    def call(self, name: str, start: int, end: int, pid: int = 10, correlation: int = 0) -> None:
        """Add a call of CUDA."""
        row = {"start": start, "end": end, "globalTid": key(pid) + pid,
               "correlationId": correlation, "nameId": self.text(name)}  # fmt: skip
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", [row])

    def range(
        self, text: str | None, start: int, end: int | None, pid: int = 10, **further: Any
    ) -> None:
        """Add a range of NVTX, whose text stands in the row."""
        row = {
            "start": start, "end": end, "eventType": 59, "text": text, "textId": None,
            "globalTid": key(pid) + pid, "domainId": 0, "jsonText": None,
        }  # fmt: skip
        self.add("NVTX_EVENTS", [row | further])

    def done(self) -> Path:
        """Close the file and return it."""
        self._connection.commit()
        self._connection.close()
        return self.file


def small(file: Path, environment: Mapping[str, str] | None = None, slower: int = 1) -> Path:
    """Two steps, an operator with a kernel in each."""
    export = Export(file, environment)
    for step in range(2):
        at = 1000 * step
        export.range(f"step {step}", at, at + 900)
        export.range(f"aten::mm, seq = {step}, op_id = {step + 1}", at + 10, at + 60)
        export.call("cudaLaunchKernel_v7000", at + 20, at + 30, correlation=step + 1)
        export.kernel("gemm", at + 100, at + 100 + 200 * slower, correlationId=step + 1)
    return export.done()
