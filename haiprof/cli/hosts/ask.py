"""``haiprof ps``, ``stop`` and ``flush`` with ``--nodes``: of several hosts' processes at once.

For a request each host first says which of its ranks match. Only when all have answered, and the
matches are of one run, the ranks are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from haiprof.cli.asking import AMBIGUOUS, NOBODY, NOT_ALL, Answer, print_answers
from haiprof.cli.hosts.fan_out import ANSWER_SECONDS, Host, Hosts, names
from haiprof.cli.process.console import say, spinner
from haiprof.control.jobs import Ambiguous, Process

_MODULE = "haiprof.cli.hosts.ask_end"


def processes_on(hosts: Sequence[str]) -> tuple[list[tuple[str, Process]], bool]:
    """Return the processes that haiprof is loaded in, each with its host.

    Returns:
        Them, and whether every host has answered.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    with Hosts(hosts, _MODULE, {"request": "ps"}) as everyone:
        with spinner(f"asking {len(everyone.hosts)} hosts"):
            answered = _those_that_say("processes", everyone)
        found = [
            (host.name, Process(**process))
            for host in answered
            for process in host.said["processes"]
        ]
        return found, len(answered) == len(everyone.hosts)


def ask_on(
    hosts: Sequence[str],
    target: str,
    request: str,
    timeout: float,
    line_of: Callable[[dict[str, Any]], str],
    arguments: Mapping[str, Any] | None = None,
) -> int:
    """Send a request to every rank of a job on several hosts; print a line per answer.

    Args:
        hosts: where.
        target: see :func:`haiprof.cli.asking.ask_job`.
        request: its name.
        timeout: how long each rank may take, s.
        line_of: formats a result as a line, without the rank's name.
        arguments: of the request.

    Returns:
        The exit code: that of :func:`haiprof.cli.asking.ask_job`; 1: nothing matches on any host;
        3, too: on some host nothing matches, or it did not answer.

    Raises:
        KeyboardInterrupt: Ctrl-C; what hosts had answered before is printed.
    """
    task = {"request": request, "target": target, "timeout": timeout}
    task["arguments"] = dict(arguments or {})
    with Hosts(hosts, _MODULE, task) as everyone:
        with spinner(f"{request} {target}"):
            answered = _those_that_say("found", everyone)
        matching = [host for host in answered if host.said["found"]]
        runs = sorted({run for host in answered for run in host.said["runs"]})
        if target.isdecimal() and len(matching) > 1:
            say(f"{target} is a process on each of {names(matching)}; name one of them, or a run")
            return AMBIGUOUS
        if len(runs) > 1:
            say(str(Ambiguous(target, runs)))
            return AMBIGUOUS
        for why in dict.fromkeys(host.said["why"] for host in answered if "why" in host.said):
            say(f"{names([h for h in answered if h.said.get('why') == why])}: {why}")
        complete = len(matching) == len(everyone.hosts)
        if not matching:
            return NOBODY if len(answered) == len(everyone.hosts) else NOT_ALL
        for host in matching:
            host.node.send(b"a")
        with spinner(f"{request} {target}"):
            everyone.listen(
                ANSWER_SECONDS + timeout,
                until=lambda host: "answers" in host.said or host not in matching,
            )
        code = print_answers(
            [
                (f"{host.name}: ", Answer(*answer))
                for host in matching
                for answer in host.said.get("answers", ())
            ],
            line_of,
        )
        for host in matching:
            if "answers" not in host.said:
                host.give_up("did not report the outcome; it may have been done there")
                complete = False
        if everyone.interrupted:
            raise KeyboardInterrupt
        return code if complete else max(code, NOT_ALL)


def _those_that_say(what: str, everyone: Hosts) -> list[Host]:
    """Wait for each host's first answer; name those that give none.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    everyone.listen(ANSWER_SECONDS, until=lambda host: what in host.said)
    if everyone.interrupted:
        raise KeyboardInterrupt
    for host in everyone.of(lambda host: what not in host.said):
        host.give_up("does not answer" if host.running else "cannot be asked: see above")
    return everyone.of(lambda host: what in host.said)
