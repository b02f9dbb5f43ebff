"""Imports the traces of one run: each process separately, then how they relate.

The output folder has the layout of a recorded run, so that all other code reads it without knowing
where it came from.

Tests: tests/sources/test_open.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof.common.places import safe_name
from haiprof.errors import HaiprofError
from haiprof.sources.found import Found, Source
from haiprof.sources.imports.formats import OnBytes, import_source
from haiprof.sources.imports.imported import Imported, whole

#: Version of this importer's output. Imports of another version are redone.
IMPORTER: Final = 3
_MOST_THREADS: Final = 8


class _Stopped(Exception):
    """The import was cancelled while files were being read."""


def import_run(
    found: Found,
    folder: Path,
    *,
    compression: str | None,
    executor: Executor | None = None,
    on_bytes: OnBytes | None = None,
) -> None:
    """Write the traces of a run into an empty folder, as a run of haiprof.

    Args:
        found: the files.
        folder: exists and is empty.
        compression: of the tables: ``zstd``, ``lz4``, or None.
        executor: reads the files; by default a few threads, since reading releases the GIL.
        on_bytes: called with the number of bytes read, from any thread.

    Raises:
        HaiprofError: none of the files can be read.
    """
    all_imported = _import_files(found.sources, folder, compression, executor, on_bytes)
    failed = [imported.failed for imported in all_imported if imported.failed is not None]
    good = [imported for imported in all_imported if imported.failed is None]
    if not good:
        more = f" (and {len(failed) - 1} more traces cannot be read)" if len(failed) > 1 else ""
        raise HaiprofError(f"{failed[0]}{more}")
    problems = [*found.problems, *failed]
    for imported in good:
        problems += imported.problems
    problems += _doubles(good)
    names: set[str] = set()
    several = {imported.source.worker for imported in good if imported.source.span > 1}
    for imported in good:
        name = _folder_name(imported, imported.source.worker in several, names)
        Path(imported.folder).rename(folder / name)
        _write_json(folder / name / schema.PROCESS_FILE, _process(imported))
    _write_json(folder / schema.RUN_FILE, _run(found, good, problems))


def files_of(found: Found) -> list[list[Any]]:
    """Return how a kept import describes the files it was made from."""
    return [[source.file, source.bytes, source.mtime_ns] for source in found.sources]


def _import_files(
    sources: Iterable[Source],
    folder: Path,
    compression: str | None,
    executor: Executor | None,
    on_bytes: OnBytes | None,
) -> list[Imported]:
    jobs = [(source, str(folder / f".{n}")) for n, source in enumerate(sources)]
    if executor is not None:
        futures = [executor.submit(import_source, *job, compression) for job in jobs]
        return _results(futures, on_bytes)
    stopped = threading.Event()

    def report(count: int) -> None:
        if stopped.is_set():
            raise _Stopped
        if on_bytes is not None:
            on_bytes(count)

    if len(jobs) == 1:
        return [import_source(*jobs[0], compression, report)]
    with ThreadPoolExecutor(min(_MOST_THREADS, cpu_count() or 1, len(jobs))) as pool:
        try:
            return _results([pool.submit(import_source, *job, compression, report) for job in jobs])
        except BaseException:
            stopped.set()
            raise


def _results(futures: list[Future[Imported]], on_bytes: OnBytes | None = None) -> list[Imported]:
    results = []
    try:
        for future in futures:
            results.append(future.result())
            if on_bytes is not None:
                on_bytes(results[-1].source.bytes)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return results


def _doubles(good: list[Imported]) -> list[str]:
    """Name the workers that claim to be the same rank at the same time."""
    workers: dict[tuple[int, int], list[str]] = defaultdict(list)
    for imported in good:
        rank = _rank(imported)
        if rank is not None:
            workers[rank, imported.source.span].append(imported.source.file)
    return [
        f"{files[0]}: claims to be rank {rank}, and so does {', '.join(files[1:4])}"
        f"{' and more' if len(files) > 4 else ''}: all are kept; "
        "give a folder in which each rank has a trace of its own"
        for (rank, _), files in workers.items()
        if len(files) > 1
    ]


def _rank(imported: Imported) -> int | None:
    return imported.rank if imported.rank is not None else imported.source.rank


def _node(imported: Imported) -> str:
    return imported.host or imported.source.host or imported.source.worker


def _folder_name(imported: Imported, several: bool, names: set[str]) -> str:
    rank = _rank(imported)
    stem = f"{safe_name(_node(imported)) or 'trace'}#{'-' if rank is None else rank}"
    if several:
        stem += f".{imported.source.span}"
    worker = safe_name(imported.source.worker)
    name = stem if stem not in names else f"{stem}.{worker}"
    number = 1
    while name in names:
        number += 1
        name = f"{stem}.{worker}.{number}"
    names.add(name)
    return name


def _process(imported: Imported) -> dict[str, Any]:
    rank = _rank(imported)
    return {
        "format": schema.PROCESS_FORMAT,
        "version": f"{schema.MAJOR}.{schema.MINOR}",
        "role": "process" if rank is None else "rank",
        "node": _node(imported),
        "host": _node(imported),
        "rank": rank,
        "local_rank": None,
        "world_size": imported.world_size,
        "attempt": None,
        "pid": whole(imported.pid),
        "started_ns": imported.begin,
        "ended_ns": imported.end,
        "state": "ended",
        "gpus": imported.gpus,
        "trace": {
            "file": imported.source.file,
            "worker": imported.source.worker,
            "span": imported.source.span,
            "begin": imported.begin,
            "end": imported.end,
            "distributed": imported.distributed,
            "version": imported.version,
            "tool": imported.source.tool,
            "lacks": imported.lacks,
        },
    }


def _run(found: Found, good: list[Imported], problems: list[str]) -> dict[str, Any]:
    from haiprof import __version__

    begins = [imported.begin for imported in good if imported.begin is not None]
    return {
        "format": schema.RUN_FORMAT,
        "version": f"{schema.MAJOR}.{schema.MINOR}",
        "run": found.run,
        "created_ns": min(begins, default=0),
        "command": [],
        "host": _node(good[0]),
        "haiprof": __version__,
        "problems": problems,
        "import": {
            "importer": IMPORTER,
            "imported_ns": time.time_ns(),
            "files": files_of(found),
        },
    }


def _write_json(file: Path, document: dict[str, Any]) -> None:
    file.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
