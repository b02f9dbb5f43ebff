"""The run of one command: its folder, its recorder, and the summary when all is over.

Tests: tests/cli/test_run.py.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from haiprof import schema
from haiprof._core import MIN_RING_BYTES
from haiprof.cli.process.console import say, spinner
from haiprof.common.launcher import Placement
from haiprof.common.places import (
    HAIPROF_MARK,
    TORCH_MARK,
    in_ring_dir,
    open_rings,
    require_room,
    ring_dir,
    ring_dirs,
    run_dir_for,
)
from haiprof.common.process_life import start_time_of
from haiprof.common.wait_status import Noted, forget_statuses, note_status
from haiprof.options import ENABLED_VARIABLE, OPTIONS, Options
from haiprof.recorder.command import Command, Said, remove_note, write_note
from haiprof.recorder.election import recorder_running
from haiprof.recorder.launch import start_recorder
from haiprof.recorder.run_folder import earlier_attempt, made_up_name, open_run_folder, why_not

#: How long the recorder may take to close the files after the command has ended, s.
CLOSING_SECONDS: Final = 30.0
#: A run of more processes is not read again before the command's end is passed on.
_SUMMED_UP: Final = 64


def _name_of(command: Sequence[str]) -> str:
    """Return what a command runs: its script or module, else its program."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word.endswith((".py", ".sh")):
            return Path(word).stem
        if word == "-m" and following:
            return following
    return Path(command[0]).stem


