"""``haiprof attach``: records a job that is running, for a while, and says what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from haiprof.cli.console import say, spinner
from haiprof.cli.progress import seconds_passing
from haiprof.control.attach import Attached, AttachError, Wanted, alive, attach, bring, way_to
from haiprof.control.client import ControlError
from haiprof.control.find import Found, find
from haiprof.control.jobs import at_once
from haiprof.errors import HaiprofError
from haiprof.places import safe_name

_NOBODY: Final = 2
_NOT_ALL: Final = 3
_INTERRUPTED: Final = 130
#: Ranks that are named one by one.
_NAMED: Final = 8
_TELLING: Final = 3


def attach_to(
    target: str,
    asked: Wanted,
    *,
    dry_run: bool,
    report: bool,
) -> int:
    """Record the processes that ``target`` means, wait, and say where the result is.

    Args:
        target: a pid, a script, a task, or a container, as :func:`haiprof.control.find.find` has
            it.
        asked: what to record.
        dry_run: only say which processes are meant and how each would be reached.
        report: write the report, too.

    Returns:
        The exit code: 0; 2: nobody is meant; 3: some process was not reached, or only looked at
        from outside, or nothing was recorded; 130: it was interrupted, and ended early.
    """
    processes = find(target)
    if not processes:
        say(
            f"{target}: no Python process here runs it, and it is no command of haiprof; "
            "see haiprof ps, haiprof --help"
        )
        return _NOBODY
    if dry_run:
        return _tell_ways(processes)
    attached, code = _attach_all(processes, asked)
    if not attached:
        return _NOT_ALL
    try:
        with seconds_passing(_words(attached, asked), asked.warmup + asked.seconds) as told:
            _wait(attached, asked, told)
    except KeyboardInterrupt:
        code = _INTERRUPTED
        say("interrupted: the recording ends here, the job goes on")
    if not _end_all(attached):
        code = code or _NOT_ALL
    for run_dir in dict.fromkeys(a.run_dir for a in attached):
        if not _tell(run_dir, report):
            code = code or _NOT_ALL
    return code


def made_up_run(target: str) -> str:
    """Return a name for the run."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return safe_name(f"{Path(target).stem}-{stamp}")


def _tell_ways(processes: Sequence[Found]) -> int:
    code = 0
    for process in processes:
        way, why = way_to(process)
        said = {
            "socket": "has haiprof loaded: is asked through its socket",
            "injector": "haiprof would be brought into it",
            "outside": f"could only be looked at from outside: {why}",
        }[way]
        print(f"{process.label}: {said}")
        code = code or (_NOT_ALL if way == "outside" else 0)
    return code


def _attach_all(processes: Sequence[Found], asked: Wanted) -> tuple[list[Attached], int]:
    def one(process: Found) -> Attached | HaiprofError:
        try:
            return attach(process, asked)
        except (AttachError, ControlError) as error:
            return error

    with spinner("reaching the job"):
        made = list(at_once(one, processes))
    attached = [each for each in made if isinstance(each, Attached)]
    failed = [each for each in made if isinstance(each, HaiprofError)]
    for error in failed[:_NAMED]:
        say(str(error))
    outside = [each for each in attached if each.way == "outside"]
    for each in outside[:_NAMED]:
        say(f"{each.process.label}: only from outside: {each.why}")
    more = len(failed) + len(outside) - 2 * _NAMED
    if more > 0:
        say(f"and {more} more processes")
    for each in [a for a in attached if not a.began][:1]:
        say(f"the job is being recorded already, into {each.run_dir}; that goes on")
    return attached, _NOT_ALL if failed or outside else 0


def _words(attached: Sequence[Attached], asked: Wanted) -> str:
    ranks = f"{len(attached)} processes" if len(attached) > 1 else attached[0].process.label
    return f"{'tracing' if asked.trace else 'recording'} {ranks}"


def _wait(attached: Sequence[Attached], asked: Wanted, told: Callable[[float], None]) -> None:
    begun = time.monotonic()
    whole = asked.warmup + asked.seconds
    while (passed := time.monotonic() - begun) < whole:
        if not alive(attached):
            say("the job has ended")
            return
        told(passed)
        time.sleep(min(0.2, whole - passed))


def _end_all(attached: Sequence[Attached]) -> bool:
    def end(each: Attached) -> str:
        try:
            each.end()
        except ControlError as error:
            return str(error)
        return ""

    with spinner("closing the files"):
        said = [line for line in at_once(end, attached) if line] + bring(attached)
    for line in said[:_NAMED]:
        say(line)
    return not said


def _tell(run_dir: Path, report: bool) -> bool:
    """Say what was recorded; False when nothing was."""
    from haiprof.cli.report import open_run

    say(f"run {run_dir}")
    try:
        with spinner("reading the run"):
            run = open_run(run_dir)
            lines = run.headline()
        for line in lines[:_TELLING]:
            say(f"  {line}")
        if report:
            with spinner("writing the report"):
                say(f"report {run.report(run_dir / 'report.html')}")
        say(f"see it with: haiprof report {run_dir}")
    except HaiprofError as error:
        say(str(error))
        return False
    return True


def options_given(
    kernels: str | None, recorders: str | None, sample_hz: float | None
) -> tuple[tuple[str, Any], ...]:
    """Return the options that were given, checked.

    Raises:
        HaiprofError: one cannot be.
    """
    from haiprof.options import OPTIONS

    given = {"kernels": kernels, "recorders": recorders, "sample_hz": sample_hz}
    made = tuple((name, value) for name, value in given.items() if value is not None)
    for name, value in made:
        wrong = OPTIONS[name].check(value)
        if wrong is not None:
            raise HaiprofError(f"--{name.replace('_', '-')} {value}: {wrong}")
    return made
