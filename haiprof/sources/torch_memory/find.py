"""A memory timeline of torch.profiler at a path, recognised by how it begins.

``export_memory_timeline`` writes the allocator's events (``….raw.json.gz``), the curve of each
category (``….json``, ``….json.gz``), or a picture of it (``….html``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

from haiprof.errors import HaiprofError
from haiprof.sources import peek
from haiprof.sources.found import TORCH_MEMORY, Found, Source, is_url
from haiprof.sources.kineto.names import take_apart

Form = Literal["events", "curve", "picture"]
_PICTURE: Final = b"Memory Timeline HTML</title>"
_SUFFIX: Final = re.compile(r"\.(raw|html)$")


def find(path: str) -> Found | None:
    """Find a memory timeline at ``path``; None if it is something else, or a folder.

    Raises:
        HaiprofError: it is a picture, whose numbers cannot be read.
    """
    if is_url(path):
        return None
    place = Path(path)
    form = form_of(peek.head(place))
    if form is None:
        return None
    if form == "picture":
        raise HaiprofError(
            f"{path}: is a picture of the memory, without numbers: "
            'use export_memory_timeline("memory.raw.json.gz")'
        )
    status = place.stat()
    name = take_apart(place.name)
    return Found(
        path,
        False,
        (
            Source(
                tool=TORCH_MEMORY,
                path=str(place),
                file=place.name,
                worker=_SUFFIX.sub("", name.worker),
                rank=name.rank,
                host=name.host,
                span=1,
                bytes=status.st_size,
                mtime_ns=status.st_mtime_ns,
            ),
        ),
    )


def form_of(head: bytes) -> Form | None:
    """Return what a file that begins like this is; None if it is no memory timeline."""
    start = head.translate(None, b" \t\r\n")
    if _PICTURE in head and start.lower().startswith(b"<html"):
        return "picture"
    if not re.match(rb"\[\[-?\d", start):
        return None
    first, ended, rest = start[2:].partition(b"]")
    if re.fullmatch(rb"-?\d+(,-?\d+){3}", first) and ended and re.match(rb",\[-?\d|\]", rest):
        return "events"
    # The curve begins with all times, which may be more than the part that is looked at.
    if re.fullmatch(rb"[-\d,]+", first) and (not ended or rest.startswith(b",[[")):
        return "curve"
    return None