class Recording:
    """The run of one command: its folder, its recorder, and the summary when all is over."""

    def __init__(self, options: Options, place: Placement, command: Sequence[str]) -> None:
        """Make the run's folder. Problems are printed; the command runs all the same."""
        self.options = options
        self.run = (
            options.run
            or earlier_attempt(options.log_dir, command, place)
            or made_up_name(_name_of(command), place)
        )
        self.run_dir = options.log_dir / self.run
        self._ring_dir = ring_dir(self.run_dir)
        self._place = place
        self._recorder: int | None = None
        self._command: Command | None = None
        self._said: Said | None = None
        self._made: list[Path] = []
        # The recorder of a `haiprof run` around us goes on after our command, and sums it all up.
        self._within = self._inherited() and self._ring_dir.is_dir()
        self.possible = False
        try:
            self.run_dir = run_dir_for(options.log_dir, self.run, say)
            self._made = [p for p in (self.run_dir, self.run_dir.parent) if not p.exists()]
            open_run_folder(self.run_dir, command, options)
            in_ring_dir(self.run_dir, self._use_rings, say)
            self.possible = True
        except OSError as error:
            say(why_not(error))
        except Exception as error:  # whatever it is, the command must run
            say(f"not recording: {error!r}. The job continues unprofiled")

    def _use_rings(self, folder: Path) -> None:
        open_rings(folder, make=True)
        require_room(folder, MIN_RING_BYTES)
        self._ring_dir = folder

    def _inherited(self) -> bool:
        variable = os.environ.get
        return variable(ENABLED_VARIABLE) == "1" and variable(OPTIONS["run"].variable) == self.run

    def environment(self) -> dict[str, str]:
        """Return the environment in which the command's processes join the run."""
        if not self.possible:
            return {**os.environ, ENABLED_VARIABLE: "0"}
        values = self.options._asdict()
        values.update(log_dir=self.run_dir.parent, run=self.run)
        texts = {
            OPTIONS[name].variable: str(int(value) if isinstance(value, bool) else value)
            for name, value in values.items()
        }
        return {**os.environ, **texts, ENABLED_VARIABLE: "1"}

    def start(self, pid: int) -> None:
        """Start the recorder, which stays until the command ends.

        A recording that begins later or ends earlier is left to the ranks: each knows when.
        """
        if not self.possible or self.options.warmup or self.options.time:
            return
        try:
            started = start_time_of(pid)
            if started is not None:  # else it has ended
                self._command = Command(pid, started)
                self._said = write_note(self._ring_dir, self._command)
            recorder = start_recorder(self._ring_dir, self.run_dir, self.options)
        except Exception as error:  # the command is already running and must not notice
            say(f"no recorder could be started ({error}); steps are recorded, the host is not")
            return
        with contextlib.suppress(OSError, AttributeError):
            self._recorder = os.pidfd_open(recorder)

    def say_what_recorder_says(self) -> None:
        """Print what the recorder has to say of the job while it runs."""
        if self._said is not None:
            for line in self._said.lines():
                say(line)

    def forget(self) -> None:
        """Remove what was made for a command that never ran."""
        with contextlib.suppress(OSError):
            self._ring_dir.rmdir()
        with contextlib.suppress(OSError):
            if self.run_dir in self._made:
                (self.run_dir / schema.RUN_FILE).unlink()
            for folder in self._made:
                folder.rmdir()

    def keep_status(self, pid: int, status: Noted) -> None:
        """Leave the end of a command that has just ended for the recorder, if it has one."""
        self.say_what_recorder_says()
        with contextlib.suppress(OSError):
            started = start_time_of(pid)
            if started is not None:
                note_status(open_rings(self._ring_dir), pid, started, status)

    def finish(self, *, report: bool, status: int = 0) -> None:
        """Wait until the files are closed, then say what is in them.

        Of several ranks that run in commands of their own only the first does, for all.

        Args:
            report: write the report, too.
            status: how the command ended, as of wait(2).
        """
        others = self._place.launched and self._place.rank != 0
        if not self.possible or self._within or others:
            return
        with spinner("closing the run's files"):
            closed = self.wait_closed()
        shown = _from_here(self.run_dir)
        say(f"run {self.run_dir}")
        if not closed:
            say(
                f"it is still being recorded after {CLOSING_SECONDS:.0f} s; should its recorder "
                f"die, this writes the rest: haiprof recover {shown}"
            )
        self._summarise(report, status)
        say(f"view it with: haiprof report {shown}")

    def wait_closed(self, seconds: float = CLOSING_SECONDS) -> bool:
        """Wait up to ``seconds`` until this machine's files are closed; return whether they are."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._gone() and not any(map(recorder_running, ring_dirs(self.run_dir))):
                with contextlib.suppress(OSError):  # where no recorder came by
                    rings = open_rings(self._ring_dir)
                    forget_statuses(rings)
                    if self._command is not None:
                        remove_note(rings, self._command)
                    for mark in (HAIPROF_MARK, TORCH_MARK):
                        rings.remove(mark)
                    self._ring_dir.rmdir()
                return True
            time.sleep(0.01)
        return False

    def nodes(self) -> int:
        """Return how many nodes have written into the run, as far as is seen from here."""
        written = self.run_dir.glob(f"*/{schema.PROCESS_FILE}")
        return sum("#" not in file.parent.name for file in written)

    def _gone(self) -> bool:
        """Return whether the recorder that we started has left."""
        if self._recorder is None:
            return True
        poll = select.poll()
        poll.register(self._recorder, select.POLLIN)
        return bool(poll.poll(0))

    def _summarise(self, report: bool, status: int) -> None:
        from haiprof.errors import HaiprofError

        took_part = sum("#" in entry.name for entry in os.scandir(self.run_dir))
        if took_part > _SUMMED_UP and not report:
            self._say_how_it_ended(status)
            say(f"  {took_part} processes took part, too many to sum them up here")
            return
        try:
            with spinner("reading the run"):
                from haiprof.cli.report import open_run

                run = open_run(self.run_dir)
                lines = run.headline()
                if run.failure() is None:
                    self._say_status(status)
            for line in lines:
                say(f"  {line}")
            if report:
                with spinner("writing the report"):
                    written = run.report(self.run_dir / "report.html")
                say(f"report {written}")
        except HaiprofError as error:
            self._say_status(status)
            say(str(error))

    def _say_how_it_ended(self, status: int) -> None:
        """Say who failed first, by what each process recorded of its end; reads no table."""
        from haiprof.findings.endings import failure
        from haiprof.sources.own import open_run

        line = failure(open_run(self.run_dir).processes)
        if line is None:
            self._say_status(status)
        else:
            say(f"  {line}")

    def _say_status(self, status: int) -> None:
        """Say how the command ended where the run has nothing of a failure."""
        if status:
            from haiprof.recorder.ending import described

            end = described(status, 0, goodbye=False)
            verb = "was interrupted" if end["kind"] == "interrupted" else "failed"
            say(f"  The command {verb}: {end['text']}")


def _from_here(path: Path) -> str:
    """Return the shortest form of ``path`` to type, quoted for a shell."""
    import shlex

    with contextlib.suppress(OSError, ValueError):
        return shlex.quote(str(path.relative_to(Path.cwd())))
    return shlex.quote(str(path))
