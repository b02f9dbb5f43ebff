"""The overview of a trace, stored beside its import, so that it is available immediately.

The overview of a thousand imported ranks then is as many small files. A file written by other code
is not read.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

import polars as pl

from haiprof.common.owned_files import Folder
from haiprof.views.trace.overview import DEVICES_SCHEMA, STEPS_SCHEMA, TIMELINE_SCHEMA, Overview

#: Name of the file in a process folder.
FILE: Final = "overview.json"
_FORMAT: Final = "haiprof.overview"
_FRAMES: Final[dict[str, Any]] = {
    "devices": DEVICES_SCHEMA,
    "steps": STEPS_SCHEMA,
    "timeline": TIMELINE_SCHEMA,
}


def read(folder: Path) -> Overview | None:
    """Return the overview stored in a process folder; None if this code has not written one."""
    try:
        document = json.loads(Folder.at(folder).read(FILE))
        if document["format"] != _FORMAT or document["code"] != _code():
            return None
        frames: dict[str, Any] = {
            name: pl.DataFrame(document[name], schema) for name, schema in _FRAMES.items()
        }
        whole = dataclasses.fields(Overview)
        return Overview(**{each.name: frames.get(each.name, document[each.name]) for each in whole})
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pl.exceptions.PolarsError):
        return None


def keep(folder: Path, overview: Overview) -> None:
    """Store an overview in a process folder, atomically.

    Raises:
        OSError: it cannot be written.
    """
    document: dict[str, Any] = {"format": _FORMAT, "code": _code()}
    for each in dataclasses.fields(Overview):
        value = getattr(overview, each.name)
        document[each.name] = value.to_dict(as_series=False) if each.name in _FRAMES else value
    with Folder.at(folder).replacing(FILE, f".{FILE}.{os.getpid()}") as file:
        file.write(json.dumps(document).encode())


@functools.cache
def _code() -> str:
    """Identify the code that computes an overview: other code may give other numbers."""
    from haiprof import __version__

    digest = hashlib.blake2b(__version__.encode(), digest_size=16)
    views = Path(__file__).with_name("views")
    for file in sorted(views.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
