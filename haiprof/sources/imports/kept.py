"""Imports kept beside their traces: where they are, whether they are fresh, creating them.

A kept import appears whole or not at all: it is written into a folder beside its final place, which
is then renamed.

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
from haiprof.sources.imports.formats import OnBytes
from haiprof.sources.imports.whole_run import IMPORTER, files_of, import_run

_PARTIAL: Final = ".haiprof-importing-"
#: Takes the least disk space.
_COMPRESSION: Final = "zstd"


def place_of(found: Found) -> Path | None:
    """Return where an import of these traces is kept; None for those behind a URL, or in a pipe."""
    if found.url or not (found.folder or has_beside(found.path)):
        return None
    path = Path(found.path).absolute()
    return path / schema.IMPORT_FOLDER if found.folder else Path(f"{path}{schema.IMPORT_SUFFIX}")


def why_not_fresh(found: Found, place: Path) -> str | None:
    """Say why the import at ``place`` is not of exactly these files; None if it is.

    Returns:
        The words continue a sentence that starts with the import's name.
    """
    stored = _stored(place)
    if stored is None:
        return "is not a complete import of haiprof"
    if stored.get("importer") != IMPORTER:
        return "was made by another version of haiprof"
    return None if stored.get("files") == files_of(found) else "is of other files, or of older ones"


def _stored(place: Path) -> dict[str, Any] | None:
    try:
        document = json.loads((place / schema.RUN_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    stored = document.get("import") if isinstance(document, dict) else None
    return stored if isinstance(stored, dict) else None


def keep(
    found: Found, place: Path, executor: Executor | None = None, on_bytes: OnBytes | None = None
) -> None:
    """Import traces into ``place``, replacing an older import.

    Args:
        found: the traces.
        place: the folder; its parent is created if missing.
        executor: see :func:`haiprof.sources.imports.whole_run.import_run`.
        on_bytes: see there.

    Raises:
        HaiprofError: ``place`` is something else, cannot be written, or nothing can be read.
    """
    if place.exists() and _stored(place) is None and not _empty(place):
        raise HaiprofError(
            f"{place}: exists and is not an import of haiprof: remove it, or give "
            "another with --out"
        )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(place.parent, _PARTIAL)
        claimed = ClaimedFolder(place.parent, _PARTIAL)
        try:
            import_run(
                found, claimed.path, compression=_COMPRESSION, executor=executor, on_bytes=on_bytes
            )
            # Another process may have created the same import meanwhile, and be reading it.
            if why_not_fresh(found, place) is not None:
                _swap(claimed.path, place)
        finally:
            claimed.remove()
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
