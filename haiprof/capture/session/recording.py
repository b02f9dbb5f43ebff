"""The lifecycle of this process's recording: it begins, is forked, ends with the job or earlier.

Nothing here may raise into the job, block it or end it: failures are reported once on stderr and
the job continues, unprofiled if need be.

Tests: tests/capture/session/test_session.py.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from haiprof import _core
from haiprof.capture import nccl
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.session import exceptions, instruments
from haiprof.capture.session.helpers import (
    at_end_of_worker,
    is_dataloader_worker,
    is_first_of_rank,
    join_process_above,
    trains_later,
)
from haiprof.capture.session.ring import JobRing
from haiprof.capture.stderr import say_once
from haiprof.capture.where import set_session_finder
from haiprof.capture.yielding import rest
from haiprof.common import threads
from haiprof.common.launcher import Placement, placement
from haiprof.common.places import HAIPROF_MARK, TORCH_MARK, run_dir_for
from haiprof.options import ENABLED_VARIABLE, Options, resolve
from haiprof.recorder.run_folder import made_up_name, open_run_folder, why_not

#: How long ``stop()`` waits for the files to be closed, s. The end of the job does not wait, unless
#: a container or a step of SLURM ends with it.
_STOP_SECONDS: Final = 10.0
#: A job that has not begun to train so long after it imported torch has a slow start, s: it is
#: recorded from then on.
_EARLY_SECONDS: Final = 3.0
#: How long the end of a recording's time waits for the file of a deep trace, s; nobody waits
#: for it.
_WRITING_SECONDS: Final = 600.0

_lock = threads.reentrant_lock()
_active: Session | None = None
_open_socket: Callable[[], None] | None = None


class Session:
    """The recording of this process. ``start()`` makes it; it is the same until ``stop()``."""

    def __init__(self, options: Options, place: Placement) -> None:
        """Name the run and its folders; nothing is touched yet."""
        run = options.run or made_up_name(_script(), place)
        self._place = place
        self._ring = JobRing(run, _absolute(options.log_dir) / run, options, place)
        #: When it begins and ends (CLOCK_MONOTONIC, s); the end is known once the job works.
        self._begins = time.monotonic() + options.warmup
        self._ends: float | None = None
        #: When the first record could be kept (UTC, ns); None until then.
        self.since_ns: int | None = None
        self._timer: threads.Timer | None = None
        self._torch: AfterImport | None = None

    @property
    def options(self) -> Options:
        """The current options."""
        return self._ring.options

    @property
    def run(self) -> str:
        """The name of the run."""
        return self._ring.run

    @property
    def run_dir(self) -> Path:
        """The folder of the run; absolute once it exists."""
        return self._ring.run_dir

    @property
    def recording(self) -> bool:
        """Whether records of this process are being kept."""
        return self._ring.kept

    @property
    def warming_up(self) -> bool:
        """Whether the recording is to begin later."""
        return time.monotonic() < self._begins

    @property
    def begins_in(self) -> float:
        """Seconds until the recording is to begin; 0 when that time has come."""
        return max(self._begins - time.monotonic(), 0.0)

    @property
    def ends_in(self) -> float | None:
        """Seconds until it ends; None: with the process, or the job does not work yet."""
        return None if self._ends is None else max(self._ends - time.monotonic(), 0.0)

    @property
    def ring(self) -> Path | None:
        """The ring, in a folder of the run's; None until there is one."""
        return self._ring.path

    @property
    def place(self) -> Placement:
        """What the launcher says about this process."""
        return self._place

    def end_after(self, seconds: float) -> None:
        """End it ``seconds`` from now, or from when the job works; 0: with the process."""
        with _lock:
            self._ring.options = self.options._replace(time=seconds)
            if not self.recording or (self._ends is None and _core.awaits_work()):
                return
            self.forget_timer()
            self._ends = None
            self._limit()

    def _limit(self) -> None:
        """Have it end after its time, which passes from here on unless it passes already."""
        if self.options.time:
            self._ends = self._ends or time.monotonic() + self.options.time
            self.later(self._ends, lambda session: _stop(session, _WRITING_SECONDS))

    def record_kernels(self, **changed: Any) -> None:
        """Record the GPU with these options from now on: ``kernels`` and what belongs to it."""
        with _lock:
            self._ring.options = self.options._replace(**changed)
            if self.recording and _active is self:
                instruments.stop_kernels()
                instruments.install_kernels(self.options)

    def change_pace(self, **changed: Any) -> None:
        """Make the recorder read and drain at these rates, for the whole run.

        Raises:
            OSError: the pace cannot be written.
        """
        with _lock:
            self._ring.options = self.options._replace(**changed)
            if self.recording:
                self._ring.write_pace()

    def sample_stacks(self, hz: float, seconds: float) -> None:
        """Have the recorder sample stacks at this rate for a while, then as before.

        Raises:
            OSError: the pace cannot be written.
        """
        with _lock:
            self._ring.burst = hz, time.time_ns() + round(seconds * 1e9)
            if self.recording:
                self._ring.write_pace()

    def later(self, when: float, what: Callable[[Session], None]) -> None:
        """Call ``what(self)`` at a time (CLOCK_MONOTONIC, s), on a thread of its own."""
        self.forget_timer()
        try:
            self._timer = threads.Timer(when - time.monotonic(), lambda: what(self))
        except RuntimeError as error:  # the process may have no more threads
            if not _python_ends(error):
                say_once(f"warmup and time cannot be scheduled: {error}")

    def look_at_start(self) -> None:
        """Record a start that takes long, too: once torch was imported some time ago."""

        def later(_: object) -> None:
            self._ring.leave_mark(TORCH_MARK)
            if not self.recording:
                self.later(time.monotonic() + _EARLY_SECONDS, _record_slow_start)

        if not self.options.hooks:
            return
        self._ring.leave_mark(HAIPROF_MARK)
        if imported("torch") is None:
            self._torch = AfterImport("torch", later)
        else:
            self._ring.leave_mark(TORCH_MARK)

    def forget_start(self) -> None:
        """Cancel what :meth:`look_at_start` waits for."""
        if self._torch is not None:
            self._torch.cancel()
            self._torch = None

    def forget_timer(self) -> None:
        """Cancel what :meth:`later` has scheduled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wait_for_beginning(self, begin: Callable[[Session], None]) -> None:
        """Call ``begin(self)`` when the recording is to begin."""

        def begin_between_imports(session: Session) -> None:
            _wait_for_import("torch")
            begin(session)

        self.later(self._begins, begin_between_imports)

    def open(self, *, works: bool = True) -> bool:
        """Make the ring and ensure that the run has a recorder. Problems go to stderr.

        Args:
            works: the job works; else what is recorded comes before, and its time does not pass.
        """
        with _lock:
            if self.recording:
                if works and self._ends is None:
                    self._limit()
                return True
            if sys.is_finalizing():  # a thread that is started now would never run
                say_once("not recording: this process is already exiting")
                return False
            if self._ends is not None and time.monotonic() >= self._ends:
                return False
            try:
                if not self.run_dir.is_absolute():
                    self._ring.run_dir = run_dir_for(self.run_dir.parent, self.run, say_once)
                open_run_folder(self.run_dir, sys.orig_argv, self.options)
                rest()
                self._ring.open()
            except OSError as error:
                say_once(why_not(error))
                return False
            except Exception as error:  # an options object of a newer kind
                say_once(f"not recording: {error!r}. The job continues unprofiled")
                return False
            self.since_ns = self.since_ns or time.time_ns()
            if works or self._ends is not None:
                self._limit()
            rest()
            self.ensure_recorder()
            rest()
            _open_control_socket()
            rest()
            instruments.report_what_is_known()
            at_end_of_worker(_at_end_of_worker)
            return True

    def ensure_recorder(self) -> None:
        """Start a recorder when the run has none."""
        self._ring.ensure_recorder()

    def flush(self, timeout: float = 10.0) -> list[Path]:
        """Write everything recorded so far to disk.

        Args:
            timeout: how long to wait for the recorder, s.

        Returns:
            The Arrow files of this process, complete up to this call; or the existing ones, with a
            line on stderr, when the recorder did not manage in time.
        """
        return self._ring.flush(timeout)

    def files(self) -> list[Path]:
        """Return the Arrow files of this process, oldest first."""
        return self._ring.files()

    def folder(self) -> Path | None:
        """Return the folder of this process; None until the recorder has made it."""
        return self._ring.folder()

    def close(self, seconds: float, *, ends: bool = False) -> None:
        """Stop recording; wait up to ``seconds`` for the recorder to close the files.

        Args:
            seconds: how long; 0: do not wait.
            ends: the process ends, too.
        """
        with _lock:
            if not self._ring.mine:
                return
            with contextlib.suppress(Exception):
                _core.phases_finish()  # what it records may have been timed on a GPU
            instruments.stop_kernels()
            path = self._ring.path
            if path is None:
                return
            if ends and self.recording:
                # If nobody waits for the files, the recorder waits to see how the process ends.
                waits = ", and waits for its files" if seconds else ""
                instruments.report("goodbye", f"the process ends{waits}")
            _core.close_ring()
        self._ring.wait_closed(path, seconds)
        self._ring.let_nobody_read()

    def in_forked_child(self) -> Session:
        """Return the session of a forked child: the same run, and later a ring of its own."""
        child = Session(self.options, self._place)
        child._ring = JobRing(self.run, self.run_dir, self.options, self._place)
        child._begins, child._ends = self._begins, self._ends
        return child


def _wait_for_import(name: str) -> None:
    """Wait for another thread's import of a module: import hooks do not see one under way."""
    if name in sys.modules:
        with contextlib.suppress(BaseException):  # a broken torch is the job's business
            importlib.import_module(name)


