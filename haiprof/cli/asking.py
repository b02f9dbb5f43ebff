"""Sends one request to all ranks of a job at once, and prints the answers.

Tests: tests/cli/test_ps.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from haiprof.cli.process.console import say, spinner
from haiprof.common.printable import printable
from haiprof.control.client import ControlError, ask
from haiprof.control.jobs import OUTSIDE, Ambiguous, Process, at_once, matching

#: With more ranks than this, equal answers are counted; errors still get a line each.
_LINES: Final = 16

#: Exit codes, as :func:`ask_job` has them.
NOBODY: Final = 1
AMBIGUOUS: Final = 2
NOT_ALL: Final = 3
_NOT_DONE: Final = 4


class Answer(NamedTuple):
    """One rank's answer.

    Attributes:
        rank: its node and number, ``node1#0``.
        pid: as it is numbered there.
        result: None if there is none; ``error`` then says why.
        error: a line.
        busy: it did not answer in time.
    """

    rank: str
    pid: int
    result: dict[str, Any] | None
    error: str = ""
    busy: bool = False


def ask_job(
    target: str,
    request: str,
    timeout: float,
    line_of: Callable[[dict[str, Any]], str],
    arguments: Mapping[str, Any] | None = None,
) -> int:
    """Send a request to every rank of a job; print a line for each, or for equal answers.

    Args:
        target: a run, its folder, a pid or a script.
        request: its name.
        timeout: how long each rank may take, s.
        line_of: formats a result as a line, without the rank's name.
        arguments: of the request.

    Returns:
        The exit code: 0; 2: several runs match; 3: a rank did not answer in time; 4: one did
        not do it.

    Raises:
        HaiprofError: nothing matches.
    """
    with spinner(f"{request} {target}"):
        try:
            ranks = matching(target)
        except Ambiguous as error:
            say(str(error))
            return AMBIGUOUS
        answers = ask_ranks(ranks, request, timeout, arguments)
    return print_answers([("", answer) for answer in answers], line_of)


def ask_ranks(
    ranks: Sequence[Process],
    request: str,
    timeout: float,
    arguments: Mapping[str, Any] | None = None,
) -> list[Answer]:
    """Send a request to ranks of this node, to all at once."""

    def one(rank: Process) -> Answer:
        answer = _asked(rank, request, timeout, arguments)
        if isinstance(answer, ControlError):
            return Answer(rank.name, rank.pid, None, str(answer), answer.reason == "busy")
        return Answer(rank.name, rank.pid, answer)

    return list(at_once(one, ranks))


def print_answers(
    answers: Sequence[tuple[str, Answer]], line_of: Callable[[dict[str, Any]], str]
) -> int:
    """Print a line for each answer, or for equal ones.

    Args:
        answers: each with the prefix of its line.
        line_of: formats a result as a line, without the rank's name.

    Returns:
        The exit code, as :func:`ask_job` has it.
    """
    code = 0
    lines = []
    for before, answer in answers:
        if answer.result is None:
            say(f"{before}{answer.rank}: {answer.error}")
            code = max(code, NOT_ALL if answer.busy else _NOT_DONE)
            continue
        name = f"{before}{answer.rank} (pid {answer.pid})"
        try:
            lines.append((name, line_of(answer.result)))
        except KeyError as error:  # another user's program may say anything
            say(f"{name}: invalid answer: it lacks {error}")
            code = max(code, _NOT_DONE)
    if len(lines) <= _LINES:
        for name, line in lines:
            print(printable(f"{name}: {line}"))
    else:
        for line, ranks_alike in Counter(line for _, line in lines).most_common():
            print(printable(f"{ranks_alike} ranks: {line}"))
    return code


def _asked(
    rank: Process, request: str, timeout: float, arguments: Mapping[str, Any] | None
) -> dict[str, Any] | ControlError:
    if rank.state == OUTSIDE:
        text = f"process {rank.pid} is only observed from outside; the command that does so ends it"
        return ControlError("unloaded", text)
    if rank.socket is None:
        return ControlError("unloaded", f"process {rank.pid} has no socket; its stderr says why")
    try:
        return ask(rank.socket, request, arguments, timeout)
    except ControlError as error:
        return error
