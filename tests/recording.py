"""Starts programs that record, and reads what lies on disk afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import warm_programs

from haiprof.recorder.arrow_stream import END, Batch, StreamWriter


def python(
    program: str, *arguments: str, warm: bool = False, **keywords: Any
) -> subprocess.Popen[str] | warm_programs.Program:
    """Start a Python program given as text; its output is text too.

    One that is ``warm`` begins with torch imported, see :mod:`warm_programs`.
    """
    if warm:
        return warm_programs.start(textwrap.dedent(program), *arguments, **keywords)
    keywords.setdefault("stdout", subprocess.PIPE)
    keywords.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], text=True, **keywords
    )


def run_python(program: str, *arguments: str, **keywords: Any) -> str:
    """Run a Python program to its successful end and return what it printed."""
    process = python(program, *arguments, **keywords)
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out


def wait_for(condition: Callable[[], Any], seconds: float = 120.0, what: str = "it") -> Any:
    """Wait until ``condition()`` is true and return what it returned."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)


def read_table(folder: Path, name: str, *, pauses: bool = False) -> pa.Table:
    """Read all segments of one table of one folder; dictionaries become plain strings.

    Spans of the garbage collector's pauses, which come when they want, are left out unless
    ``pauses`` are wanted.
    """
    parts = []
    for path in sorted(folder.glob(f"{name}-*.arrow")):
        parts.append(pa.ipc.open_file(pa.OSFile(os.fsencode(path))).read_all())
    for path in sorted(folder.glob(f"{name}-*.arrows")):
        if path.stat().st_size == 0:
            continue  # just made
        with path.open("rb") as file:
            stream = pa.ipc.open_stream(file)
            batches = []
            while True:
                try:
                    batches.append(stream.read_next_batch())
                except (StopIteration, pa.ArrowInvalid, OSError):
                    break
            parts.append(pa.Table.from_batches(batches, stream.schema))
    plain = []
    for part in parts:
        columns = [c.cast(pa.utf8()) if pa.types.is_dictionary(c.type) else c for c in part.columns]
        plain.append(pa.table(columns, names=part.column_names))
    table = pa.concat_tables(plain) if plain else pa.table({})
    if pauses or name != "spans" or not plain:
        return table
    return table.filter(pc.field("category") != "gc")


def read_back(batch: Batch) -> pa.Table:
    """Return a recorder's batch as whoever reads its stream gets it."""
    writer = StreamWriter(batch.table)
    table = pa.ipc.open_stream(writer.begin() + writer.batch(batch, {}) + END).read_all()
    table.validate(full=True)
    return table


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    """Return its rows."""
    rows: list[dict[str, Any]] = read_back(batch).to_pylist()
    return rows


def process_file(folder: Path) -> dict[str, Any]:
    """Read ``process.json`` of a folder."""
    content: dict[str, Any] = json.loads((folder / "process.json").read_text())
    return content


def _command(process: Path) -> bytes:
    """Return its words: one that is just being started has none for a moment, and a program."""
    until = time.monotonic() + 1.0
    while not (command := (process / "cmdline").read_bytes()) and (process / "exe").exists():
        if time.monotonic() > until:
            break
        time.sleep(0.001)
    return command


def recorders(shm: Path) -> list[int]:
    """Return the pids of the recorders whose rings lie below ``shm``."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = _command(entry)
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if b"haiprof.recorder" in command and os.fsencode(shm) in command and state != "Z":
                parents[int(entry.name)] = int(parent)
    # What a recorder starts looks like the recorder until it runs its own program.
    return [pid for pid, parent in parents.items() if parent not in parents]


def the_recorder(shm: Path) -> int:
    """Return the pid of the recorder; of two that began at once, one leaves."""
    pid: int = wait_for(lambda: len(found := recorders(shm)) == 1 and found[0], what="one recorder")
    return pid


def wait_recorded(shm: Path, seconds: float = 120.0) -> None:
    """Wait until no recorder of ``shm`` is left."""
    wait_for(lambda: not recorders(shm), seconds, "the recorder's end")
