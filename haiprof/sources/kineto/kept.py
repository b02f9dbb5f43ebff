"""Imports that are kept beside their traces: where they lie, whether they are fresh, making one.

A kept import appears whole or not at all: it is made in a folder beside its place, which then
takes that name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.sources.kineto.find import Found
from haiprof.sources.kineto.stream import is_url
from haiprof.sources.kineto.whole_run import IMPORTER, Told, files_of, import_run

_PARTIAL: Final = ".haiprof-importing-"
#: The smallest on disk.
_COMPRESSION: Final = "zstd"


def place_of(found: Found) -> Path | None:
    """Return where an import of these traces is kept; None for those behind a URL."""
    if is_url(found.path):
        return None
    path = Path(found.path).absolute()
    return path / schema.IMPORT_FOLDER if found.folder else Path(f"{path}{schema.IMPORT_SUFFIX}")


def why_not_fresh(found: Found, place: Path) -> str | None:
    """Say why the import at ``place`` is not one of these very files; None if it is.

    Returns:
        Words that go on where the name of the import ends.
    """
    told = _told(place)
    if told is None:
        return "is no import of haiprof, or not a whole one"
    if told.get("importer") != IMPORTER:
        return "was made by another version of haiprof"
    return None if told.get("files") == files_of(found) else "is of other files, or of older ones"


def _told(place: Path) -> dict[str, Any] | None:
    try:
        document = json.loads((place / schema.RUN_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    told = document.get("import") if isinstance(document, dict) else None
    return told if isinstance(told, dict) else None


def keep(
    found: Found, place: Path, executor: Executor | None = None, told: Told | None = None
) -> None:
    """Import traces into ``place``, instead of an older import there.

    Args:
        found: the traces.
        place: the folder; one above it is made where there is none.
        executor: see :func:`haiprof.sources.kineto.whole_run.import_run`.
        told: see there.

    Raises:
        HaiprofError: ``place`` is something else, cannot be written, or nothing can be read.
    """
    if place.exists() and _told(place) is None and not _empty(place):
        raise HaiprofError(
            f"{place}: is there and no import of haiprof: remove it, or give another with --out"
        )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _partial(place.parent) as partial:
            import_run(found, partial, compression=_COMPRESSION, executor=executor, told=told)
            # Somebody else may have made the very same meanwhile, and be reading it.
            if why_not_fresh(found, place) is not None:
                _swap(partial, place)
    except OSError as error:
        raise HaiprofError(
            f"{place}: cannot be written ({error.strerror or error}): "
            "give another folder with --out"
        ) from None


def _empty(place: Path) -> bool:
    return place.is_dir() and next(place.iterdir(), None) is None


@contextlib.contextmanager
def _partial(parent: Path) -> Iterator[Path]:
    """Make a folder for what is not whole yet, and remove those of imports that were killed."""
    for left in parent.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=parent))
    try:
        with _locked(partial):
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder: the kernel lets go of it when this process ends, however that is.

    Raises:
        OSError: somebody else holds it.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _swap(partial: Path, place: Path) -> None:
    if place.exists():
        old = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=place.parent))
        place.rename(old / "old")
        partial.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(place)
