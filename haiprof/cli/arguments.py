"""Reads the words after ``haiprof run``, and explains them; both from ``haiprof.options``.

Job options (``--nodes``, ``--name``, ``--options profile.time=120``) may stand behind the script,
too, as schedulers' launchers take them: :func:`_split` has the rule.

Written by hand because typer takes longer to import than everything else that ``haiprof run`` does
before the command starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from haiprof.common.choices import did_you_mean
from haiprof.options import HOST_RECORDERS, OPTIONS, Option, Options

_REPORT: Final = "report"
_REPORT_MEANING: Final = "write report.html into the run's folder afterwards"
#: What may stand behind the script as well.
_JOB_FLAGS: Final = ("-n", "--nodes", "--name", "--options")
#: Keys of ``--options``, and the option that each one sets.
_PROFILE_KEYS: Final = {
    "profile.time": "time",
    "profile.warmup": "warmup",
    "profile.trace": "trace",
    "profile.recorder": "recorders",
    **{f"profile.interval.{name}": f"{name}_interval" for name in HOST_RECORDERS},
}
_MOST_NODES: Final = 100_000


class UsageError(Exception):
    """The command line is wrong; ``str()`` of it is one line for the user."""


@dataclass(slots=True)
class RunArguments:
    """What the words after ``haiprof run`` ask for."""

    given: dict[str, Any] = field(default_factory=dict)
    report: bool = False
    help: bool = False
    command: list[str] = field(default_factory=list)
    #: On how many hosts the command starts, and on which; not given: on this one.
    nodes: int | None = None
    hosts: str = ""
    hostfile: str = ""


def parse(words: Sequence[str], command: str = "run") -> RunArguments:
    """Read options up to ``--`` or the first word that is not one; the rest is the command.

    Behind the command of ``run`` may be job options, unless ``--`` stood before it.

    Args:
        words: what follows ``haiprof run`` or ``haiprof trace``.
        command: ``run`` or ``trace``.

    Raises:
        UsageError: an unknown option, or an invalid value.
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
            if command == "run":
                read.command, behind = _split(read.command)
                while behind:
                    _read_option(behind.pop(0), behind, read, command)
            break
        if word in ("--help", "-h"):
            read.help = True
            return read
        _read_option(word, waiting, read, command)
    if not read.command:
        raise UsageError(f"missing command: put it after the options: haiprof {command} train.py")
    return read


def _split(command: list[str]) -> tuple[list[str], list[str]]:
    """Split a command from the job options behind it.

    Words behind a script are the script's. Ours is what follows a ``--`` when all of it to the end
    is job options; without one the longest such end that has an ``--options profile.…`` in it.
    """
    for start in range(1, len(command)):
        marked = command[start] == "--"
        keys = _option_keys(command[start + marked :])
        if keys is not None and (marked or any(key.startswith("profile.") for key in keys)):
            return command[:start], command[start + marked :]
    return command, []


def _option_keys(words: list[str]) -> list[str] | None:
    """Return the keys of ``--options`` if all words are job options, else None."""
    keys = []
    waiting = list(words)
    while waiting:
        flag, equals, text = waiting.pop(0).partition("=")
        if flag not in _JOB_FLAGS:
            return None
        if not equals:
            if not waiting or waiting[0].startswith("-"):
                return None
            text = waiting.pop(0)
        if flag in ("-n", "--nodes") and not text.isdecimal():
            return None
        if flag == "--options":
            key, equals, _ = text.partition("=")
            if not equals:
                return None
            keys.append(key)
    return keys if words else None


def _read_job_option(flag: str, text: str, read: RunArguments) -> None:
    if flag == "--hosts":
        read.hosts = text
    elif flag == "--hostfile":
        read.hostfile = text
    elif flag == "--name":
        read.given["run"] = checked(flag, text, OPTIONS["run"])
    elif flag == "--options":
        key, equals, value = text.partition("=")
        name = _PROFILE_KEYS.get(key)
        if name is None or not equals:
            known = ", ".join(_PROFILE_KEYS)
            hint = f"{did_you_mean(key, _PROFILE_KEYS)} ".lstrip()
            shown = text if text.isprintable() else repr(text)
            raise UsageError(f"--options {shown}: it takes KEY=VALUE; {hint}the keys are {known}")
        read.given[name] = checked(f"--options {key}", value, OPTIONS[name])
    else:
        # A number of more digits is refused without converting it.
        if not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_NODES:
            raise UsageError(f"{flag} {text!r} must be a whole number from 1 to {_MOST_NODES}")
        read.nodes = int(text)


def checked(flag: str, text: str, option: Option) -> Any:
    """Return ``text`` parsed as the value of an option.

    Raises:
        UsageError: the value is invalid.
    """
    try:
        value = option.parse(text)
        wrong = option.check(value)
    except ValueError:
        wrong = f"is not {_KINDS[option.parse.__name__]}"
    if wrong is not None:
        raise UsageError(f"{flag} {text!r} {wrong} ({option.meaning})")
    return value


