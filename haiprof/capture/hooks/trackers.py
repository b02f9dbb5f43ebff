"""Hook on trackers of experiments: each call that logs to one is a range of the job's own.

So what a loop spends on TensorBoard, Weights & Biases, MLflow or Comet between its phases has a
name in the ledger, as ranges have that the job itself makes. A call inside another one is a part
of it.

Loggers of frameworks call these. Accelerate also takes trackers that its user has written: the
class of such a one is only seen when Accelerate logs to it.
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
    "comet_ml.experiment": _Tracker("logging.comet", "CometExperiment", ("log_",), "end"),
}
#: What logs to trackers of its user's own, where its own ones are, and the name of their ranges.
_ACCELERATE: Final = "accelerate.accelerator"
_OF_ACCELERATE: Final = "accelerate.tracking"
_OWN: Final = "logging.accelerate"

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
        #: Classes of trackers that Accelerate has been given.
        self._looked_at: set[type] = set()

    def attach(self) -> str:
        """Replace them; those of modules that are not imported yet, after their import."""
        replace = dict.fromkeys(_TRACKERS, self._replace_of)
        replace[_ACCELERATE] = self._replace_accelerate
        try:
            for name, found in replace.items():
                if module := imported(name):
                    found(module)
                else:
                    self._waiting.append(AfterImport(name, found))
        except BaseException:
            self.detach()
            raise
        return "on: TensorBoard, wandb, MLflow, Comet and those of Accelerate"

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

    def _replace_accelerate(self, module: ModuleType) -> None:
        owner = getattr(module, "Accelerator", None)
        if isinstance(owner, type) and isinstance(vars(owner).get("log"), FunctionType):
            self._replaced.append(Replaced(owner, "log", around=self._look_at_own))

    def _look_at_own(self, args: Any, keywords: Any) -> AbstractContextManager[Any]:
        """Replace what logs in the trackers that an Accelerator was given."""
        for kind in map(type, getattr(args[0], "trackers", ())):
            owner = next((each for each in kind.__mro__ if "log" in vars(each)), kind)
            if owner in self._looked_at or owner.__module__ == _OF_ACCELERATE:
                continue
            self._looked_at.add(owner)
            if isinstance(vars(owner).get("log"), FunctionType):
                self._replaced.append(Replaced(owner, "log", around=_span_of_own))
        return contextlib.nullcontext()

    def detach(self) -> None:
        """Restore them."""
        while self._waiting:
            self._waiting.pop().cancel()
        while self._replaced:
            self._replaced.pop().restore()
        self._looked_at.clear()


def _span(name: str, args: Any, keywords: Any) -> AbstractContextManager[Any]:
    if getattr(_here, "busy", False):
        return contextlib.nullcontext()
    if _watching is not None:
        _watching.logs(name, args, keywords)
    return _Outermost(name)


def _span_of_own(args: Any, keywords: Any) -> AbstractContextManager[Any]:
    """Return a range only: what a user has written is called by nobody but the user's own code.

    A tracker that it calls has a range of its own inside.
    """
    return contextlib.nullcontext() if getattr(_here, "busy", False) else _Quiet(_OWN)


def _end(name: str, args: Any, keywords: Any) -> AbstractContextManager[Any]:
    if _watching is not None:
        _watching.ends(name, args, keywords)
    return contextlib.nullcontext()


class _Quiet:
    """A range; what is wrong with it is no error of the call."""

    __slots__ = ("_span",)

    def __init__(self, name: str) -> None:
        self._span = _core.Span(name, _CATEGORY)

    def __enter__(self) -> None:
        with contextlib.suppress(Exception):
            self._span.__enter__()

    def __exit__(self, *raised: object) -> None:
        with contextlib.suppress(Exception):
            self._span.__exit__(None, None, None)


class _Outermost(_Quiet):
    """A range in which calls of this thread are a part of it."""

    __slots__ = ()

    def __enter__(self) -> None:
        _here.busy = True
        super().__enter__()

    def __exit__(self, *raised: object) -> None:
        _here.busy = False
        super().__exit__()
