"""``haiprof run`` and ``trace``: runs a command under haiprof and says what it recorded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from haiprof.cli.arguments import RunArguments, UsageError, help_text, parse
from haiprof.cli.process.child import Child, end_like
from haiprof.cli.process.console import reader_gone, say
from haiprof.cli.recording import Recording
from haiprof.common.extras import lacking
from haiprof.common.launcher import placement
from haiprof.options import resolve

#: Exit codes of shells for a command that does not exist, and for one that cannot be executed.
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


def main(words: Sequence[str], *, trace: bool = False) -> NoReturn:
    """Run the command that ``words`` (what follows ``haiprof run``) name, and end as it does.

    Args:
        words: options and the command.
        trace: they follow ``haiprof trace``, which makes a deep trace, too.
    """
    try:
        arguments = parse(words, "trace" if trace else "run")
        hosts = _hosts(arguments)
    except UsageError as error:
        say(str(error))
        sys.exit(2)
    if arguments.help:
        try:
            print(help_text("trace" if trace else "run"), end="", flush=True)
        except BrokenPipeError:
            sys.exit(reader_gone())
        sys.exit(0)
    if trace:
        arguments.given["trace"] = True
    options, problems = resolve(arguments.given)
    for problem in problems:
        say(problem)
    place = placement()
    first = not place.launched or place.rank == 0
    command = _with_interpreter(arguments.command, unbuffered=trace, says=first)
    recording = Recording(options, place, arguments.command)
    if hosts:
        from haiprof.cli.hosts.launch import run_on

        code = run_on(hosts, command, recording.environment())
        _finish_hosts(recording, hosts, report=arguments.report)
        sys.exit(code)
    status = run_here(command, recording)
    _finish(recording, report=arguments.report, status=status)
    end_like(status)


def run_here(command: list[str], recording: Recording) -> int:
    """Run the command under its recording to its end; return its wait status.

    Where it cannot be started, one line says why and the process exits as a shell would.
    """
    child = Child()
    try:
        child.start(command, recording.environment())
    except OSError as error:
        recording.forget()
        _explain_start(command, error)
    recording.start(child.pid)
    return child.wait(
        lambda status: recording.keep_status(child.pid, status), recording.say_what_recorder_says
    )


def _finish(recording: Recording, *, report: bool, status: int = 0) -> None:
    try:
        recording.finish(report=report, status=status)
    except KeyboardInterrupt:
        say(f"interrupted; the run is in {recording.run_dir}")
    except Exception as error:  # the command's own end is what counts
        why = lacking("it", error) or repr(error)
        say(f"{recording.run_dir}: no summary: {why}")


def _finish_hosts(recording: Recording, hosts: Sequence[str], *, report: bool) -> None:
    from haiprof.cli.hosts.names import how_to_collect

    here, all_of_them = recording.nodes(), len(set(hosts))
    if here or not recording.possible:
        _finish(recording, report=report)
    if here < all_of_them and recording.possible:
        how = how_to_collect(hosts, recording.run_dir)
        say(f"{here} of {all_of_them} hosts have written here; collect the rest with: {how}")


def _hosts(arguments: RunArguments) -> list[str]:
    """Return the hosts to run on; none where the command runs here."""
    if arguments.help or not (arguments.hosts or arguments.hostfile or (arguments.nodes or 1) > 1):
        return []
    from haiprof.cli.hosts.names import choose_hosts

    return choose_hosts(arguments.nodes, arguments.hosts, arguments.hostfile)


def _with_interpreter(command: list[str], *, unbuffered: bool, says: bool) -> list[str]:
    """Return the command with the interpreter that a script needs; say which if asked to.

    ``haiprof trace FILE`` stands where hai-platform has ``python3 -u FILE``: what a job prints
    reaches its log at once, however the job ends.
    """
    script = command[0]
    if not script.endswith(".py"):
        return command
    if not Path(script).is_file():
        say(f"{script}: no such script; give its path from here")
        sys.exit(_NOT_FOUND)
    from haiprof.cli.interpreter import for_script

    python, why = for_script(script)
    if why and says:
        say(why)
    return [python, *(["-u"] if unbuffered else []), *command]


def _explain_start(command: list[str], error: OSError) -> NoReturn:
    word = command[0]
    if not isinstance(error, FileNotFoundError):
        say(f"{word}: cannot be executed: {error.strerror}")
        sys.exit(_NOT_EXECUTABLE)
    if "/" in word and Path(word).exists():
        say(f"{word}: cannot be executed: the interpreter that its first line names is missing")
        sys.exit(_NOT_EXECUTABLE)
    say(f"{word}: command not found")
    sys.exit(_NOT_FOUND)
