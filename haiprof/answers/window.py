"""The part of a run that is in a window of time.

Tests: tests/export/test_chosen.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from haiprof.runs import ROLE_NODE, Process, Run
from haiprof.sources.own import LATEST_NS

#: No run lasts longer: more ns would not fit.
_LONGEST_S: Final = 1e9


def at(run: Run, seconds: float) -> int:
    """Return a time of a run, s since it began, as ns UTC."""
    return run.created_ns + int(min(max(seconds, 0.0), _LONGEST_S) * 1e9)


def lasted(run: Run) -> float | None:
    """Return how long a run lasted until its last process ended, s; None if none has ended."""
    ends = [end for process in run.processes for _, end in [_life(process)] if end is not None]
    return (max(ends) - run.created_ns) / 1e9 if ends else None


def part(run: Run, first: int, last: int) -> Run | None:
    """Return the part of a run that is in a window, ns UTC; None if no process is in it."""
    cut = [_cut(process, first, last) for process in run.processes]
    parts = [process for process in cut if process is not None]
    if all(process.role == ROLE_NODE for process in parts):
        return None
    return replace(run, processes=tuple(parts))


def complete(run: Run, *names: str) -> Run:
    """Return the part of a run in which these tables of all its processes are complete.

    That is all of it, unless some of their rows were removed: see :class:`haiprof.runs.Thinned`.
    """
    since = [process.complete_since(*names) for process in run.processes]
    known = [at for at in since if at is not None]
    if not known:
        return run
    windows = [process.window for process in run.processes if process.window is not None]
    last = max((end for _, end in windows), default=LATEST_NS)
    rest = part(run, max(known + [begin for begin, _ in windows]), last)
    if rest is None:
        return replace(run, processes=())
    live = {process.folder for process in run.processes if process.ended_ns is None}
    return replace(
        rest,
        processes=tuple(
            replace(process, ended_ns=None) if process.folder in live else process
            for process in rest.processes
        ),
    )


def _life(process: Process) -> tuple[int | None, int | None]:
    trace = process.trace
    return (process.started_ns, process.ended_ns) if trace is None else (trace.begin, trace.end)


def _cut(process: Process, first: int, last: int) -> Process | None:
    begin, end = _life(process)
    if last <= first or (begin or 0) >= last or (end is not None and end < first):
        return None
    begin, end = max(begin or 0, first), last if end is None else min(end, last)
    trace = None if process.trace is None else replace(process.trace, begin=begin, end=end)
    # Within a window no process is older than it.
    born = process.process_started_ns
    return replace(
        process,
        started_ns=begin,
        ended_ns=end,
        process_started_ns=None if born is None else max(born, first),
        trace=trace,
        window=(first, last),
    )
