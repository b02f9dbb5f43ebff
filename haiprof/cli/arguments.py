"""Reads the words after ``haiprof run``, and explains them; both from ``haiprof.options``.

Written by hand because typer takes longer to import than everything else that ``haiprof run`` does
before the command starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from haiprof.options import OPTIONS, Option, Options

_REPORT: Final = "report"
_REPORT_MEANING: Final = "write report.html into the run's folder afterwards"


class UsageError(Exception):
    """Words that the command line does not know; ``str()`` of it is one line for the user."""


@dataclass(slots=True)
class RunArguments:
    """What the words after ``haiprof run`` ask for."""

    given: dict[str, Any] = field(default_factory=dict)
    report: bool = False
    help: bool = False
    command: list[str] = field(default_factory=list)


def parse(words: Sequence[str], command: str = "run") -> RunArguments:
    """Read options up to ``--`` or the first word that is none; the rest is the command.

    Args:
        words: what follows ``haiprof run`` or ``haiprof trace``.
        command: which of the two.

    Raises:
        UsageError: an option that does not exist, or a value that it cannot have.
    """
    read = RunArguments()
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            read.command = waiting
            break
        if not word.startswith("-") or word == "-":
            read.command = [word, *waiting]
            break
        if word in ("--help", "-h"):
            read.help = True
            return read
        _read_option(word, waiting, read, command)
    if not read.command:
        raise UsageError(f"which command? give it after the options: haiprof {command} train.py")
    return read


def _read_option(word: str, waiting: list[str], read: RunArguments, command: str) -> None:
    flag, equals, text = word.partition("=")
    name = flag[2:].replace("-", "_") if flag.startswith("--") else ""
    switch = name.removeprefix("no_")
    if name == _REPORT or (switch in OPTIONS and _is_switch(OPTIONS[switch])):
        if equals:
            raise UsageError(f"{flag} takes no value, but was given {text!r}")
        if name == _REPORT:
            read.report = True
        else:
            read.given[switch] = name == switch
        return
    option = OPTIONS.get(name)
    if option is None:
        known = ", ".join(row[0] for row in _table())
        shown = flag if flag.isprintable() else repr(flag)
        raise UsageError(f"there is no option {shown} of {command}; the options are {known}")
    if not equals:
        if not waiting:
            raise UsageError(f"{flag} needs a value: {option.meaning}")
        text = waiting.pop(0)
    try:
        value = option.parse(text)
        wrong = option.check(value)
    except ValueError:
        wrong = f"is not {_KINDS[option.parse.__name__]}"
    if wrong is not None:
        raise UsageError(f"{flag} {text!r} {wrong} ({option.meaning})")
    read.given[name] = value


_KINDS: Final = {"float": "a number", "int": "a whole number"}


def _is_switch(option: Option) -> bool:
    return isinstance(_default(option), bool)


def _default(option: Option) -> Any:
    return getattr(Options(), option.name)


def _table() -> list[tuple[str, str, str]]:
    """Return (flags, operand, meaning) of every option."""
    rows = []
    for option in OPTIONS.values():
        flag = "--" + option.name.replace("_", "-")
        default = _default(option)
        if isinstance(default, bool):
            shown = "on" if default else "off"
            rows.append((f"{flag}/--no-{flag[2:]}", "", f"{option.meaning} [{shown}]"))
        else:
            operand = option.parse.__name__.strip("_").upper().replace("STR", "NAME")
            shown = f" [{default}]" if str(default) else ""
            rows.append((flag, operand, f"{option.meaning}{shown}"))
    rows.append((f"--{_REPORT}", "", _REPORT_MEANING))
    return rows


def help_text(command: str = "run") -> str:
    """Return what ``haiprof run --help`` or ``haiprof trace --help`` prints."""
    rows = [(f"  {flag} {operand}".rstrip(), meaning) for flag, operand, meaning in _table()]
    rows.append(("  --help", "show this and leave"))
    width = max(len(left) for left, _ in rows) + 2
    options = "\n".join(f"{left:<{width}}{meaning}" for left, meaning in rows)
    also = ", with a deep trace of\neach" if command == "trace" else ""
    return f"""Usage: haiprof {command} [OPTIONS] [--] CMD...

Run a command with haiprof recording every process of it that trains{also}; no change to the code.
A CMD that ends in .py is run by this Python. Its exit code and signals pass through.

Options, each also as a variable HAIPROF_<NAME>:
{options}
"""