def _absolute(path: Path) -> Path:
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError:  # the current folder is gone; see Session.open()
        return path


def _script() -> str:
    return Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"


def begin(given: dict[str, Any], *, lazily: bool) -> Session:
    """Return the session of this process, a new one with the given options if there is none.

    Args:
        given: options; None is not given.
        lazily: begin when there is something to record.
    """
    global _active
    with _lock:
        if _active is not None:
            if not lazily:
                _report_ignored(given, _active.options)
                if _active.recording:
                    _active.ensure_recorder()
                elif not _active.warming_up:
                    _active.open()
            return _active
        options, problems = resolve(given)
        for problem in problems:
            say_once(problem)
        session = _active = Session(options, placement())
        if options.hooks:
            nccl.offer()
        _register_once()
        exceptions.install(_report_exception)
        if session.warming_up:
            _open_control_socket()
            session.wait_for_beginning(_record_lazily if lazily else _record)
        elif lazily:
            _record_lazily(session)
        else:
            _record(session)
        return session


def start_beside_imports(**given: Any) -> tuple[Session, bool]:
    """Begin to record from a thread that is not the program's, which may be importing torch.

    Returns:
        The session, and whether it is new; an existing one is left as it is.
    """
    _wait_for_import("torch")
    with _lock:
        if _active is not None:
            return _active, False
        session = begin(given, lazily=False)
    if session.recording:
        instruments.report("attach", "recording began in a process that ran already")
    return session, True


