"""Where the work of each rank is done: threads of this process, processes of it, or a cluster."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any, Final

from haiprof.errors import HaiprofError

#: How long to look for a scheduler, s.
_CONNECT_SECONDS: Final = 10
#: More processes would not help.
_MOST_WORKERS: Final = 1024


@contextlib.contextmanager
def executor_of(workers: int | None, dask: str | None) -> Iterator[Executor | None]:
    """Yield the executor that the user chose, and shut it down afterwards.

    Args:
        workers: the number of processes on this machine; None for threads of this one.
        dask: ``host:port`` of a Dask scheduler, whose workers see the same files.

    Raises:
        HaiprofError: both are given, or the given one is unavailable.
    """
    if workers is not None and dask is not None:
        raise HaiprofError("--workers and --dask: give one of them")
    if dask is not None:
        with _dask(dask) as executor:
            yield executor
    elif workers is not None:
        with _processes(workers) as executor:
            yield executor
    else:
        yield None


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Executor]:
    import multiprocessing

    if not 1 <= count <= _MOST_WORKERS:
        raise HaiprofError(f"--workers {count}: give a number from 1 to {_MOST_WORKERS}")
    # A fork of a process in which polars has threads would hang.
    context = multiprocessing.get_context("spawn")
    pool = _Pool(count, context, initializer=_end_at_interrupt)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """Processes that Ctrl-C ends silently, also while they start: the caller reports it."""

    def submit(self, *words: Any, **named: Any) -> Future[Any]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(*words, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_at_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise HaiprofError(
            "--dask: the package distributed is not installed here: pip install distributed"
        ) from None
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except Exception as error:  # a wrong address has an error of its own for each mistake
        said = str(error).strip().splitlines()
        raise HaiprofError(
            f"--dask {address}: no scheduler answers ({said[0] if said else type(error).__name__}):"
            " give host:port of a running one"
        ) from None
    with client:
        _check(client.run(_installed), address)
        # Pure work, but of files that may change: nothing may come from another command's results.
        executor: Executor = client.get_executor(pure=False)
        yield executor


def _installed() -> str | None:
    """Return the version of haiprof that a worker has; None where it has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("haiprof")
    except PackageNotFoundError:
        return None


def _check(found: dict[str, str | None], address: str) -> None:
    from haiprof import __version__

    if not found:
        raise HaiprofError(f"--dask {address}: it has no workers: start some (dask worker)")
    for worker, theirs in found.items():
        if theirs != __version__:
            has = "none" if theirs is None else theirs
            raise HaiprofError(
                f"--dask {address}: worker {worker} has haiprof {has}, and here is {__version__}: "
                "install the same version on all"
            )
