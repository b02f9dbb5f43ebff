"""The beginning of a file, by which a format without a name of its own is recognised."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Final

from haiprof.errors import HaiprofError

#: Bytes that are looked at.
HEAD: Final = 1 << 16
_GZIP: Final = b"\x1f\x8b"
#: Larger text files are refused by formats that are read whole.
LARGEST: Final = 512 << 20


def head(path: str | Path) -> bytes:
    """Return the first bytes of a file, decompressed if it is gzip; none if it cannot be read."""
    try:
        if not Path(path).is_file():
            return b""
        with Path(path).open("rb") as file:
            first = file.read(HEAD)
    except OSError:
        return b""  # the reader says why
    if not first.startswith(_GZIP):
        return first
    try:
        return zlib.decompressobj(wbits=31).decompress(first, HEAD)
    except zlib.error:
        return b""


def text(path: str | Path) -> str:
    """Return the text of a file that is read whole, decompressed if it is gzip.

    Raises:
        HaiprofError: it is larger than :data:`LARGEST`, is damaged, or is not text.
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        content = file.read(LARGEST + 1)
    if content.startswith(_GZIP):
        unpacker = zlib.decompressobj(wbits=31)
        try:
            content = unpacker.decompress(content, LARGEST + 1)
        except zlib.error as error:
            raise HaiprofError(f"{path}: is cut off or damaged ({error}): copy it again") from None
        if not unpacker.eof and len(content) <= LARGEST:
            raise HaiprofError(f"{path}: is cut off: copy it again")
    if len(content) > LARGEST:
        raise HaiprofError(
            f"{path}: has more than {LARGEST >> 20} MiB of text, more than is read of such a file: "
            "record a shorter time"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HaiprofError(
            f"{path}: is not text (byte {error.start}): copy it again from where it was written"
        ) from None


def document(path: str | Path) -> Any:
    """Return what a JSON file contains, which is read whole.

    Raises:
        HaiprofError: see :func:`text`; or it is not JSON.
        OSError: it cannot be read.
    """
    content = text(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise HaiprofError(
            f"{path}: is cut off or damaged{where}: copy it again from where it was written"
        ) from None


def first_event(beginning: bytes) -> dict[str, Any] | None:
    """Return the first event of a Chrome trace (a list, or ``traceEvents``); None if it is none."""
    start = beginning.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    if start.startswith("{"):
        _, found, start = start.partition('"traceEvents"')
        start = start.lstrip().removeprefix(":").lstrip() if found else ""
    if not start.startswith("["):
        return None
    try:
        event, _ = json.JSONDecoder().raw_decode(start[1:].lstrip())
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
