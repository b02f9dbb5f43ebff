"""Imports the traces of one run: each file on its own, then what they are to each other.

The folder that is written is laid out like one that haiprof recorded, so everything else reads it
without knowing where it came from.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.places import safe_name
from haiprof.sources.kineto.find import Found, Source
from haiprof.sources.kineto.one_file import Imported, import_file

#: Of what is written here. Imports of another version are made anew.
IMPORTER: Final = 1
_MOST_THREADS: Final = 8

Told = Callable[[int], None]


class _Stopped(Exception):
    """The import was given up while files were being read."""


def import_run(
    found: Found,
    folder: Path,
    *,
    compression: str | None,
    executor: Executor | None = None,
    told: Told | None = None,
) -> None:
    """Write the traces of a run into an empty folder, as a run of haiprof.

    Args:
        found: the files.
        folder: exists and is empty.
        compression: of the tables: ``zstd``, ``lz4``, or None.
        executor: reads the files; by default a few threads, since reading leaves Python alone.
        told: is called with bytes that were read, from any thread.

    Raises:
        HaiprofError: none of the files can be read.
    """
    all_made = _import_files(found.sources, folder, compression, executor, told)
    failed = [made.failed for made in all_made if made.failed is not None]
    good = [made for made in all_made if made.failed is None]
    if not good:
        more = f" (and {len(failed) - 1} more traces cannot be read)" if len(failed) > 1 else ""
        raise HaiprofError(f"{failed[0]}{more}")
    problems = [*found.problems, *failed]
    for made in good:
        problems += made.problems
    problems += _doubles(good)
    names: set[str] = set()
    several = {made.source.name.worker for made in good if made.source.span > 1}
    for made in good:
        name = _folder_name(made, made.source.name.worker in several, names)
        Path(made.folder).rename(folder / name)
        _write_json(folder / name / schema.PROCESS_FILE, _process(made))
    _write_json(folder / schema.RUN_FILE, _run(found, good, problems))


def files_of(found: Found) -> list[list[Any]]:
    """Return what a kept import says of the files that it was made of."""
    return [[source.file, source.bytes, source.mtime_ns] for source in found.sources]


def _import_files(
    sources: Iterable[Source],
    folder: Path,
    compression: str | None,
    executor: Executor | None,
    told: Told | None,
) -> list[Imported]:
    jobs = [(source, str(folder / f".{n}")) for n, source in enumerate(sources)]
    if executor is not None:
        futures = [executor.submit(import_file, *job, compression) for job in jobs]
        return _results(futures, told)
    stopped = threading.Event()

    def tell(count: int) -> None:
        if stopped.is_set():
            raise _Stopped
        if told is not None:
            told(count)

    if len(jobs) == 1:
        return [import_file(*jobs[0], compression, tell)]
    with ThreadPoolExecutor(min(_MOST_THREADS, cpu_count() or 1, len(jobs))) as pool:
        try:
            return _results([pool.submit(import_file, *job, compression, tell) for job in jobs])
        except BaseException:
            stopped.set()
            raise


def _results(futures: list[Future[Imported]], told: Told | None = None) -> list[Imported]:
    made = []
    try:
        for future in futures:
            made.append(future.result())
            if told is not None:
                told(made[-1].source.bytes)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return made


def _doubles(good: list[Imported]) -> list[str]:
    """Name the workers that say to be the same rank at the same time."""
    workers: dict[tuple[int, int], list[str]] = defaultdict(list)
    for made in good:
        rank = _rank(made)
        if rank is not None:
            workers[rank, made.source.span].append(made.source.file)
    return [
        f"{files[0]}: says to be rank {rank}, and so does {', '.join(files[1:4])}"
        f"{' and more' if len(files) > 4 else ''}: all are kept; "
        "give a folder in which each rank has a trace of its own"
        for (rank, _), files in workers.items()
        if len(files) > 1
    ]


def _rank(made: Imported) -> int | None:
    told = made.header.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    return _whole(rank) if _whole(rank) is not None else made.source.name.rank


def _node(made: Imported) -> str:
    host = made.header.get("host_name")
    told = host if isinstance(host, str) and host else made.source.name.host
    return told or made.source.name.worker


def _folder_name(made: Imported, several: bool, names: set[str]) -> str:
    rank = _rank(made)
    stem = f"{safe_name(_node(made)) or 'trace'}#{'-' if rank is None else rank}"
    if several:
        stem += f".{made.source.span}"
    worker = safe_name(made.source.name.worker)
    name = stem if stem not in names else f"{stem}.{worker}"
    number = 1
    while name in names:
        number += 1
        name = f"{stem}.{worker}.{number}"
    names.add(name)
    return name


def _process(made: Imported) -> dict[str, Any]:
    rank = _rank(made)
    distributed = made.header.get("distributedInfo")
    told = distributed if isinstance(distributed, dict) else {}
    return {
        "format": schema.PROCESS_FORMAT,
        "version": f"{schema.MAJOR}.{schema.MINOR}",
        "role": "process" if rank is None else "rank",
        "node": _node(made),
        "host": _node(made),
        "rank": rank,
        "local_rank": None,
        "world_size": _whole(told.get("world_size")),
        "attempt": None,
        "pid": _whole(made.pid),
        "started_ns": made.begin,
        "ended_ns": made.end,
        "state": "ended",
        "gpus": _gpus(made),
        "trace": {
            "file": made.source.file,
            "worker": made.source.name.worker,
            "span": made.source.span,
            "begin": made.begin,
            "end": made.end,
            "distributed": told,
            "version": _whole(made.header.get("schemaVersion")),
        },
    }


def _gpus(made: Imported) -> list[dict[str, Any]]:
    """Return the GPUs that something happened on; a file lists all of its machine."""
    listed = made.header.get("deviceProperties")
    known = {
        _whole(row.get("id")): row
        for row in (listed if isinstance(listed, list) else [])
        if isinstance(row, dict)
    }
    return [_gpu(device, known.get(device, {})) for device in made.devices]


def _gpu(device: int, told: dict[str, Any]) -> dict[str, Any]:
    name = told.get("name")
    major, minor = _whole(told.get("computeMajor")), _whole(told.get("computeMinor"))
    return {
        "uuid": "",
        "name": name if isinstance(name, str) else "",
        "device": device,
        "instance": "",
        "memory_bytes": _whole(told.get("totalGlobalMem")),
        "multiprocessors": _whole(told.get("numSms")),
        "capability": None if major is None or minor is None else [major, minor],
    }


def _run(found: Found, good: list[Imported], problems: list[str]) -> dict[str, Any]:
    from haiprof import __version__

    begins = [made.begin for made in good if made.begin is not None]
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


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _write_json(file: Path, document: dict[str, Any]) -> None:
    file.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
