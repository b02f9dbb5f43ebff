"""Whole tables in memory while several answers read them, so that each is read from disk once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

_Table = TypeVar("_Table")

#: Bytes of all tables in memory. Of a run with more, those that come first are in memory, and the
#: others are read for each answer, by column.
LIMIT: Final = 256 << 20
#: Bytes in memory of one on disk, at most: compressed, and with every column.
_EXPANSION: Final = 8


class TableCache(Generic[_Table]):
    """Tables by process folder and name; any thread may ask.

    Args:
        limit: bytes of all tables together.
    """

    def __init__(self, limit: int) -> None:
        """Contain nothing yet."""
        self._left = limit
        self._tables: dict[tuple[Path, str], _Table | None] = {}
        self._locks: dict[tuple[Path, str], threading.Lock] = {}
        self._lock = threading.Lock()

    def get(
        self,
        folder: Path,
        table: str,
        on_disk: Callable[[], int],
        load: Callable[[], tuple[_Table, int]],
    ) -> _Table | None:
        """Return a table; None if it is too large to stay in memory.

        Args:
            folder: the process folder.
            table: its name.
            on_disk: returns the size of its files, bytes.
            load: reads it; returns it, and its size in memory, bytes.
        """
        key = (folder, table)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._tables:
                self._tables[key] = self._loaded(on_disk() * _EXPANSION, load)
            return self._tables[key]

    def _loaded(self, expected: int, load: Callable[[], tuple[_Table, int]]) -> _Table | None:
        with self._lock:
            if expected > self._left:
                return None
            self._left -= expected
        used = 0
        try:
            loaded, used = load()
            return loaded
        finally:
            with self._lock:
                self._left += expected - used


_current: ContextVar[TableCache[Any] | None] = ContextVar("table_cache", default=None)


def current() -> TableCache[Any] | None:
    """Return the cache of this thread's work, if it has one."""
    return _current.get()


@contextlib.contextmanager
def caching_tables() -> Iterator[None]:
    """Read each table of each process once within this block, if they fit into memory.

    Tables that grow meanwhile are as they were when first read, which makes all answers agree.
    Work in threads is included if it runs in a copy of the caller's context.
    """
    if _current.get() is not None:  # a block within a block
        yield
        return
    token = _current.set(TableCache(LIMIT))
    try:
        yield
    finally:
        _current.reset(token)
