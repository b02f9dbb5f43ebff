"""Which memory that reading and writing tables leaves behind is returned to the system, and when.

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
#: Not every C library has them.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
_set = getattr(ctypes.CDLL(None), "mallopt", None)
#: Options of ``mallopt``, and what they are set to: as much as the allocator itself would choose at
#: most, after large blocks were freed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20


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


def keep_some() -> None:
    """Have the system's allocator keep some of what is freed in this process, for what comes next.

    By default it gives back whatever is more than some hundred KB: who reads one rank after the
    other gets hundreds of new pages for each, of up to 10 µs.
    """
    if _set is not None:
        _set(_MMAP_THRESHOLD, _KEPT_BYTES)
        _set(_TRIM_THRESHOLD, _KEPT_BYTES)


def give_back() -> None:
    """Have the system reclaim free memory: milliseconds, and what comes next has room."""
    if _trim is not None:
        _trim(0)
