"""``haiprof collect``: gathers what each host has recorded in its own folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from haiprof.cli.arguments import UsageError
from haiprof.cli.hosts.names import hosts_named
from haiprof.cli.process.console import say
from haiprof.cli.process.progress import bytes_read
from haiprof.collect.gather import Collected, Outcome, collect
from haiprof.collect.named import on_host, source
from haiprof.collect.source import Source
from haiprof.common.printable import printable

_NOTHING: Final = 1
_NOT_ALL: Final = 3
_INTERRUPTED: Final = 130
#: Lines of one kind that are printed; more are counted.
_NAMED: Final = 8
_AGAIN: Final = "what has arrived is complete; run the same command for the rest"


def named(words: Sequence[str], nodes: str, hostfile: str) -> list[Source]:
    """Return what is to be collected from.

    Args:
        words: ``HOST:DIR``, folders, or URLs; with hosts only folders, which must exist on each.
        nodes: the value of ``--nodes``.
        hostfile: the value of ``--hostfile``.

    Raises:
        BadParameter: one of them is invalid.
    """
    try:
        hosts = hosts_named(nodes, hostfile)
        if not hosts:
            return [source(word) for word in words]
        return [on_host(host, word) for word in words for host in hosts]
    except (UsageError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None


def bring(sources: Sequence[Source], into: Path, run: str) -> int:
    """Collect, and print what has arrived.

    Returns:
        The exit code: 0; 1: nothing could be collected; 3: not from every source, or not all of
        it; 130: it was interrupted.

    Raises:
        HaiprofError: another process collects into the folder.
    """
    try:
        outcome = collect(sources, into, run, bytes_read)
    except KeyboardInterrupt:
        say(f"interrupted: {_AGAIN}")
        return _INTERRUPTED
    except OSError as error:
        say(f"{error.filename or into}: {error.strerror or error}: {_AGAIN}")
        return _NOTHING
    _say_each(list(dict.fromkeys(outcome.remarks)))
    _say_each(outcome.failed)
    _say_each(outcome.missing)
    for name, one in sorted(outcome.runs.items()):
        if one.live:
            where = ", ".join(sorted(one.live)[:_NAMED]) + (" …" if len(one.live) > _NAMED else "")
            say(
                f"{name}: still being recorded at {where}: collect again for the rest "
                "(where the recorder was killed: haiprof recover there)"
            )
        print(printable(_line(one)))
    if not outcome.runs:
        return _NOTHING
    return _NOT_ALL if _incomplete(outcome) else 0


def _incomplete(outcome: Outcome) -> bool:
    return bool(outcome.failed or outcome.missing)


def _line(one: Collected) -> str:
    what = f"{_count(len(one.nodes), 'node')}, {_count(len(one.processes), 'process', 'es')}"
    news = f"{len(one.new)} of them new or updated" if one.new else "nothing new"
    return f"{one.folder}: {what}, {news}"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def _say_each(lines: Sequence[str]) -> None:
    for line in lines[:_NAMED]:
        say(line)
    if len(lines) > _NAMED:
        say(f"and {len(lines) - _NAMED} more like that")
