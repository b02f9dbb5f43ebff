"""``haiprof run`` and ``trace``: runs a command under haiprof and says what it recorded."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from haiprof import schema
from haiprof.cli.arguments import UsageError, help_text, parse
from haiprof.cli.child import Child, end_like
from haiprof.cli.console import reader_gone, say, spinner
from haiprof.launcher import Placement, placement
from haiprof.options import ENABLED_VARIABLE, OPTIONS, Options, resolve
from haiprof.places import make_private, ring_dir, ring_root
from haiprof.recorder.election import recorder_running
from haiprof.recorder.launch import start_recorder
from haiprof.recorder.life import start_time_of
from haiprof.run_folder import made_up_name, open_run_folder, why_not

#: How long the recorder may take to close the files after the command has ended, s.
_CLOSING_SECONDS: Final = 30.0
#: A run of more processes is not read again before the command's end is passed on.
_SUMMED_UP: Final = 64
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
    command = _with_interpreter(arguments.command)
    recording = _Recording(options, placement(), arguments.command)
    child = Child()
    try:
        child.start(command, recording.environment())
    except OSError as error:
        recording.forget()
        _explain_start(command, error)
    recording.start(child.pid)
    status = child.wait()
    try:
        recording.finish(report=arguments.report)
    except KeyboardInterrupt:
        say(f"interrupted; the run is in {recording.run_dir}")
    except Exception as error:  # the command's own end is what counts
        say(f"{recording.run_dir}: no summary: {error!r}")
    end_like(status)


def _with_interpreter(command: list[str]) -> list[str]:
    script = command[0]
    if not script.endswith(".py"):
        return command
    if not Path(script).is_file():
        say(f"{script}: no such script; give its path from here")
        sys.exit(_NOT_FOUND)
    return [sys.executable, *command]


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


def _name_of(command: Sequence[str]) -> str:
    """Return what a command runs: its script or module, else its program."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word.endswith(".py"):
            return Path(word).stem
        if word == "-m" and following:
            return following
    return Path(command[0]).stem


class _Recording:
    """The run of one command: its folder, its recorder, and the summary when all is over."""

    def __init__(self, options: Options, place: Placement, command: Sequence[str]) -> None:
        """Make the run's folder. Says what is in the way; the command runs all the same."""
        self.options = options
        self.run = options.run or made_up_name(_name_of(command), place)
        self.run_dir = options.log_dir / self.run
        self._ring_dir = ring_dir(self.run)
        self._place = place
        self._recorder: int | None = None
        self._made: list[Path] = []
        # The recorder of a `haiprof run` around us goes on after our command, and sums it all up.
        self._within = self._inherited() and self._ring_dir.is_dir()
        self.possible = False
        try:
            self.run_dir = self.run_dir.absolute()
            self._made = [p for p in (self.run_dir, self.run_dir.parent) if not p.exists()]
            open_run_folder(self.run_dir, command, options)
            make_private(ring_root())
            make_private(self._ring_dir)
            self.possible = True
        except OSError as error:
            say(why_not(error))
        except Exception as error:  # whatever it is, the command must run
            say(f"not recording: {error!r}. The job goes on without")

    def _inherited(self) -> bool:
        told = os.environ.get
        return told(ENABLED_VARIABLE) == "1" and told(OPTIONS["run"].variable) == self.run

    def environment(self) -> dict[str, str]:
        """Return the environment in which the command's processes join the run."""
        if not self.possible:
            return {**os.environ, ENABLED_VARIABLE: "0"}
        told = self.options._asdict()
        told.update(log_dir=self.run_dir.parent, run=self.run)
        texts = {
            OPTIONS[name].variable: str(int(value) if isinstance(value, bool) else value)
            for name, value in told.items()
        }
        return {**os.environ, **texts, ENABLED_VARIABLE: "1"}

    def start(self, pid: int) -> None:
        """Start the recorder, which stays until the command ends.

        A recording that begins later or ends earlier is left to the ranks: each knows when.
        """
        if not self.possible or self.options.warmup or self.options.time:
            return
        try:
            # An earlier recorder of the same run may just be leaving with the folder.
            make_private(self._ring_dir)
            recorder = start_recorder(
                self._ring_dir, self.run_dir, self.options, f"{pid}:{start_time_of(pid)}"
            )
        except Exception as error:  # the command runs already and is not to notice
            say(f"no recorder could be started ({error}); steps are recorded, the host is not")
            return
        with contextlib.suppress(OSError, AttributeError):
            self._recorder = os.pidfd_open(recorder)

    def forget(self) -> None:
        """Remove what was made for a command that never ran."""
        with contextlib.suppress(OSError):
            self._ring_dir.rmdir()
        with contextlib.suppress(OSError):
            if self.run_dir in self._made:
                (self.run_dir / schema.RUN_FILE).unlink()
            for folder in self._made:
                folder.rmdir()

    def finish(self, *, report: bool) -> None:
        """Wait until the files are closed, then say what is in them.

        Of several ranks that run in commands of their own only the first does, for all.
        """
        others = self._place.launched and self._place.rank != 0
        if not self.possible or self._within or others:
            return
        with spinner("closing the run's files"):
            closed = self._wait_closed(time.monotonic() + _CLOSING_SECONDS)
        with contextlib.suppress(OSError):
            self._ring_dir.rmdir()  # where no recorder came by
        shown = _from_here(self.run_dir)
        say(f"run {self.run_dir}")
        if not closed:
            say(
                f"it is still being recorded after {_CLOSING_SECONDS:.0f} s; should its recorder "
                f"die, this writes the rest: haiprof recover {shown}"
            )
        self._summarise(report)
        say(f"see it with: haiprof report {shown}")

    def _wait_closed(self, until: float) -> bool:
        while time.monotonic() < until:
            if self._gone() and not recorder_running(self._ring_dir):
                return True
            time.sleep(0.01)
        return False

    def _gone(self) -> bool:
        """Return whether the recorder that we started has left."""
        if self._recorder is None:
            return True
        poll = select.poll()
        poll.register(self._recorder, select.POLLIN)
        return bool(poll.poll(0))

    def _summarise(self, report: bool) -> None:
        from haiprof.errors import HaiprofError

        took_part = sum("#" in entry.name for entry in os.scandir(self.run_dir))
        if took_part > _SUMMED_UP and not report:
            say(f"  {took_part} processes took part, too many to sum them up here")
            return
        try:
            with spinner("reading the run"):
                from haiprof.cli.report import open_run

                run = open_run(self.run_dir)
                lines = run.headline()
            for line in lines:
                say(f"  {line}")
            if report:
                with spinner("writing the report"):
                    written = run.report(self.run_dir / "report.html")
                say(f"report {written}")
        except HaiprofError as error:
            say(str(error))


def _from_here(path: Path) -> str:
    """Return ``path`` as it is shortest to type, quoted for a shell."""
    import shlex

    with contextlib.suppress(OSError, ValueError):
        return shlex.quote(str(path.relative_to(Path.cwd())))
    return shlex.quote(str(path))
