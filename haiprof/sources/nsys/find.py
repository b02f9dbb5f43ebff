"""The exports of Nsight Systems at a path: one source for each process that used a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.sources.found import NSYS, Found, Source, is_sqlite, is_url
from haiprof.sources.kineto.names import rank_in
from haiprof.sources.nsys.processes import rank_and_world_size, targets

if TYPE_CHECKING:
    from haiprof.sources.nsys.database import Database

#: Export files in a folder; a file given explicitly may have any name.
_EXPORTS: Final = (".sqlite", ".sqlite3")
#: Nsight Systems' own format, which only its own tools can read.
_REPORTS: Final = (".nsys-rep", ".qdrep", ".qdstrm")


def find(path: str) -> Found | None:
    """Find the exports at ``path``; None if there is neither one nor a report.

    Args:
        path: an export (``nsys export --type sqlite``), or a folder of those of one run.

    Raises:
        HaiprofError: it is a report that has to be exported, or nothing of it can be read.
    """
    if is_url(path):
        if path.endswith((*_EXPORTS, *_REPORTS)):
            raise HaiprofError(
                f"{path}: exports of Nsight Systems are read from files only: copy it here"
            )
        return None
    place = Path(path)
    try:
        return _in_folder(place) if place.is_dir() else _at_file(place)
    except OSError:
        return None  # the last tool asked reports it


def _at_file(file: Path) -> Found | None:
    if file.name.endswith(_REPORTS):
        raise HaiprofError(_export_it(file))
    if not file.name.endswith(_EXPORTS) and not _begins_as_one(file):
        return None
    if file.is_fifo():
        raise HaiprofError(f"{file}: is a pipe, and databases are read from files: save it as one")
    found = _of_export(file)
    if found is not None:
        return Found(str(file), False, found)
    if not file.name.endswith(_EXPORTS):
        return None
    raise HaiprofError(
        f"{file}: is an SQLite file that Nsight Systems did not write: "
        "give what nsys export --type sqlite has written"
    )


def _of_export(file: Path) -> tuple[Source, ...] | None:
    """Return the processes of an export; None if Nsight Systems did not write it.

    Raises:
        HaiprofError: it cannot be read, or has none.
    """
    try:
        from haiprof.sources.nsys.database import Database
    except ImportError:
        raise HaiprofError(
            f"{file}: cannot be read, since this Python was built without sqlite3: "
            "open it with another"
        ) from None
    with Database(str(file)) as db:
        if not db.of_nsys:
            return None
        found = _sources(file, db)
    if not found:
        raise HaiprofError(
            f"{file}: has no work of a GPU and no ranges of NVTX: "
            "profile with nsys profile --trace=cuda,nvtx"
        )
    return found


def _begins_as_one(file: Path) -> bool:
    # What is read from a pipe cannot be read again.
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return is_sqlite(opened.read(16))


def _in_folder(folder: Path) -> Found | None:
    if (folder / schema.RUN_FILE).exists():
        return None
    with os.scandir(folder) as listed:
        files = sorted(Path(each.path) for each in listed if each.is_file())
    exports = [file for file in files if file.name.endswith(_EXPORTS)]
    left = [
        _export_it(file)
        for file in files
        if file.name.endswith(_REPORTS) and not any(_stem(file) == _stem(e) for e in exports)
    ]
    problems = []
    sources: list[Source] = []
    for file in exports:
        try:
            found = _of_export(file)
        except HaiprofError as error:
            problems.append(str(error))
        else:
            sources += found or ()
    if not sources:
        # Traces of another tool, or unrelated databases, may lie beside them.
        if (problems or left) and not any(".json" in file.name for file in files):
            raise HaiprofError([*problems, *left][0])
        return None
    return Found(str(folder), True, tuple(sources), (*problems, *left))


def _sources(file: Path, db: Database) -> tuple[Source, ...]:
    status = file.stat()
    found = targets(db)
    rank = rank_and_world_size(db)[0] if len(found) == 1 else None
    stem = _stem(file)
    if len(found) == 1 and rank is None:
        rank = rank_in(stem)
    return tuple(
        Source(
            tool=NSYS,
            path=str(file),
            file=file.name,
            worker=stem if len(found) == 1 else f"{stem} {target.part}",
            rank=rank,
            host=None,
            span=1,
            bytes=status.st_size,
            mtime_ns=status.st_mtime_ns,
            part=target.part,
        )
        for target in found
    )


def _stem(file: Path) -> str:
    return next(
        (file.name.removesuffix(e) for e in (*_EXPORTS, *_REPORTS) if file.name.endswith(e)),
        file.stem,
    )


def _export_it(report: Path) -> str:
    return (
        f"{report}: only Nsight Systems itself can read its reports: export it with "
        f"nsys export --type sqlite --include-json=true {report.name}, and give the .sqlite"
    )
