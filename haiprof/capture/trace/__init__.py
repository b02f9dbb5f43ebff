"""A deep trace of this process: torch.profiler for a few steps, into the run's folder.

Everything here may be called at any time and from any thread, and never raises into the job.
docs/deep-trace.md describes the file and its cost.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType

from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.trace.plan import Plan, plan_of
from haiprof.capture.trace.recording import Recording
from haiprof.common import threads
from haiprof.common.launcher import placement
from haiprof.options import Options

__all__ = ["DeepTrace", "arm", "begin_here", "current", "finish", "trace_training"]

_lock = threads.lock()
_current: Recording | None = None
_waiting: AfterImport | None = None


class DeepTrace:
    """A deep trace that was asked for: a handle, and a context manager that ends it."""

    def __init__(self, recording: Recording, *, began_here: bool) -> None:
        """Wrap ``recording``; only its beginner ends it by leaving a ``with`` block."""
        self._recording = recording
        self._began_here = began_here

    @property
    def state(self) -> str:
        """One of "waiting", "recording", "writing", "done" (see ``file``) and "off" (``why``)."""
        return self._recording.state

    @property
    def why(self) -> str:
        """Why it ended, or why there is none; empty until then."""
        return self._recording.why

    @property
    def file(self) -> Path | None:
        """The finished file; None while there is none."""
        return self._recording.file

    @property
    def live(self) -> bool:
        """Whether it is not over yet."""
        return self._recording.live

    def wait(self, seconds: float = 60.0) -> Path | None:
        """Wait until the file is finished and return it; None when it is not by then."""
        return self._recording.wait(seconds)

    def stop(self) -> None:
        """End it now with what has been recorded. Idempotent."""
        with contextlib.suppress(Exception):
            self._recording.stop("it was stopped")

    def __enter__(self) -> DeepTrace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._began_here:
            with contextlib.suppress(Exception):
                why = "its block ended" if kind is None else f"its block raised {kind.__name__}"
                self._recording.stop(why)


def begin_here(plan: Plan) -> DeepTrace:
    """Begin a trace of the calling thread, or return a handle of the current one, if any."""
    global _current
    from haiprof import _core

    with _lock:
        if _current is not None and _current.live:
            return DeepTrace(_current, began_here=False)
        recording = Recording(plan)
        if _core.ready():
            _current = recording
    if _current is recording:
        recording.begin_here()
    else:
        recording.refuse("no deep trace: nothing is recorded here")
    return DeepTrace(recording, began_here=True)


def arm(options: Options) -> None:
    """Make a deep trace of this process as soon as it trains: the way of ``HAIPROF_TRACE=1``."""
    if options.traces_rank(placement().rank):
        trace_training(plan_of(options))


def trace_training(plan: Plan) -> DeepTrace:
    """Make a deep trace of the thread that trains, as soon as one does; for any other thread.

    Returns:
        A handle; of the current trace, if any.
    """
    global _current, _waiting
    with _lock:
        if _current is not None and (_waiting is not None or _current.live):
            return DeepTrace(_current, began_here=False)
        recording = _current = Recording(plan)
        wait = imported("torch") is None
        if wait:
            _waiting = AfterImport("torch", lambda torch: _torch_imported())
    if not wait:
        _torch_imported()
    return DeepTrace(recording, began_here=True)


def current() -> DeepTrace | None:
    """Return the deep trace that was asked for last, if any was."""
    recording = _current
    return None if recording is None else DeepTrace(recording, began_here=False)


def _torch_imported() -> None:
    global _waiting
    with _lock:
        _waiting = None
        recording = _current
    if recording is not None:
        recording.begin_when_it_trains()


def finish(why: str, seconds: float, *, process_ends: bool) -> None:
    """End the trace, if any; call before the ring is closed. Never raises.

    Args:
        why: for the trace's last event.
        seconds: how long to wait where another thread has to end it.
        process_ends: so does the process; its file is then waited for, too.
    """
    global _waiting
    with contextlib.suppress(Exception):
        with _lock:
            waiting, _waiting = _waiting, None
            recording = _current
        if waiting is not None:
            waiting.cancel()
        if recording is not None:
            recording.finish(why, seconds, process_ends=process_ends)


def wait_written(seconds: float) -> None:
    """Wait for the file of a trace that has ended, if any."""
    recording = _current
    if recording is not None and recording.live:
        recording.wait(seconds)


def _after_fork() -> None:
    """Drop the parent's trace in a child."""
    global _lock, _current
    _lock = threads.lock()
    forked, _current = _current, None
    if forked is not None:
        forked.forked()


os.register_at_fork(after_in_child=_after_fork)
