"""Hook on trackers of experiments: each call that logs to one is a range of the job's own.

So what a loop spends on TensorBoard, Weights & Biases or MLflow between its phases has a name in
the ledger, as ranges have that the job itself makes. A call inside another one is a part of it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from contextlib import AbstractContextManager
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple, Protocol

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.hooks.replaced import Replaced

#: Number of the category in the ring (src/ring/layout.h).
_CATEGORY: Final = 7


class _Tracker(NamedTuple):
    """A class that logs.

    Attributes:
        range: the name of its ranges.
        owner: the class.
        methods: how the names of those that log begin.
        end: the method that ends a run.
    """

    range: str
    owner: str
    methods: tuple[str, ...]
    end: str


_WRITER: Final = ("add_", "flush")
#: By the module that defines the class.
_TRACKERS: Final = {
    "torch.utils.tensorboard.writer": _Tracker(
        "logging.tensorboard", "SummaryWriter", _WRITER, "close"
    ),
    "tensorboardX.writer": _Tracker("logging.tensorboard", "SummaryWriter", _WRITER, "close"),
    "wandb.sdk.wandb_run": _Tracker("logging.wandb", "Run", ("log",), "finish"),
    "mlflow.tracking.client": _Tracker(
        "logging.mlflow", "MlflowClient", ("log_",), "set_terminated"
    ),
}

_here: Final = threading.local()
_watching: Watching | None = None


class Watching(Protocol):
    """Who wants to know of the calls; neither may raise or take long."""

    def logs(self, kind: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Something is about to be logged.

        Args:
            kind: the name of the call's range.
            args: of the call.
            keywords: of the call.
        """

    def ends(self, kind: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """A run is about to be ended, with the same arguments."""


def watch_with(watching: Watching | None) -> None:
    """Let somebody know of the calls from now on; None: nobody."""
    global _watching
    _watching = watching


def leave_unrecorded() -> None:
    """Record no calls of this thread: they are not the job's."""
    _here.busy = True


class TrackerCalls:
    """The methods of :data:`_TRACKERS`, replaced by ones that record each call."""

    name = "trackers"

    def __init__(self) -> None:
        """Nothing is touched yet."""
        self._replaced: list[Replaced] = []
        self._waiting: list[AfterImport] = []

    def attach(self) -> str:
        """Replace them; those of modules that are not imported yet, after their import."""
        try:
            for name in _TRACKERS:
                if module := imported(name):
                    self._replace_of(module)
                else:
                    self._waiting.append(AfterImport(name, self._replace_of))
        except BaseException:
            self.detach()
            raise
        return "on: TensorBoard, wandb and MLflow"

    def _replace_of(self, module: ModuleType) -> None:
        tracker = _TRACKERS[module.__name__]
        owner = getattr(module, tracker.owner, None)
        if not isinstance(owner, type):
            return  # an unknown version
        span = functools.partial(_span, tracker.range)
        for name, value in list(vars(owner).items()):
            if name.startswith(tracker.methods) and isinstance(value, FunctionType):
                self._replaced.append(Replaced(owner, name, around=span))
        if isinstance(vars(owner).get(tracker.end), FunctionType):
            end = functools.partial(_end, tracker.range)
            self._replaced.append(Replaced(owner, tracker.end, around=end))

    def detach(self) -> None:
        """Restore them."""
        while self._waiting:
            self._waiting.pop().cancel()
        while self._replaced:
            self._replaced.pop().restore()


def _span(name: str, args: Any, keywords: Any) -> AbstractContextManager[Any]:
    if getattr(_here, "busy", False):
        return contextlib.nullcontext()
    if _watching is not None:
        _watching.logs(name, args, keywords)
    return _Outermost(name)


def _end(name: str, args: Any, keywords: Any) -> AbstractContextManager[Any]:
    if _watching is not None:
        _watching.ends(name, args, keywords)
    return contextlib.nullcontext()


class _Outermost:
    """A range in which calls of this thread are a part of it."""

    __slots__ = ("_span",)

    def __init__(self, name: str) -> None:
        self._span = _core.Span(name, _CATEGORY)

    def __enter__(self) -> None:
        _here.busy = True
        with contextlib.suppress(Exception):
            self._span.__enter__()

    def __exit__(self, *raised: object) -> None:
        _here.busy = False
        with contextlib.suppress(Exception):
            self._span.__exit__(None, None, None)
