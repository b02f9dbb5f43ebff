"""Work beside the caller's, on cores that this process does not use yet."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, Generic, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")

#: One for each core but that of the caller.
_free: Final = threading.Semaphore(
    (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) - 1
)


class Beside(Generic[Made]):
    """Work that another thread does, or, where no core is free, whoever asks for its result.

    For work that leaves the GIL to others most of the time.
    """

    def __init__(
        self,
        work: Callable[Arguments, Made],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        """Begin it, if a core is free; in the caller's context."""
        self._work = functools.partial(copy_context().run, work, *args, **kwargs)
        self._future: Future[Made] | None = None
        if _free.acquire(blocking=False):
            pool = ThreadPoolExecutor(1)
            try:
                self._future = pool.submit(self._work)
            except RuntimeError:  # the process may have no more threads
                _free.release()
            else:
                self._future.add_done_callback(lambda _: _free.release())
            pool.shutdown(wait=False)

    def result(self) -> Made:
        """Return what the work returns; to be asked for once.

        Raises:
            Exception: what the work raises.
        """
        return self._work() if self._future is None else self._future.result()


@contextlib.contextmanager
def occupied(threads: int) -> Iterator[None]:
    """Say that this many threads work meanwhile, and the caller does not."""
    taken = 0
    try:
        while taken < threads - 1 and _free.acquire(blocking=False):
            taken += 1
        yield
    finally:
        for _ in range(taken):
            _free.release()
