"""Imports one trace file: parses it piece by piece, and writes its tables into a folder.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources.imports.imported import Imported, gpu, whole
from haiprof.sources.imports.segments import Segments, extent, time_of
from haiprof.sources.kineto import words
from haiprof.sources.kineto.columns import FAR, Group
from haiprof.sources.kineto.problems import cut_lines, problem_lines
from haiprof.sources.kineto.rows import Rows
from haiprof.sources.kineto.stream import Pieces

#: Bytes of JSON text per segment: memory does not grow with the file.
_SEGMENT: Final = 32 << 20
#: At most this many unknown categories are named.
_NAMED: Final = 10
#: Header members kept unchanged -> their names here.
_KEPT: Final = ("distributedInfo", "deviceProperties", "schemaVersion", "host_name")


def read(imported: Imported, segments: Segments, on_bytes: Callable[[int], None]) -> None:
    """Read one trace file; see :data:`haiprof.sources.imports.formats.Read`.

    Raises:
        HaiprofError: nothing of it can be read.
    """
    _File(imported, segments).read(on_bytes)


class _File:
    def __init__(self, imported: Imported, segments: Segments) -> None:
        self._imported = imported
        self._segments = segments
        self._rows = Rows()
        #: Texts taken from the parser.
        self._texts = 0
        #: File of each segment, and the base that its times count from.
        self._written: list[tuple[Path, int]] = []

    def read(self, on_bytes: Callable[[int], None]) -> None:
        from haiprof import _core

        parser = _core.TraceParser(dict(words.ROUTES), list(words.WITH_ARGUMENTS))
        # One segment is written while the next is parsed.
        with Pieces(self._imported.source.path) as pieces, ThreadPoolExecutor(1) as writer:
            known = waiting = 0
            writing: Future[None] | None = None
            for piece in pieces:
                parser.feed(piece)
                on_bytes(pieces.consumed - known)
                known = pieces.consumed
                waiting += len(piece)
                if waiting >= _SEGMENT:
                    if writing is not None:
                        writing.result()
                    writing = writer.submit(self._take, *self._segment(parser))
                    waiting = 0
            if writing is not None:
                writing.result()
        parser.finish()
        self._take(*self._segment(parser))
        self._report_problems(parser, pieces.broken)
        self._move(_base(parser.header))
        _describe(self._imported, _header(parser.header), self._rows.devices)

    def _segment(self, parser: Any) -> tuple[dict[str, Group], list[str], int]:
        """Take what was parsed since the last segment: its rows, its new texts, its base."""
        groups: dict[str, Group] = parser.take()
        texts: list[str] = parser.strings(self._texts)
        self._texts += len(texts)
        return groups, texts, _base(parser.header)

    def _take(self, groups: dict[str, Group], texts: list[str], base: int) -> None:
        self._rows.texts.extend(texts)
        for name, rows in self._rows.tables(groups, base).items():
            self._write(name, rows, base)
        if self._imported.pid is None:
            self._imported.pid = self._rows.host_process(groups.get("metadata"))

    def _write(self, name: str, rows: pa.Table, base: int) -> None:
        self._written.append((self._segments.write(name, rows), base))

    def _move(self, base: int) -> None:
        """Shift the times of segments that were written before the file stated its base."""
        late = [(file, base - used) for file, used in self._written if used != base]
        if not late:
            return
        import pyarrow.compute as pc

        for file, by in late:
            with pa.OSFile(str(file)) as opened:
                rows = pa.ipc.open_file(opened).read_all()
            time = time_of(rows)
            at = rows.schema.get_field_index(time)
            moved = rows.set_column(at, rows.schema.field(at), pc.add(rows.column(at), by))
            self._segments.write_over(file, moved)
        if self._imported.begin is not None and self._imported.end is not None:
            self._imported.begin, self._imported.end = self._extent_of_all()

    def _extent_of_all(self) -> tuple[int, int]:
        found = []
        for file, _ in self._written:
            with pa.OSFile(str(file)) as opened:
                found.append(extent(pa.ipc.open_file(opened).read_all()))
        return min(begin for begin, _ in found), max(end for _, end in found)

    def _report_problems(self, parser: Any, broken: str | None) -> None:
        """Report what is missing, one line each.

        Raises:
            HaiprofError: everything is.
        """
        path = self._imported.source.path
        found: Mapping[str, tuple[int, int, str]] = parser.problems
        if not self._written:
            raise HaiprofError(f"{path}: {_why_nothing(found, parser.events, broken)}")
        self._imported.problems = [
            f"{path}: {line}"
            for line in (
                *cut_lines(parser.truncated, broken),
                *problem_lines(found),
                *_left_out_lines(self._rows),
            )
        ]


def _left_out_lines(rows: Rows) -> Iterator[str]:
    for name, count in rows.unknown.most_common(_NAMED):
        said = f"'cat' is {printable(name)[:60]!r}" if name else "'cat' is missing"
        yield f"{said} in {count} events: left out, since haiprof does not know what they are"
    if len(rows.unknown) > _NAMED:
        count = rows.unknown.total() - sum(n for _, n in rows.unknown.most_common(_NAMED))
        yield f"{count} events of {len(rows.unknown) - _NAMED} more such 'cat': left out"
    for what, count in rows.refused.items():
        if count:
            yield f"{what} in {count} events: left out"


def _why_nothing(found: Mapping[str, tuple[int, int, str]], events: int, broken: str | None) -> str:
    give = "give a trace of torch.profiler"
    if events:
        return f"none of its {events} events is one that torch.profiler writes: {give}"
    if broken is not None:
        return f"is damaged: {broken}: copy it again from where it was written"
    for what in found:
        if what == "file is empty":
            return "is empty: see whether the job could write it"
        if what.startswith(("file", "traceEvents")):
            return f"is not a trace ({what.replace('file', 'it')}): {give}"
    return f"has no events: {give}"


def _header(header: Mapping[str, str]) -> dict[str, Any]:
    return {name: _json(header[name]) for name in _KEPT if name in header}


def _base(header: Mapping[str, str]) -> int:
    base = _json(header.get("baseTimeNanoseconds", "0"))
    try:
        base = int(base)
    except (TypeError, ValueError, OverflowError):
        return 0
    return base if 0 <= base < FAR else 0


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _describe(imported: Imported, header: Mapping[str, Any], devices: set[int]) -> None:
    """Take over what the header says of the process."""
    distributed = header.get("distributedInfo")
    imported.distributed = distributed if isinstance(distributed, dict) else {}
    imported.rank = whole(imported.distributed.get("rank"))
    imported.world_size = whole(imported.distributed.get("world_size"))
    host = header.get("host_name")
    imported.host = host if isinstance(host, str) and host else None
    imported.version = whole(header.get("schemaVersion"))
    imported.gpus = _gpus(header, devices)


def _gpus(header: Mapping[str, Any], devices: set[int]) -> list[dict[str, Any]]:
    """Return the GPUs that ran something; a file lists all GPUs of its machine."""
    listed = header.get("deviceProperties")
    known = {
        whole(row.get("id")): row
        for row in (listed if isinstance(listed, list) else [])
        if isinstance(row, dict)
    }
    return [_gpu(device, known.get(device, {})) for device in sorted(devices)]


def _gpu(device: int, properties: dict[str, Any]) -> dict[str, Any]:
    name = properties.get("name")
    major, minor = whole(properties.get("computeMajor")), whole(properties.get("computeMinor"))
    return gpu(
        device,
        name if isinstance(name, str) else "",
        memory_bytes=whole(properties.get("totalGlobalMem")),
        multiprocessors=whole(properties.get("numSms")),
        capability=None if major is None or minor is None else (major, minor),
    )
