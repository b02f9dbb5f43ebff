"""Counts the floating-point operations of one step of this process, on request.

torch counts them in a dispatch mode, which makes that one step several times slower. It begins and
ends between two steps, on the main thread. docs/efficiency.md lists what it cannot count.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.trace.boundaries import Boundaries

if TYPE_CHECKING:
    from haiprof.capture.flops.counter import StepFlops

EVENT_KIND: Final = "flops"
#: Steps before the one that is counted: the first ones allocate and compile.
_BEFORE: Final = 3
#: How often to retry at the next step when something prevents it.
_TRIES: Final = 50

_waiting: AfterImport | None = None
_counted: _CountedStep | None = None


def arm() -> None:
    """Count one step of this process, the fourth that it trains; once. Never raises."""
    global _waiting
    if _counted is not None or _waiting is not None:
        return
    if imported("torch") is not None:
        _begin()
    else:
        _waiting = AfterImport("torch", lambda torch: _begin())


def disarm() -> None:
    """Stop counting; a step that is being counted ends first. Never raises."""
    global _waiting, _counted
    if _waiting is not None:
        _waiting.cancel()
        _waiting = None
    if _counted is not None and not _counted.give_up():
        _counted = None


def _begin() -> None:
    global _waiting, _counted
    _waiting = None
    with contextlib.suppress(Exception):
        _counted = _CountedStep()


class _CountedStep:
    """The step that is counted: waits for it, counts, and leaves."""

    def __init__(self) -> None:
        self._boundaries: Boundaries | None = None
        self._seen = 0
        self._counter: StepFlops | None = None
        self._begun = 0
        self._wanted = True
        self._boundaries = Boundaries(self._step_ended)

    def give_up(self) -> bool:
        """Report nothing; return whether a step is being counted, which only its thread can end."""
        self._wanted = False
        if self._counter is None:
            self._leave_boundaries()
        return self._counter is not None

    def forked(self) -> None:
        """In the child of a fork: nobody counts there."""
        self._wanted = False
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.leave()
        self._leave_boundaries()

    def _leave_boundaries(self) -> None:
        if self._boundaries is not None:
            self._boundaries.leave()
            self._boundaries = None

    def _step_ended(self, _number: int | None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            self._go_on()
        except Exception as error:
            self._end(f"the operations of a step could not be counted: {error!r}")

    def _go_on(self) -> None:
        from haiprof.capture.flops import counter

        if self._counter is not None:
            if not self._counter.leave():
                return  # somebody's mode over ours ends at another step
            done, self._counter = self._counter, None
            compiled = counter.compiled()
            if self._wanted and not compiled:
                self._report(done)
            self._end("no step was counted: torch.compile came in between" if compiled else "")
            return
        self._seen += 1
        if not self._wanted:
            self._end()
        elif self._seen >= _BEFORE:
            if counter.compiled():
                self._end(
                    "no step's operations were counted: code from torch.compile cannot be; give "
                    "haiprof.model(flops_per_step=…)"
                )
            elif why := counter.in_the_way():
                if self._seen >= _BEFORE + _TRIES:
                    self._end(f"no step's operations were counted: {why}")
            else:
                self._counter = counter.StepFlops()
                self._begun = time.time_ns()
                self._counter.enter()

    def _report(self, done: StepFlops) -> None:
        flops = int(done.flops)
        attributes = {
            "flops": flops,
            "recomputed": int(done.recomputed),
            "evaluated": int(done.evaluated),
            "dtypes": {name: int(part) for name, part in done.by_dtype.items()},
            "uncounted": sorted(done.uncounted)[:20],
            "failures": done.failures,
            "begun_ns": self._begun,
            "ended_ns": time.time_ns(),
        }
        text = f"a step computed {flops:.4g} floating-point operations, as torch counts them"
        _core.event(EVENT_KIND, text, json.dumps(attributes))

    def _end(self, why: str = "") -> None:
        self._wanted = False
        if self._counter is not None:
            with contextlib.suppress(Exception):
                if not self._counter.leave():
                    return
            self._counter = None
        self._leave_boundaries()
        if why:
            from haiprof.capture.stderr import say_once

            say_once(why)
            with contextlib.suppress(Exception):
                _core.event("hook", why)


def _after_fork() -> None:
    if _counted is not None:
        with contextlib.suppress(Exception):
            _counted.forked()


os.register_at_fork(after_in_child=_after_fork)
