"""Returns to the system the memory that reading and writing tables leaves behind.

Arrow's own allocator is fast, but each of its threads keeps what it once allocated. The system's
allocator frees memory when asked to.

Tests: tests/sources/test_tables.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

import pyarrow as pa

_lock = threading.Lock()
#: How many callers are within :func:`from_system`, and Arrow's allocator before the first of them.
_inside = 0
_before = pa.default_memory_pool()
#: Not every C library has it.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


@contextlib.contextmanager
def from_system() -> Iterator[None]:
    """Have Arrow allocate from the system meanwhile, in all threads, which harms none."""
    global _inside, _before
    with _lock:
        if not _inside:
            _before = pa.default_memory_pool()
            pa.set_memory_pool(pa.system_memory_pool())
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                pa.set_memory_pool(_before)


def give_back() -> None:
    """Have the system reclaim free memory: milliseconds, and what comes next has room."""
    if _trim is not None:
        _trim(0)
