"""Which tools' traces can be read, and which of them a path contains.

Tests: tests/sources/paddle/test_paddle.py.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources import found as tools
from haiprof.sources.found import Found, Source
from haiprof.sources.imports.imported import Imported

if TYPE_CHECKING:
    from haiprof.sources.imports.segments import Segments

#: Finds a tool's traces at a path; None if there are none.
Find = Callable[[str], Found | None]
OnBytes = Callable[[int], None]
#: Reads the trace of one process: fills its result, and writes its tables. It calls its third
#: argument with the bytes read since the last call; an exception from that ends the import.
Read = Callable[[Imported, "Segments", OnBytes], None]


def find(path: str) -> Found | None:
    """Find the traces at ``path``; None if it is a folder without any, itself and one level down.

    Args:
        path: a trace, a folder of them, a run of haiprof with deep traces, or (of torch.profiler)
            a URL of fsspec of a file or a folder.

    Raises:
        HaiprofError: there is nothing, it cannot be read, or several runs lie in the folder.
    """
    from haiprof.sources.ascend.find import find as ascend
    from haiprof.sources.kineto.find import find as kineto
    from haiprof.sources.megatron.find import find as megatron
    from haiprof.sources.nsys.find import find as nsys
    from haiprof.sources.nsys_csv.find import find as nsys_csv
    from haiprof.sources.paddle.find import find as paddle
    from haiprof.sources.rocprof.find import find as rocprof
    from haiprof.sources.straggler.find import find as straggler
    from haiprof.sources.torch_memory.find import find as torch_memory

    # torch.profiler comes last: it takes any JSON for its own.
    finders = {
        tools.ASCEND: ascend,
        tools.NSYS: nsys,
        tools.NSYS_CSV: nsys_csv,
        tools.PADDLE: paddle,
        tools.MEGATRON: megatron,
        tools.ROCPROF: rocprof,
        tools.STRAGGLER: straggler,
        tools.TORCH_MEMORY: torch_memory,
    }
    for tool, each in finders.items():
        found = each(path)
        if found is not None:
            others = {name: find for name, find in finders.items() if name != tool}
            return replace(found, problems=(*found.problems, *_others(found, others)))
    return kineto(path)


def _others(found: Found, finders: Mapping[str, Find]) -> Iterator[str]:
    """Name the tools whose files lie in the same folder, and are left out."""
    if not found.folder:
        return
    for tool, each in finders.items():
        with contextlib.suppress(HaiprofError):
            if each(found.path) is not None:
                yield (
                    f"{found.path}: has files of {tool}, too, which are left out beside those of "
                    f"{found.sources[0].tool}: give each a folder of its own"
                )


def import_source(
    source: Source, folder: str, compression: str | None, on_bytes: OnBytes | None = None
) -> Imported:
    """Write the tables of the trace of one process as Arrow files.

    Args:
        source: the trace.
        folder: created; the files go there.
        compression: of the files: ``zstd``, ``lz4``, or None.
        on_bytes: called with the number of bytes read since its last call; what it raises ends
            the import.

    Returns:
        The result; an error in the trace or on the disk is in ``failed``, and then no file is left
        behind.
    """
    from haiprof.sources.arrow_memory import from_system
    from haiprof.sources.imports.segments import Segments

    imported = Imported(source, folder)
    ended: BaseException | None = None

    def report(count: int) -> None:
        nonlocal ended
        try:
            if on_bytes is not None:
                on_bytes(count)
        except BaseException as error:
            ended = error
            raise

    try:
        with from_system():
            Path(folder).mkdir(mode=0o700)
            segments = Segments(imported, compression)
            _reader(source.tool)(imported, segments, report)
            segments.write_problems()
    except HaiprofError as error:
        imported.failed = str(error)
    except OSError as error:
        where = str(error.filename or folder)
        ours = where.startswith(folder)
        what = "written" if ours else "read"
        fix = "see whether there is room" if ours else "ask its owner for access"
        imported.failed = f"{where}: cannot be {what} ({error.strerror or error}): {fix}"
    except BaseException as error:
        if error is ended or not _of_the_file(error):
            raise
        # A damaged file may contain anything; it must not cost the other files.
        imported.failed = (
            f"{source.path}: is damaged, or of a version that haiprof does not know "
            f"({printable(f'{type(error).__name__}: {error}')[:200]}): write or copy it again; if "
            "it is whole, report it to haiprof's developers"
        )
    if imported.failed is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return imported


def _of_the_file(error: BaseException) -> bool:
    """Say whether a bad file may cause this exception: includes polars' panics."""
    if isinstance(error, Exception):
        return not isinstance(error, MemoryError)
    return type(error).__name__ == "PanicException"


def _reader(tool: str) -> Read:
    if tool == tools.KINETO:
        from haiprof.sources.kineto.one_file import read
    elif tool == tools.NSYS:
        from haiprof.sources.nsys.one_file import read
    elif tool == tools.ASCEND:
        from haiprof.sources.ascend.one_process import read
    elif tool == tools.MEGATRON:
        from haiprof.sources.megatron.one_rank import read
    elif tool == tools.NSYS_CSV:
        from haiprof.sources.nsys_csv.one_run import read
    elif tool == tools.ROCPROF:
        from haiprof.sources.rocprof.one_process import read
    elif tool == tools.STRAGGLER:
        from haiprof.sources.straggler.one_rank import read
    elif tool == tools.TORCH_MEMORY:
        from haiprof.sources.torch_memory.one_file import read
    else:
        assert tool == tools.PADDLE, tool
        from haiprof.sources.paddle.one_file import read
    return read
