"""The worker logs at a path: ``workerlog.N``, or of several machines ``machine*/workerlog.N``.

``N`` is the device's number on its machine. Machines are sorted by the numbers in their names, and
each has as many ranks as the largest.

Tests: tests/sources/paddle/test_paddle.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from haiprof.errors import HaiprofError
from haiprof.sources.found import PADDLE, Found, Source, is_url

_LOG: Final = re.compile(r"workerlog\.(\d{1,9})")
_MACHINE: Final = "machine"


def find(path: str) -> Found | None:
    """Find the worker logs at ``path``; None if there are none.

    Args:
        path: a log, the folder of one machine's, or the folder of the folders ``machine*``.

    Raises:
        HaiprofError: a log is behind a URL, or a folder with logs cannot be read.
    """
    if is_url(path):
        if _LOG.fullmatch(path.rsplit("/", 1)[-1]):
            raise HaiprofError(
                f"{path}: worker logs of Paddle are read from disk only: copy it, and give the copy"
            )
        return None
    place = Path(path).absolute()
    if _LOG.fullmatch(place.name) and place.is_file():
        return Found(path, False, (_source(place),))
    if not place.is_dir():
        return None
    try:
        logs = _logs(place)
        if logs:
            return Found(path, True, tuple(_source(log) for log in logs))
        return _several_machines(path, place)
    except OSError as error:
        raise HaiprofError(
            f"{error.filename or path}: cannot be read ({error.strerror}): ask its owner for access"
        ) from None


def _several_machines(path: str, place: Path) -> Found | None:
    with os.scandir(place) as listed:
        folders = [each.name for each in listed if each.name.startswith(_MACHINE) and each.is_dir()]
    machines = [logs for name in sorted(folders, key=_in_order) if (logs := _logs(place / name))]
    if not machines:
        return None
    each = 1 + max(device_of(log.name) for logs in machines for log in logs)
    sources = (
        _source(log, number * each, f"{log.parent.name}/")
        for number, logs in enumerate(machines)
        for log in logs
    )
    return Found(path, True, tuple(sources))


def _logs(folder: Path) -> list[Path]:
    with os.scandir(folder) as listed:
        names = [each.name for each in listed if _LOG.fullmatch(each.name) and each.is_file()]
    return [folder / name for name in sorted(names, key=device_of)]


def _in_order(name: str) -> tuple[int, str]:
    number = re.search(r"\d+", name)
    return (int(number[0]) if number else -1, name)


def device_of(name: str) -> int:
    """Return the number of the device whose log has this name."""
    return int(name.rpartition(".")[2])


def _source(log: Path, first: int = 0, above: str = "") -> Source:
    status = log.stat()
    return Source(
        tool=PADDLE,
        path=str(log),
        file=f"{above}{log.name}",
        worker=f"{above}{log.name}",
        rank=first + device_of(log.name),
        host=log.parent.name or None,
        span=1,
        bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
    )
