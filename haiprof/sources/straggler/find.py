"""A trace of the straggler study at a path: one Parquet file with the operations of all ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from haiprof.errors import HaiprofError
from haiprof.sources.found import STRAGGLER, Found, Source, is_url
from haiprof.sources.straggler import table

_SUFFIX: Final = ".parquet"


def find(path: str) -> Found | None:
    """Find a trace at ``path``; None if there is none.

    Args:
        path: a trace, or a folder with one of them.

    Raises:
        HaiprofError: a folder has several, or the trace cannot be read.
    """
    if is_url(path):
        return None
    place = Path(path)
    try:
        if not place.is_dir():
            return Found(path, False, _workers(place)) if table.is_trace(place) else None
        with os.scandir(place) as listed:
            names = sorted(
                each.name for each in listed if each.name.endswith(_SUFFIX) and each.is_file()
            )
    except OSError:
        return None  # the last tool asked says why
    traces = [place / name for name in names if table.is_trace(place / name)]
    if len(traces) > 1:
        raise HaiprofError(
            f"{path}: contains {len(traces)} traces of jobs: "
            f"{', '.join(each.name for each in traces[:10])}"
            f"{' and more' if len(traces) > 10 else ''}: give one of them"
        )
    return Found(path, True, _workers(traces[0])) if traces else None


def _workers(file: Path) -> tuple[Source, ...]:
    status = file.stat()
    operations = table.read(str(file), status.st_mtime_ns)
    return tuple(
        Source(
            tool=STRAGGLER,
            path=str(file),
            file=file.name,
            worker=f"rank {rank}",
            rank=rank,
            host=None,
            span=1,
            bytes=status.st_size,
            mtime_ns=status.st_mtime_ns,
            part=str(rank),
        )
        for rank in operations.frame["rank"].unique().sort()
    )
