"""Opens whatever a path is: a run that haiprof recorded, an import that was kept, or raw traces."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.sources import own
from haiprof.sources.kineto.find import Found, find
from haiprof.sources.kineto.kept import place_of, why_not_fresh
from haiprof.sources.kineto.whole_run import Told, import_run

_PREFIX: Final = "haiprof-"
#: A fifth of the room, and hardly slower than none.
_COMPRESSION: Final = "lz4"


class Temporary:
    """A folder of an import that nobody asked to keep; it is removed with this object."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            HaiprofError: there is no room for it.
        """
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        except OSError as error:
            raise HaiprofError(
                f"{error.filename or tempfile.gettempdir()}: cannot be written "
                f"({error.strerror or error}): say with TMPDIR where there is room"
            ) from None
        self.remove = weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    # A fork of the process that made it only borrows it.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


class Opened(NamedTuple):
    """A run, and what has to live as long as somebody reads it."""

    run: own.Run
    temporary: Temporary | None = None


def open_path(
    path: str | Path, executor: Executor | None = None, told: Told | None = None
) -> Opened:
    """Open a run folder, a log directory with one run, or traces of torch.profiler.

    Traces are a file, a folder of them, or a URL of fsspec. An import of them that is kept beside
    them is read if it is fresh; else they are imported into a temporary folder.

    Args:
        path: what to open.
        executor: reads the traces; by default a few threads.
        told: is called with bytes of traces that were read.

    Raises:
        HaiprofError: there is nothing that can be read.
    """
    found = None if _is_recorded(path) else find(str(path))
    if found is None:
        return Opened(own.open_run(path))
    place = place_of(found)
    stale: tuple[str, ...] = ()
    if place is not None and place.exists():
        why = why_not_fresh(found, place)
        if why is None:
            return Opened(_named(own.open_run(place), found))
        stale = (f"{place}: {why}, and was not read: make it anew with haiprof import",)
    temporary = Temporary()
    try:
        import_run(found, temporary.path, compression=_COMPRESSION, executor=executor, told=told)
        run = own.open_run(temporary.path)
        _give_back_memory()
    except BaseException:
        temporary.remove()
        raise
    return Opened(_named(replace(run, problems=(*stale, *run.problems)), found), temporary)


def _give_back_memory() -> None:
    """Have the allocator return what the import has freed: what is read next needs room."""
    import pyarrow as pa

    pa.system_memory_pool().release_unused()


def _is_recorded(path: str | Path) -> bool:
    try:
        place = Path(path)
        return (place / schema.RUN_FILE).is_file() or (place.is_dir() and bool(own.runs_in(place)))
    except OSError:
        return False


def _named(run: own.Run, found: Found) -> own.Run:
    return replace(run, name=found.run, source=own.readable(found.path))
