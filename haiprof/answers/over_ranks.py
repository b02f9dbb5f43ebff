"""The map over ranks: the same work for each process of a run, on any executor.

If the work for one rank fails, the run loses only that rank; it is named.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from haiprof.common.cores import occupied
from haiprof.errors import HaiprofError
from haiprof.runs import Process
from haiprof.sources.arrow_memory import keep_some

_Result = TypeVar("_Result")
#: A process, or one with further arguments of its work.
Item = TypeVar("Item", Process, tuple[Process, Any])

#: Threads of this process, if no executor is given.
_MOST_THREADS: Final = 8
#: Processes submitted to an executor before the first result is taken: more would only occupy
#: memory, fewer would leave a large cluster idle.
_AHEAD: Final = 1024
#: … and at most so many of very many are submitted together.
_MOST_TOGETHER: Final = 16


def over_ranks(
    work: Callable[[Item], _Result],
    processes: Sequence[Item],
    executor: Executor | None,
    note: Callable[[str], None],
) -> Iterator[tuple[Item, _Result]]:
    """Yield each process with what its work returned, in the order of ``processes``.

    Args:
        work: must be picklable, unless the executor is of this process.
        processes: the processes to work on.
        executor: any of ``concurrent.futures``; a few threads when None.
        note: called with one line per process whose work failed; such processes are left out.

    Raises:
        HaiprofError: the executor itself is broken.
        Exception: the error of the first process, if the work of all failed.
    """
    if executor is None and len(processes) < 2:
        yield from ((process, work(process)) for process in processes)
    elif executor is None:
        threads = min(_MOST_THREADS, os.cpu_count() or 1, len(processes))
        with ThreadPoolExecutor(threads) as pool, occupied(threads):
            # The caller's context says whether tables are cached.
            yield from _taken(
                lambda one: pool.submit(copy_context().run, work, one), processes, note
            )
    else:
        many = min(_MOST_TOGETHER, len(processes) // _AHEAD)
        if many < 2:
            here = os.getpid()
            yield from _taken(
                lambda one: executor.submit(_worked, work, here, one), processes, note
            )
        else:
            yield from _in_groups(work, processes, many, executor, note)


class _Failed(NamedTuple):
    """What the work of one process of a group raised."""

    error: Exception


def _in_groups(
    work: Callable[[Item], _Result],
    processes: Sequence[Item],
    many: int,
    executor: Executor,
    note: Callable[[str], None],
) -> Iterator[tuple[Item, _Result]]:
    """Submit the work of several processes at a time: to submit costs as much as some work."""
    groups: list[Any] = [list(processes[at : at + many]) for at in range(0, len(processes), many)]
    failed: list[Exception] = []
    here = os.getpid()
    done = _taken(lambda group: executor.submit(_each, work, here, group), groups, note)
    for some, results in done:
        for process, result in zip(some, results, strict=True):
            if isinstance(result, _Failed):
                failed.append(result.error)
                note(f"{_named(process)} is left out: {_why(result.error)}")
            else:
                yield process, result
    if failed and len(failed) == len(processes):
        raise failed[0]


def _worked(work: Callable[[Item], _Result], asked: int, process: Item) -> _Result:
    """Do the work for a process that another one, ``asked``, or this one wants done."""
    _prepare(asked)
    return work(process)


@cache
def _prepare(asked: int) -> None:
    """Prepare this process for the work of many ranks; who asks goes on with other work."""
    if os.getpid() != asked:
        keep_some()


def _each(
    work: Callable[[Item], _Result], asked: int, group: Sequence[Item]
) -> list[_Result | _Failed]:
    _prepare(asked)
    results: list[_Result | _Failed] = []
    for process in group:
        try:
            results.append(work(process))
        except Exception as error:
            results.append(_Failed(_picklable(error)))
    return results


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # as of a class with arguments of its own
        return HaiprofError(f"{type(error).__name__}: {error}")
    return error


def _taken(
    submit: Callable[[Item], Future[_Result]],
    processes: Sequence[Item],
    note: Callable[[str], None],
) -> Iterator[tuple[Item, _Result]]:
    waiting: deque[tuple[Item, Future[_Result]]] = deque()
    rest = iter(processes)
    failed: list[Exception] = []
    try:
        while True:
            while len(waiting) < _AHEAD and (process := next(rest, None)) is not None:
                try:
                    waiting.append((process, submit(process)))
                except BrokenExecutor as error:
                    raise _broken(error) from error
            if not waiting:
                break
            process, future = waiting[0]
            try:
                result = future.result()
            except BrokenExecutor as error:
                raise _broken(error) from error
            except Exception as error:
                waiting.popleft()
                failed.append(error)
                note(f"{_named(process)} is left out: {_why(error)}")
                continue
            waiting.popleft()
            yield process, result
    finally:
        # Work that has begun may still write: whoever gives up removes that afterwards.
        wait([future for _, future in waiting if not future.cancel()])
    if failed and len(failed) == len(processes):
        raise failed[0]


def _broken(error: BrokenExecutor) -> HaiprofError:
    return HaiprofError(
        f"the executor is broken ({error}): see whether its processes had memory enough"
    )


def _named(item: Process | tuple[Process, Any] | list[Any]) -> str:
    if isinstance(item, list):
        return f"{_named(item[0])}, with {len(item) - 1} others,"
    process = item[0] if isinstance(item, tuple) else item
    return f"{process.folder}: {process.label or process.node}"


def _why(error: Exception) -> str:
    said = str(error).strip().splitlines()
    name = "" if isinstance(error, HaiprofError) else f"{type(error).__name__}: "
    return f"{name}{said[0] if said else 'no reason is given'}"
