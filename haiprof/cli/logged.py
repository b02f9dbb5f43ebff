"""Finds the runs that lie in log directories: all, the newest, the one that a name means.

Tests: tests/cli/test_ls.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from haiprof import schema
from haiprof.cli.arguments import UsageError
from haiprof.common.choices import near_path
from haiprof.errors import HaiprofError
from haiprof.options import resolve
from haiprof.sources.found import is_url
from haiprof.sources.own import newest_first, runs_in

#: Names that haiprof gives: of the script, and when it was started.
_STAMP: Final = re.compile(r"-\d{8}-\d{6}\b.*")
#: Runs that a line names.
_NAMED: Final = 5


def log_dir() -> Path:
    """Return the log directory of this environment."""
    return resolve({})[0].log_dir


def runs_at(folder: Path) -> list[Path]:
    """Return the run at ``folder``, or the runs in it, the newest first.

    Raises:
        HaiprofError: there is none, or it cannot be read.
    """
    if is_run(folder):
        return [folder]
    try:
        found = runs_in(folder)
    except FileNotFoundError:
        hint = near_path(folder)
        raise HaiprofError(
            f"{folder}: no such folder: {hint or 'give a log directory, or a run in one'}"
        ) from None
    except OSError as error:
        raise HaiprofError(f"{folder}: cannot be read ({error.strerror})") from None
    if not found:
        raise HaiprofError(
            f"{folder}: no run lies in it (no {schema.RUN_FILE}): give the folder that a run "
            "writes into, or its log directory"
        )
    return newest_first(found)


def is_run(folder: Path) -> bool:
    """Say whether a folder is that of a run."""
    try:
        return (folder / schema.RUN_FILE).is_file()
    except OSError:
        return False


def of_same_name(run: Path) -> str:
    """Return what the names of all runs of a script begin with."""
    return _STAMP.sub("", run.name)


def one_run(given: str | None, *, last: bool) -> str:
    """Return the run that a command is about.

    Args:
        given: what the user named; with ``last`` a log directory; None: nothing.
        last: the newest run is meant.

    Raises:
        HaiprofError: there is none.
        UsageError: nothing says which; the line names the newest ones.
    """
    if last:
        return str(runs_at(Path(given) if given else log_dir())[0])
    if given is None:
        raise UsageError(_which())
    return given


def two_runs(before: str | None, after: str | None, *, last: bool) -> tuple[str, str]:
    """Return the two runs that are compared, the earlier one first.

    Args:
        before: as of :func:`one_run`.
        after: the same.
        last: of two folders the newest run of each; of one, or of the log directory, its newest and
            the one of the same name before that.

    Raises:
        HaiprofError: there are not two.
        UsageError: nothing says which.
    """
    if not last:
        if before is None or after is None:
            raise UsageError(_which("BEFORE and AFTER"))
        return before, after
    if after is not None:
        return one_run(before, last=True), one_run(after, last=True)
    folder = Path(before) if before else log_dir()
    newest, *others = runs_at(folder)
    name = of_same_name(newest)
    for earlier in others:
        if of_same_name(earlier) == name:
            return str(earlier), str(newest)
    raise HaiprofError(f"{folder}: {newest.name} is the only run of its name there; name another")


def _which(words: str = "RUN") -> str:
    folder = log_dir()
    try:
        newest = runs_at(folder)
    except HaiprofError:
        return f"which run? give {words}; there is none in {folder}; see haiprof --help"
    names = ", ".join(run.name for run in newest[:_NAMED])
    more = f" and {len(newest) - _NAMED} older ones" if newest[_NAMED:] else ""
    there = f"{folder} has {names}{more}"
    return f"which run? give {words}, or --last for the newest; {there}; see haiprof ls"


def meant(path: str | Path) -> str | Path:
    """Return the path, or the run of that name in the log directory if nothing is there.

    Raises:
        HaiprofError: neither exists, and a run in the log directory is of a similar name.
    """
    text = str(path)
    if is_url(text) or "/" in text or Path(text).exists():
        return path
    in_logs = log_dir() / text
    if is_run(in_logs):
        return in_logs
    hint = "" if near_path(text) else near_path(in_logs)
    if hint:
        raise HaiprofError(f"{text}: no such file or folder, and no run in {log_dir()}: {hint}")
    return path
