"""Opens a path of any kind: a run that haiprof recorded, a kept import, or traces."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections import Counter
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from haiprof import schema
from haiprof.common.claimed_folder import ClaimedFolder, remove_abandoned
from haiprof.common.owned_files import Folder
from haiprof.common.printable import readable
from haiprof.errors import HaiprofError
from haiprof.runs import ROLE_RANK, Process, Run
from haiprof.sources import own
from haiprof.sources.arrow_memory import give_back
from haiprof.sources.found import Found
from haiprof.sources.imports.formats import OnBytes, find
from haiprof.sources.imports.kept import keep, place_of, why_not_fresh
from haiprof.sources.imports.whole_run import import_run
from haiprof.sources.kineto.find import find_in_run

_PREFIX: Final = "haiprof-import-"
#: A temporary import of traces of this many bytes or more is compressed: it then takes a fifth of
#: the disk space, but memory, which Arrow keeps.
_LARGE: Final = 256 << 20
_COMPRESSION: Final = "lz4"


class Temporary:
    """A folder for an import that is not kept; removed with this object.

    If the process is killed, the next such import removes it.
    """

    def __init__(self) -> None:
        """Create it.

        Raises:
            HaiprofError: there is no room for it.
        """
        try:
            parent = Path(tempfile.gettempdir())
            remove_abandoned(parent, _PREFIX)
            claimed = ClaimedFolder(parent, _PREFIX)
        except OSError as error:
            raise HaiprofError(
                f"{error.filename or tempfile.gettempdir()}: cannot be written "
                f"({error.strerror or error}): set TMPDIR to a folder with room"
            ) from None
        self.path = claimed.path
        self.remove = weakref.finalize(self, _remove, claimed, os.getpid())


def _remove(claimed: ClaimedFolder, owner: int) -> None:
    # A fork of the owning process only borrows it.
    if os.getpid() == owner:
        claimed.remove()


class Opened(NamedTuple):
    """A run, and the objects that must live as long as it is read."""

    run: Run
    temporary: Temporary | None = None


def open_path(
    path: str | Path, executor: Executor | None = None, on_bytes: OnBytes | None = None
) -> Opened:
    """Open a run folder, a log directory with one run, or traces of torch.profiler.

    Traces are a file, a folder of them, or a URL of fsspec. A fresh import kept beside them is read
    instead; otherwise they are imported into a temporary folder.

    Args:
        path: what to open.
        executor: reads the traces; by default a few threads.
        on_bytes: called with the number of bytes of traces read.

    Raises:
        HaiprofError: there is nothing that can be read.
    """
    found = None if _is_recorded(path) else find(str(path))
    if found is None:
        return Opened(own.open_run(path))
    opened = _open_found(found, executor, on_bytes)
    return opened._replace(run=_named(opened.run, found))


def open_traces(
    run: Run, executor: Executor | None = None, on_bytes: OnBytes | None = None
) -> Opened | None:
    """Open the deep traces in the folders of a run that haiprof recorded.

    Their import is read, or created and kept as by ``haiprof import``, if the run's folder is
    writable; otherwise they are imported into a temporary folder.

    Args:
        run: what was recorded.
        executor: see :func:`open_path`.
        on_bytes: see there.

    Returns:
        A run of the traces, whose processes are those of ``run`` that recorded them, or None if
        there are none. Several of one rank are its sessions, numbered from 1 by their beginning.

    Raises:
        HaiprofError: none of them can be read.
    """
    found = find_in_run(run.folder)
    if found is None:
        return None
    place = place_of(found)
    if place is not None and not place.exists():
        # The folder may be another user's, or the disk full; then a temporary folder has to do.
        with contextlib.suppress(HaiprofError, OSError):
            Folder.at(run.folder).require_ours()
            keep(found, place, executor, on_bytes)
    opened = _open_found(found, executor, on_bytes)
    processes = _made_by(run, opened.run, found)
    return opened._replace(
        run=replace(
            opened.run, name=run.name, source=readable(str(run.folder)), processes=processes
        )
    )


def _made_by(run: Run, traces: Run, found: Found) -> tuple[Process, ...]:
    """Assign each trace to the process that recorded it, and number it within its rank."""
    folders = {source.file: Path(source.path).parent for source in found.sources}
    known = {process.folder: process for process in run.processes}
    count: Counter[object] = Counter()
    assigned = []
    for process in sorted(traces.processes, key=lambda process: process.started_ns or 0):
        info = process.trace
        maker = known.get(folders[info.file]) if info is not None and info.file in folders else None
        if info is None or maker is None:  # its process has no readable folder
            assigned.append(process)
            continue
        # A restarted rank continues the count; another process of it starts over.
        who = (maker.node, maker.rank) if maker.role == ROLE_RANK else maker.folder
        count[who] += 1
        assigned.append(
            replace(
                process,
                role=maker.role,
                node=maker.node,
                host=maker.host,
                rank=maker.rank,
                local_rank=maker.local_rank,
                world_size=maker.world_size or process.world_size,
                attempt=maker.attempt,
                pid=maker.pid,
                trace=replace(info, worker=maker.label, span=count[who]),
            )
        )
    return tuple(own.arranged(assigned))


def _open_found(found: Found, executor: Executor | None, on_bytes: OnBytes | None) -> Opened:
    """Open the import kept beside the traces if it is fresh, else a temporary one."""
    place = place_of(found)
    stale: tuple[str, ...] = ()
    if place is not None and place.exists():
        why = why_not_fresh(found, place)
        if why is None:
            return Opened(own.open_run(place))
        stale = (f"{place}: {why}, and was not read: redo it with haiprof import",)
    temporary = Temporary()
    try:
        large = found.bytes >= _LARGE
        compression = _COMPRESSION if large else None
        import_run(
            found, temporary.path, compression=compression, executor=executor, on_bytes=on_bytes
        )
        run = own.open_run(temporary.path)
        give_back()
    except BaseException:
        temporary.remove()
        raise
    return Opened(replace(run, problems=(*stale, *run.problems)), temporary)


def _is_recorded(path: str | Path) -> bool:
    try:
        place = Path(path)
        return (place / schema.RUN_FILE).is_file() or (place.is_dir() and bool(own.runs_in(place)))
    except OSError:
        return False


def _named(run: Run, found: Found) -> Run:
    return replace(run, name=found.run, source=readable(found.path))
