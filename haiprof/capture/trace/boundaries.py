"""Reports where a step of the training loop ends, on the thread that trains.

Tests: tests/capture/trace/test_trace.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from haiprof import _core
from haiprof.capture import user
from haiprof.capture.after_import import imported

#: After this many steps of other optimizers the first counts as abandoned.
_GIVEN_UP: Final = 16


def in_backward() -> bool:
    """Whether this thread is in a backward pass: a step may end there, and hooks run there.

    At its end torch gives the thread back the state that it had before. Profilers and dispatch
    modes belong to that state: one that begins in there is lost, one that ends in there comes back
    to life, and torch 2.13 crashes over the first and records without end into the second.
    """
    torch: Any = imported("torch")
    task = getattr(getattr(torch, "_C", None), "_current_graph_task_id", None)
    return task is not None and bool(task() != -1)


class Boundaries:
    """Calls ``ended(number)`` after each step of the first optimizer that steps.

    ``number`` is haiprof's number of the step that begins there, None if unknown.
    From the first :func:`haiprof.step` on only that counts.
    """

    def __init__(self, ended: Callable[[int | None], None]) -> None:
        """Attach to torch. ``ended`` must not raise.

        Raises:
            AttributeError: this torch (before 2.0) has no hooks for all optimizers; then only
                haiprof.step() is seen.
        """
        self._ended = ended
        self._first: Any = None
        self._others = 0
        self._by_hand = False
        self._handle: Any = None
        user.listen(self._marked)
        from torch.optim import optimizer

        self._handle = optimizer.register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if self._by_hand:
            return
        first = self._first() if self._first is not None else None
        if first is not None and first is not optimizer:
            self._others += 1
            if self._others < _GIVEN_UP:
                return
        if first is not optimizer:
            self._first = weakref.ref(optimizer)
        self._others = 0
        step = _core.current_step()
        self._ended(None if step is None else step + 1)

    # A compiled Optimizer.step leaves this out.
    _stepped._torchdynamo_disable = True  # type: ignore[attr-defined]

    def _marked(self) -> None:
        self._by_hand = True
        self._ended(_core.current_step())

    def leave(self) -> None:
        """Detach from torch. Idempotent."""
        user.stop_listening(self._marked)
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
