"""Imports what rocprofv3 wrote about one process."""

from __future__ import annotations

from collections.abc import Callable

from haiprof.errors import HaiprofError
from haiprof.sources.imports.imported import Imported
from haiprof.sources.imports.segments import Segments
from haiprof.sources.rocprof import from_csv, from_json, trace


def read(imported: Imported, segments: Segments, on_bytes: Callable[[int], None]) -> None:
    """Read one process; see :data:`haiprof.sources.imports.formats.Read`.

    Raises:
        HaiprofError: its files are damaged, or have no record.
        OSError: they cannot be read.
    """
    source = imported.source
    read_form = from_json.read if source.part is None else from_csv.read
    trace.write(read_form(imported), imported, segments)
    if imported.begin is None:
        raise HaiprofError(
            f"{source.path}: has no kernels, copies, calls or ranges: record with --sys-trace, or "
            "with --kernel-trace, --hip-trace, --memory-copy-trace and --marker-trace"
        )
    on_bytes(source.bytes)
