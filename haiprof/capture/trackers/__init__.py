"""Shows what steps are spent on in the tracker that the job itself logs to.

Nothing of it happens on a thread of the job's. The first call that logs (the hook that times such
calls sees it) says which run there is, and starts a thread. That thread reads, every few seconds,
what the recorder has summed up from the records of all ranks of the node
(:mod:`haiprof.recorder.figures`), and what it has found, and logs it by the tracker's public calls.

A run is only ever used, never begun or ended, and what the job logs stays as it is:

* Weights & Biases: ``Run.log(..., commit=False)``, which adds to the row that the job is about to
  log and leaves its step alone, with ``haiprof/steps`` as the axis of ``haiprof/*``.
* MLflow: a client of its own for the same run, with haiprof's number of the step.
* TensorBoard: a writer of its own in the folder ``haiprof`` below the job's. A second file in the
  job's own folder would not do: TensorBoard reads one file of a folder after the other, and would
  never return to the job's.
* Comet: ``log_metric`` at the step that the job has set last.

With the first error of a tracker nothing more is shown in it; one event says why. Where wandb
itself copies what is logged to TensorBoard nothing is shown: it would copy ours, too, and does not
expect a second folder.

Tests: tests/capture/test_trackers.py.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Final

from haiprof import _core
from haiprof.capture.hooks import trackers as hook
from haiprof.common import threads

_shown: _Shown | None = None


class _Shown:
    """The runs of trackers in this process, and the thread that logs to them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = threads.Event()
        self._thread: threads.Background | None = None
        #: By kind of tracker: the object that the job logs with, and the call's arguments; None:
        #: nothing is shown in it any more.
        self._runs: dict[str, tuple[Any, ...] | None] = {}
        self._turned_off = False

    def logs(self, kind: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Take the first run of a kind; on the thread of the job that logs to it."""
        if kind in self._runs or self._turned_off:
            return
        self._runs[kind] = (args[0], args[1:2], keywords.get("run_id"))
        if self._thread is None:
            try:
                self._thread = threads.Background(self._work)
            except RuntimeError as error:  # the process may have no more threads, or Python ends
                self._turned_off = True
                _say(f"nothing of haiprof is shown in trackers: {error}")

    def ends(self, kind: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Forget a run that the job is about to end."""
        run = self._runs.get(kind)
        if run is None:
            return
        named = (args[1:2], keywords.get("run_id"))
        if run[0] is args[0] if kind != _MLFLOW else _id_of(run[1:]) == _id_of(named):
            del self._runs[kind]

    def turn_off(self) -> None:
        """Show nothing more; the thread is not waited for, as a server may not answer."""
        self._turned_off = True
        self._over.set()

    def _work(self) -> None:
        from haiprof.capture.trackers import sinks
        from haiprof.capture.trackers.figures import Figures

        hook.leave_unrecorded()
        figures = Figures()
        opened: dict[str, tuple[Any, sinks.Sink]] = {}
        while True:
            with contextlib.suppress(OSError):
                figures.ask()
            if self._over.wait(self._seconds) or not threading.main_thread().is_alive():
                break
            now = figures.read()
            if now is None:
                continue
            for kind, run in self._runs.copy().items():
                if run is None:
                    continue
                try:
                    if kind not in opened or opened[kind][0] is not run:
                        opened[kind] = run, sinks.SINKS[kind](run[0], _id_of(run[1:]))
                    opened[kind][1].show(now)
                except Exception as error:
                    self._fails(kind, run, error)
        for _, sink in opened.values():
            with contextlib.suppress(Exception):
                sink.close()

    def _fails(self, kind: str, run: Any, error: Exception) -> None:
        if self._over.is_set() or self._runs.get(kind) is not run:
            return  # it has ended meanwhile
        self._runs[kind] = None
        with contextlib.suppress(Exception):
            _say(f"nothing of haiprof is shown in {kind} any more: {str(error)[:200]}")


def _say(why: str) -> None:
    with contextlib.suppress(Exception):
        _core.event("hook", why)


_MLFLOW: Final = "logging.mlflow"


def _id_of(named: tuple[Any, ...]) -> str | None:
    """Return the id of the run in a call of ``MlflowClient``."""
    positional, keyword = named
    found = keyword if keyword is not None else next(iter(positional), None)
    return found if isinstance(found, str) else None


def arm(seconds: float) -> None:
    """Show it in the first runs that the job logs to from now on.

    Args:
        seconds: from one time to the next.
    """
    global _shown
    disarm()
    _shown = _Shown(seconds)
    hook.watch_with(_shown)


def disarm() -> None:
    """Show nothing more. Idempotent."""
    global _shown
    hook.watch_with(None)
    if _shown is not None:
        _shown.turn_off()
        _shown = None


# Its thread is not in the child, which is no rank.
os.register_at_fork(after_in_child=disarm)
