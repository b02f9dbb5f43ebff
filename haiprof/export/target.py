"""What an export writes appears whole or not at all, and never in place of something else."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, cast

from haiprof.common.claimed_folder import ClaimedFolder, remove_abandoned
from haiprof.errors import HaiprofError

_PARTIAL: Final = ".haiprof-exporting-"
#: Of gzip: twice as fast as its usual level, and a tenth larger.
_LEVEL: Final = 4


@contextlib.contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Yield where to write a file or a folder, which is renamed to ``target`` when it is done.

    A body that ends early leaves nothing behind; what a killed process left is removed here.

    Raises:
        HaiprofError: there is something at ``target``, or it cannot be written.
    """
    if os.path.lexists(target):
        raise HaiprofError(f"{target}: already exists: remove it, or choose another with --out")
    parent = target.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(parent, _PARTIAL)
        folder = ClaimedFolder(parent, _PARTIAL)
        try:
            partial = folder.path / target.name
            yield partial
            partial.rename(target)
        finally:
            folder.remove()
    except OSError as error:
        raise HaiprofError(
            f"{target}: cannot be written ({error.strerror or error}): "
            "choose another place with --out"
        ) from None


@contextlib.contextmanager
def opened(file: Path) -> Iterator[IO[bytes]]:
    """Open a new file for writing; one whose name ends in ``.gz`` is compressed."""
    with contextlib.ExitStack() as stack:
        out: IO[bytes] = stack.enter_context(file.open("xb"))
        if file.suffix == ".gz":
            # Neither a name nor a time in it: the same run gives the same bytes.
            compressed = gzip.GzipFile("", "wb", _LEVEL, out, mtime=0)
            out = cast(IO[bytes], stack.enter_context(compressed))
        yield out