def _record(session: Session) -> None:
    """Begin to record now. If that fails, a later start() may try again."""
    global _active
    with _lock:
        if _active is not session:
            return  # it was stopped before it began
        if not session.open():
            _active = None
            return
        instruments.install(session.options)


def _record_lazily(session: Session) -> None:
    """Begin to record when there is something to record."""
    with _lock:
        if _active is not session:
            return
        _core.set_opener(_open_for_first_record)
        if session.options.hooks:
            with contextlib.suppress(Exception):
                join_process_above()
        instruments.install(session.options)
        session.look_at_start()


def _record_slow_start(session: Session) -> None:
    """Begin to record what a job does for long before it trains."""
    with contextlib.suppress(Exception):
        if session.recording or not trains_later(session.run_dir):
            return
        with _lock:
            # It may have been stopped meanwhile.
            if _active is session and not session.recording and session.open(works=False):
                facts = {"torch_imported_s": _EARLY_SECONDS}
                text = f"the job does not train {_EARLY_SECONDS:g} s after it imported torch"
                _core.event("start", text, json.dumps(facts))


def _open_control_socket() -> None:
    """Open the control socket; recording works without it, too."""
    try:
        if _open_socket is not None:
            _open_socket()
    except Exception as error:
        if not _python_ends(error):
            say_once(f"`haiprof ps` and `haiprof stop` do not reach this process: {error}")


