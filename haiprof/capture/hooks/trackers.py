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
from typing import Any, Final, NamedTuple

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.hooks.replaced import Replaced

#: Number of the category in the ring (src/ring/layout.h).
_CATEGORY: Final = 7


class _Tracker(NamedTuple):
    """A class that logs: the name of its ranges, the class, and how its methods' names begin."""

    range: str
    owner: str
    methods: tuple[str, ...]


_WRITER: Final = ("add_", "flush")
#: By the module that defines the class.
_TRACKERS: Final = {
    "torch.utils.tensorboard.writer": _Tracker("logging.tensorboard", "SummaryWriter", _WRITER),
    "tensorboardX.writer": _Tracker("logging.tensorboard", "SummaryWriter", _WRITER),
    "wandb.sdk.wandb_run": _Tracker("logging.wandb", "Run", ("log",)),
    "mlflow.tracking.client": _Tracker("logging.mlflow", "MlflowClient", ("log_",)),
}


class TrackerCalls:
    """The methods of :data:`_TRACKERS`, replaced by ones that record each call."""

    name = "trackers"

    def __init__(self) -> None:
        """Nothing is touched yet."""
        self._replaced: list[Replaced] = []
        self._waiting: list[AfterImport] = []
        self._here = threading.local()

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
        span = functools.partial(self._span, tracker.range)
        for name, value in list(vars(owner).items()):
            if name.startswith(tracker.methods) and isinstance(value, FunctionType):
                self._replaced.append(Replaced(owner, name, around=span))

    def _span(self, name: str, args: Any, keywords: Any) -> AbstractContextManager[Any]:
        if getattr(self._here, "busy", False):
            return contextlib.nullcontext()
        return _Outermost(self._here, name)

    def detach(self) -> None:
        """Restore them."""
        while self._waiting:
            self._waiting.pop().cancel()
        while self._replaced:
            self._replaced.pop().restore()


class _Outermost:
    """A range in which calls of this thread are a part of it."""

    __slots__ = ("_here", "_span")

    def __init__(self, here: threading.local, name: str) -> None:
        self._here = here
        self._span = _core.Span(name, _CATEGORY)

    def __enter__(self) -> None:
        self._here.busy = True
        with contextlib.suppress(Exception):
            self._span.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._here.busy = False
        with contextlib.suppress(Exception):
            self._span.__exit__(None, None, None)
