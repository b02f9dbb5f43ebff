"""The time that a deep trace takes from the job, as a phase of its own.

It begins and ends inside the optimizer's step, of which stopping torch's profiler is no part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from haiprof import _core


@contextlib.contextmanager
def own_time() -> Iterator[None]:
    """Have what runs inside counted as the phase ``deep_trace``, if this thread trains."""
    token = _core.begin_own_work()
    try:
        yield
    finally:
        _core.end_own_work(token)