def _python_ends(error: Exception) -> bool:
    """Whether a thread was refused because Python ends: before 3.13 that has no own type."""
    return "at interpreter shutdown" in str(error)


def _report_ignored(given: dict[str, Any], used: Options) -> None:
    ignored = [
        f"{name}={value!r}"
        for name, value in given.items()
        if value is not None and str(value) != str(getattr(used, name, value))
    ]
    if ignored:
        say_once(
            f"start({', '.join(ignored)}) ignored: already recording since an earlier start(), "
            f"`haiprof run` or {ENABLED_VARIABLE}; set it there"
        )


def _report_exception(text: str, attributes: str, worth: bool) -> None:
    """Record an exception that nothing caught, for which a rank makes a ring if it has none yet."""
    session = _active
    if session is None or is_dataloader_worker():
        return
    if not session.recording:
        # A failing launcher or helper of a rank is not one of the job's processes.
        if not worth or session.warming_up or not is_first_of_rank(session.run_dir, text):
            return
        session.open(works=False)
    if session.recording:
        _core.event("exception", text, attributes)


def end_with(error: BaseException) -> None:
    """End the recording of a process that an exception ends which its framework has caught."""
    session = _active
    if session is not None:
        exceptions.record(error)
        session.close(0.0, ends=True)


def _at_end_of_worker() -> None:
    session = _active
    if session is not None:
        with contextlib.suppress(Exception):
            exceptions.at_end_of_worker()
            session.close(0.0, ends=True)


def _open_for_first_record(works: bool) -> None:
    """Open the ring at the first record, unless this process is somebody's helper.

    Args:
        works: it is of the job's work, and not an event that may come long before.
    """
    session = _active
    if session is None or is_dataloader_worker():
        return
    if session.warming_up:  # a forked child has no timer of its own yet
        session.wait_for_beginning(_record_lazily)
        return
    session.open(works=works)


_registered = False


def _register_once() -> None:
    global _registered
    if not _registered:
        _registered = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    session = _active
    if session is not None:
        # When the first process of a pid namespace ends, the kernel kills all others, the recorder
        # too; SLURM kills what a step or a batch script leaves in its control group.
        last = 1 in (os.getpid(), os.getppid()) or "SLURM_JOB_ID" in os.environ
        instruments.finish_trace("the job ended", _STOP_SECONDS, process_ends=True)
        with contextlib.suppress(Exception):
            exceptions.at_exit()
        with contextlib.suppress(Exception):
            session.close(_STOP_SECONDS if last else 0.0, ends=True)
    server = imported("haiprof.capture.socket.server")
    if server is not None:
        with contextlib.suppress(Exception):
            server.close_socket()


def _after_fork() -> None:
    """Give the child no ring until it records something itself."""
    global _active, _lock
    # The parent's may have been locked by a thread that is not here.
    _lock = threads.reentrant_lock()
    session = _active
    if session is None:
        return
    with contextlib.suppress(Exception):
        _core.phases_reset()
        _active = session.in_forked_child()
        _core.set_opener(_open_for_first_record)


def stop() -> None:
    """End the recording and wait (up to 10 s) until the files are closed. Safe to call anytime."""
    session = _active
    if session is not None:
        _stop(session)


def _stop(session: Session, seconds: float = _STOP_SECONDS) -> None:
    """End a recording; wait up to ``seconds`` for a deep trace's file."""
    global _active
    if _active is session:
        instruments.finish_trace("the recording ended", _STOP_SECONDS, process_ends=False)
        instruments.wait_for_trace(seconds)
    with _lock:
        if _active is not session:
            return
        _active = None
        _core.set_opener(None)
        session.forget_timer()
        session.forget_start()
        instruments.leave()
        exceptions.uninstall()
    session.close(_STOP_SECONDS)


def active() -> Session | None:
    """Return the session of this process, or None."""
    return _active


def set_socket_opener(open_socket: Callable[[], None]) -> None:
    """Set what opens the control socket, whose request handlers import this module."""
    global _open_socket
    _open_socket = open_socket


set_session_finder(active)
