"""Asks every rank of a job for the same, at once, and says what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from haiprof.cli.console import say, spinner
from haiprof.control.client import ControlError, ask
from haiprof.control.jobs import Ambiguous, Process, at_once, meant
from haiprof.printable import printable

#: More ranks than this are summed up, but for those where something is wrong.
_LINES: Final = 16

_AMBIGUOUS: Final = 2
_BUSY: Final = 3
_NOT_DONE: Final = 4


def ask_job(
    target: str, request: str, timeout: float, told: Callable[[dict[str, Any]], str]
) -> int:
    """Send a request to every rank of a job; print a line for each, or for all alike.

    Args:
        target: a run, its folder, a pid or a script.
        request: its name.
        timeout: how long each rank may take, s.
        told: makes the line, without the rank's name, of a result.

    Returns:
        The exit code: 0; 2: several runs are meant; 3: a rank did not answer in time; 4: one did
        not do it.

    Raises:
        HaiprofError: nobody is meant.
    """
    with spinner(f"{request} {target}"):
        try:
            ranks = meant(target)
        except Ambiguous as error:
            say(str(error))
            return _AMBIGUOUS
        answers = list(at_once(lambda rank: _asked(rank, request, timeout), ranks))
    code = 0
    lines = []
    for rank, answer in zip(ranks, answers, strict=True):
        if isinstance(answer, ControlError):
            say(f"{rank.name}: {answer}")
            code = max(code, _BUSY if answer.reason == "busy" else _NOT_DONE)
        else:
            lines.append((f"{rank.name} (pid {rank.pid})", told(answer)))
    if len(lines) <= _LINES:
        for name, line in lines:
            print(printable(f"{name}: {line}"))
    else:
        for line, ranks_alike in Counter(line for _, line in lines).most_common():
            print(printable(f"{ranks_alike} ranks: {line}"))
    return code


def _asked(rank: Process, request: str, timeout: float) -> dict[str, Any] | ControlError:
    if rank.socket is None:
        return ControlError("unloaded", f"process {rank.pid} has no socket; its stderr says why")
    try:
        return ask(rank.socket, request, timeout=timeout)
    except ControlError as error:
        return error
