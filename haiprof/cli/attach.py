"""``haiprof attach``: records a running job for a while and prints a summary."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from haiprof.cli.process.console import say, spinner
from haiprof.cli.process.interrupts import finished
from haiprof.cli.process.progress import seconds_passing
from haiprof.common.choices import did_you_mean
from haiprof.common.places import safe_name
from haiprof.control.attach import (
    Attached,
    AttachError,
    RecordingPlan,
    alive,
    attach,
    bring,
    way_to,
)
from haiprof.control.client import ControlError
from haiprof.control.find import Found, find
from haiprof.control.jobs import at_once
from haiprof.errors import HaiprofError

#: Exit codes, as :func:`attach_to` has them.
NOBODY: Final = 2
NOT_ALL: Final = 3
INTERRUPTED: Final = 130
ENDS_HERE: Final = "interrupted: the recording ends here, the job goes on"
CLOSES_FIRST: Final = "interrupted: the files are being closed, the job goes on"
#: Ranks that are named one by one.
_NAMED: Final = 8
_TELLING: Final = 3


def attach_to(
    target: str,
    plan: RecordingPlan,
    *,
    dry_run: bool,
    report: bool,
    commands: Collection[str],
) -> int:
    """Record the processes that match ``target``, wait, and say where the result is.

    Args:
        target: a pid, a script, a task, or a container; see :func:`haiprof.control.find.find`.
        plan: what to record.
        dry_run: only list the matching processes and how each would be reached.
        report: write the report, too.
        commands: all of haiprof's, to suggest one for a typo.

    Returns:
        The exit code: 0; 2: nothing matches; 3: some process was not reached, or only observed
        from outside, or nothing was recorded; 130: it was interrupted, and ended early.
    """
    processes = find(target)
    if not processes:
        hint = did_you_mean(target, commands)
        say(
            f"{target}: no Python process here runs it, and it is not a haiprof command"
            f"{f': {hint}' if hint else ';'} see haiprof ps, haiprof --help"
        )
        return NOBODY
    if dry_run:
        lines, code = ways(processes)
        for line in lines:
            print(line)
        return code
    run_dirs, code = record(processes, plan, say, progress=say)
    for run_dir in run_dirs:
        if not print_summary(run_dir, report=report):
            code = code or NOT_ALL
    return code


def record(
    processes: Sequence[Found],
    plan: RecordingPlan,
    on_line: Callable[[str], None],
    stop: threading.Event | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[list[Path], int]:
    """Record processes for as long as is asked for.

    Args:
        processes: which.
        plan: what to record.
        on_line: called with each line that concerns the whole job.
        stop: once it is set the recording ends, as with Ctrl-C.
        progress: called with a line at the start and at the end where there is no terminal.

    Returns:
        The folders of the runs, of which there are several where the job recorded already, and
        the exit code as :func:`attach_to` has it.
    """
    attached, code = _attach_all(processes, plan, on_line)
    if not attached:
        return [], NOT_ALL
    whole = plan.warmup + plan.seconds
    try:
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        text = words(plan, len(attached), attached[0].process.label)
        with seconds_passing(text, whole, progress) as bar:
            if not _wait(attached, whole, bar, stop or threading.Event()):
                on_line("the job has ended")
    except KeyboardInterrupt:
        code = INTERRUPTED
        on_line(ENDS_HERE)

    def interrupted() -> None:
        nonlocal code
        code = INTERRUPTED
        on_line(CLOSES_FIRST)

    if not finished(lambda: _end_all(attached), interrupted):
        code = code or NOT_ALL
    return list(dict.fromkeys(a.run_dir for a in attached)), code


def made_up_run(target: str) -> str:
    """Return a name for the run."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return safe_name(f"{Path(target).stem}-{stamp}")


def ways(processes: Sequence[Found]) -> tuple[list[str], int]:
    """Return a line per process, saying how it would be reached, and the exit code for that."""
    lines, code = [], 0
    for process in processes:
        way, why = way_to(process)
        outcome = {
            "socket": "has haiprof loaded: reached through its socket",
            "injector": "haiprof would be loaded into it",
            "outside": f"can only be observed from outside: {why}",
        }[way]
        lines.append(f"{process.label}: {outcome}")
        code = code or (NOT_ALL if way == "outside" else 0)
    return lines, code


def _attach_all(
    processes: Sequence[Found], plan: RecordingPlan, on_line: Callable[[str], None]
) -> tuple[list[Attached], int]:
    """Reach processes; return those that were reached, and the exit code as :func:`attach_to`.

    Raises:
        KeyboardInterrupt: Ctrl-C before any was reached.
    """
    reached: list[Attached] = []
    enough = threading.Event()

    def one(process: Found) -> Attached | HaiprofError:
        try:
            each = attach(process, plan)
        except (AttachError, ControlError) as error:
            return error
        reached.append(each)
        if enough.is_set():  # there was a second Ctrl-C
            _end_all([each])
        return each

    try:
        with spinner("reaching the job"):
            results = list(at_once(one, processes))
    except KeyboardInterrupt:  # those being reached then have been waited for
        enough.set()
        if not reached:
            raise
        return list(reached), INTERRUPTED
    attached = [each for each in results if isinstance(each, Attached)]
    failed = [each for each in results if isinstance(each, HaiprofError)]
    for error in failed[:_NAMED]:
        say(str(error))
    outside = [each for each in attached if each.way == "outside"]
    for each in outside[:_NAMED]:
        say(f"{each.process.label}: observed from outside only: {each.why}")
    more = len(failed) + len(outside) - 2 * _NAMED
    if more > 0:
        say(f"and {more} more processes")
    for each in [a for a in attached if not a.began][:1]:
        on_line(f"the job is already being recorded into {each.run_dir}; that continues")
    return attached, NOT_ALL if failed or outside else 0


def words(plan: RecordingPlan, number: int, label: str) -> str:
    """Return the text beside the progress bar."""
    ranks = f"{number} processes" if number > 1 else label
    return f"{'tracing' if plan.trace else 'recording'} {ranks}"


def _wait(
    attached: Sequence[Attached],
    seconds: float,
    bar: Callable[[float], None],
    stop: threading.Event,
) -> bool:
    """Wait for so long; return False as soon as the job has ended.

    Raises:
        KeyboardInterrupt: ``stop`` was set.
    """
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        bar(passed)
        if not alive(attached):
            return False
        if stop.wait(min(0.2, seconds - passed)):
            raise KeyboardInterrupt
    bar(seconds)
    return True


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


def print_summary(run_dir: Path, *, report: bool) -> bool:
    """Print a run's folder and main findings; write its report if asked to.

    Returns:
        False when nothing was recorded.
    """
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
        say(f"view it with: haiprof report {run_dir}")
    except HaiprofError as error:
        say(str(error))
        return False
    return True
