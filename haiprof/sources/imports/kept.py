"""Imports that are kept beside their traces: where they lie, whether they are fresh, making one.

A kept import appears whole or not at all: it is made in a folder beside its place, which then
takes that name.

Tests: tests/sources/test_open.py.
"""

from __future__ import annotations

import json
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof.common.claimed_folder import ClaimedFolder, remove_abandoned
from haiprof.errors import HaiprofError
from haiprof.sources.found import Found, has_beside
from haiprof.sources.imports.formats import Told
from haiprof.sources.imports.whole_run import IMPORTER, files_of, import_run

_PARTIAL: Final = ".haiprof-importing-"
#: The smallest on disk.
_COMPRESSION: Final = "zstd"


def place_of(found: Found) -> Path | None:
    """Return where an import of these traces is kept; None for those behind a URL, or in a pipe."""
    if found.url or not (found.folder or has_beside(found.path)):
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
    except (OSError, ValueError, RecursionError):
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
        executor: see :func:`haiprof.sources.imports.whole_run.import_run`.
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
        remove_abandoned(place.parent, _PARTIAL)
        held = ClaimedFolder(place.parent, _PARTIAL)
        try:
            import_run(found, held.path, compression=_COMPRESSION, executor=executor, told=told)
            # Somebody else may have made the very same meanwhile, and be reading it.
            if why_not_fresh(found, place) is not None:
                _swap(held.path, place)
        finally:
            held.remove()
    except OSError as error:
        raise HaiprofError(
            f"{place}: cannot be written ({error.strerror or error}): "
            "give another folder with --out"
        ) from None


def _empty(place: Path) -> bool:
    return place.is_dir() and next(place.iterdir(), None) is None


def _swap(partial: Path, place: Path) -> None:
    if place.exists():
        old = ClaimedFolder(place.parent, _PARTIAL)
        place.rename(old.path / "old")
        partial.rename(place)
        old.remove()
    else:
        partial.rename(place)