def _read_option(word: str, waiting: list[str], read: RunArguments, command: str) -> None:
    flag, equals, text = word.partition("=")
    name = flag[2:].replace("-", "_") if flag.startswith("--") else ""
    switch = name.removeprefix("no_")
    if name == _REPORT or (switch in OPTIONS and is_switch(OPTIONS[switch])):
        if equals:
            raise UsageError(f"{flag} takes no value, but was given {text!r}")
        if name == _REPORT:
            read.report = True
        else:
            read.given[switch] = name == switch
        return
    meaning = _job_meanings().get(flag) if command == "run" else None
    option = OPTIONS.get(name)
    if meaning is None and option is None:
        rows = [row[0] for row in _table(command)]
        hint = f"{did_you_mean(flag, flags(command))} ".lstrip()
        shown = flag if flag.isprintable() else repr(flag)
        raise UsageError(
            f"there is no option {shown} of {command}; {hint}the options are {', '.join(rows)}"
        )
    if not equals:
        if not waiting:
            raise UsageError(f"{flag} needs a value: {meaning or (option and option.meaning)}")
        text = waiting.pop(0)
    if meaning is not None:
        _read_job_option(flag, text, read)
    else:
        assert option is not None
        read.given[name] = checked(flag, text, option)


_KINDS: Final = {"float": "a number", "int": "a whole number", "_boolean": "0 or 1"}


def _job_table() -> list[tuple[str, str, str]]:
    return [
        ("-n/--nodes", "N", "start the command once on each of N hosts"),
        ("--hosts", "A,B,...", "these hosts (else HAIPROF_HOSTS, or SLURM's)"),
        ("--hostfile", "FILE", "a file of hosts, one per line (else HAIPROF_HOSTFILE)"),
        ("--name", "NAME", "the same as --run"),
        ("--options", "KEY=VALUE", "profile.time, .warmup, .trace, .recorder, .interval.NAME"),
    ]


def _job_meanings() -> dict[str, str]:
    return {flag: row[2] for row in _job_table() for flag in row[0].split("/")}


def is_switch(option: Option) -> bool:
    """Return whether the option takes no value."""
    return isinstance(default(option), bool)


def default(option: Option) -> Any:
    """Return the option's default value."""
    return getattr(Options(), option.name)


def _table(command: str = "run") -> list[tuple[str, str, str]]:
    """Return (flags, operand, meaning) of every option."""
    rows = []
    for option in OPTIONS.values():
        flag = "--" + option.name.replace("_", "-")
        usual = default(option)
        if isinstance(usual, bool):
            shown = "on" if usual else "off"
            rows.append((f"{flag}/--no-{flag[2:]}", "", f"{option.meaning} [{shown}]"))
        else:
            operand = option.parse.__name__.strip("_").upper().replace("STR", "NAME")
            shown = f" [{usual}]" if str(usual) else ""
            rows.append((flag, operand, f"{option.meaning}{shown}"))
    rows.append((f"--{_REPORT}", "", _REPORT_MEANING))
    return [*rows, *_job_table()] if command == "run" else rows


def flags(command: str) -> list[str]:
    """Return the options of ``run`` or ``trace``, in the order of their help."""
    return [flag for row in _table(command) for flag in row[0].split("/")] + ["--help"]


def help_text(command: str = "run") -> str:
    """Return what ``haiprof run --help`` or ``haiprof trace --help`` prints."""
    rows = [(f"  {flag} {operand}".rstrip(), meaning) for flag, operand, meaning in _table(command)]
    rows.append(("  --help", "show this and exit"))
    width = max(len(left) for left, _ in rows) + 2
    options = "\n".join(_row(left, meaning, width) for left, meaning in rows)
    also = ",\nwith a deep trace of each" if command == "trace" else ""
    return f"""Usage: haiprof {command} [OPTIONS] [--] CMD...

Run a command with haiprof recording every process of it that trains{also}; no
change to the code. A CMD that ends in .py is run by the first Python on PATH,
if haiprof is there, else by haiprof's own. Its exit code and signals pass
through.

Options, each also as a variable HAIPROF_<NAME>:
{options}
{_BEHIND if command == "run" else ""}"""


def _row(left: str, meaning: str, width: int) -> str:
    """Return a line of a terminal with 80 columns, or several."""
    import textwrap

    return textwrap.fill(
        meaning,
        _COLUMNS,
        initial_indent=left.ljust(width),
        subsequent_indent=" " * width,
        break_long_words=False,
        break_on_hyphens=False,
    )


#: Of a terminal as it opens.
_COLUMNS: Final = 80
_BEHIND: Final = """
--nodes, --name and --options may stand behind CMD, too: after a -- when only
they follow, and without one when an --options profile.KEY=VALUE is among them:
  haiprof run train.py --lr 1 -- -n 1 --options profile.time=120
  haiprof run train.py --lr 1 --nodes 8 --options profile.trace=1
All other words behind CMD are its own; with haiprof run -- CMD... all of them
are.
"""
