"""Attaches haiprof to torch and Python, to record a job without changing its code.

Each hook stands alone: one that cannot be attached to this torch is reported and left out, the
others work. docs/phases.md describes what they record.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.hooks.pauses import CollectorPauses
from haiprof.capture.hooks.submitted import SubmittedBytes
from haiprof.capture.yielding import rest
from haiprof.common import threads

if TYPE_CHECKING:
    from haiprof.capture.hooks.watch import Watcher

__all__ = ["install", "report_kept", "status", "uninstall"]

Report = Callable[[str, str], None]

_FRAMES: Final = ("modules", "compiled", "optimizer")
_OF_TORCH: Final = (
    *_FRAMES,
    "backward",
    "scaler",
    "zero_grad",
    "dataloader",
    "allocator",
    "gradient_sync",
    "pipeline",
    "collectives",
    "nccl",
    "checkpoint",
    "trackers",
    "settings",
    "loaders",
    "ddp",
    "compilations",
)
_NAMES: Final = (*_OF_TORCH, CollectorPauses.name, SubmittedBytes.name)


class Hook(Protocol):
    """One thing attached to torch or Python."""

    name: str

    def attach(self) -> str:
        """Attach; return how, beginning with "on". Raises whatever torch makes it raise."""

    def detach(self) -> None:
        """Restore it exactly."""


_lock = threads.reentrant_lock()
_report: Report | None = None
_waiting: AfterImport | None = None
_watcher: Watcher | None = None
_attached: list[Hook] = []
_status: dict[str, str] = {}
_kept: deque[str] = deque()


def install(report: Report | None = None) -> None:
    """Attach to Python, and to torch: now if it is imported, else right after its import.

    Idempotent. Never raises.

    Args:
        report: called with a kind ("hook") and one sentence for each hook that cannot be attached,
            as soon as a ring is open (see ``report_kept``).
    """
    global _report, _waiting
    with _lock:
        if _attached or _waiting is not None:
            return
        _report = report
        _kept.clear()
        _attach(CollectorPauses())
        _attach(SubmittedBytes())
        if imported("torch") is not None:
            _attach_all()
        else:
            _waiting = AfterImport("torch", lambda torch: _torch_imported())
    report_kept()


def uninstall() -> None:
    """Detach everything from torch. Idempotent. Never raises."""
    global _waiting, _watcher
    with _lock:
        if _waiting is not None:
            _waiting.cancel()
            _waiting = None
        while _attached:
            hook = _attached.pop()
            try:
                hook.detach()
            except Exception as error:
                _kept.append(f"{hook.name} could not be taken off torch: {error!r}")
        if _watcher is not None:
            try:
                _watcher.undo()
            except Exception as error:
                _kept.append(f"calls could not be left unwatched: {error!r}")
            _watcher = None
        _core.hooks_detached()
        _status.clear()
    report_kept()


def status() -> dict[str, str]:
    """Return for each hook "on: how", "waiting: for what" or "off: why"."""
    with _lock:
        found = dict.fromkeys(_NAMES, "off: not installed") | _status
        if _waiting is not None:
            found |= dict.fromkeys(_OF_TORCH, "waiting: torch is not imported")
        for hook in _attached:
            state = getattr(hook, "state", None)
            changed = state() if state is not None else None
            if changed is not None:
                found[hook.name] = changed
        return found


def report_kept() -> None:
    """Report what could not be attached, if a ring is open; else it is kept for the next call.

    It is worth no ring of its own: a process that only imports torch records nothing. Never raises.
    """
    # Not under the lock: a listener may wait for a lock whose owner is about to call us.
    while _core.ring_open() and _report is not None:
        try:
            text = _kept.popleft()
        except IndexError:
            return
        with contextlib.suppress(Exception):  # errors of the listener must not reach the job
            _report("hook", text)


def _after_fork() -> None:
    global _lock
    # The parent's may have been locked by a thread that is not here.
    _lock = threads.reentrant_lock()


os.register_at_fork(after_in_child=_after_fork)


def _torch_imported() -> None:
    global _waiting
    with _lock:
        if _waiting is None:
            return
        _waiting = None
        _attach_all()
    report_kept()


def _attach_all() -> None:
    try:
        hooks = _hooks()
    except Exception as error:
        _status.update(dict.fromkeys(_OF_TORCH, f"off: {error!r}"))
        _kept.append(f"nothing can be attached to this torch: {error!r}")
        return
    for hook in hooks:
        _attach(hook)


def _attach(hook: Hook) -> None:
    rest()
    try:
        _status[hook.name] = hook.attach()
        _attached.append(hook)
    except Exception as error:
        _status[hook.name] = f"off: {error!r}"
        _kept.append(f"{hook.name} cannot be attached: {error!r}")


def _hooks() -> list[Hook]:
    global _watcher
    import torch

    from haiprof.capture.hooks import (
        allocator,
        calls,
        checkpoints,
        collectives,
        compilations,
        frames,
        gradients,
        loaders,
        nccl,
        pipeline,
        reducers,
        settings,
        trackers,
    )
    from haiprof.capture.hooks.passes import Passes
    from haiprof.capture.hooks.watch import watcher

    _core.set_gradients_query(torch.is_grad_enabled)
    hooks: list[Hook] = []
    try:
        _watcher = watcher()
    except Exception as error:
        _status.update(dict.fromkeys(_FRAMES, f"off: {error!r}"))
        _kept.append(f"{', '.join(_FRAMES)} cannot be attached to this torch: {error!r}")
    else:
        hooks += [
            frames.ModuleCalls(_watcher),
            frames.CompiledCalls(_watcher, _trouble),
            frames.OptimizerCalls(_watcher),
        ]
    passes = Passes()
    return [
        *hooks,
        calls.BackwardCalls(_watcher, passes, _kept.append),
        calls.ScalerCalls(),
        calls.ZeroGradCalls(),
        calls.DataLoaderCalls(),
        allocator.AllocatorFigures(),
        gradients.GradientSync(),
        pipeline.PipelineCalls(_trouble),
        collectives.Collectives(_trouble),
        nccl.NcclOperations(),
        checkpoints.CheckpointCalls(),
        trackers.TrackerCalls(),
        settings.Settings(passes),
        loaders.LoaderSettings(),
        reducers.ReducerSettings(passes),
        compilations.Compilations(_trouble),
    ]


def _trouble(text: str) -> None:
    _kept.append(text)
    report_kept()
