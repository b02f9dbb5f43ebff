"""Hook on the calls that save or load a checkpoint: torch's own, its distributed ones, safetensors.

Each call that returns is a span of category ``checkpoint``; one that raises saved nothing and is
none. Calls inside another one are a part of it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported

#: Number of the category in the ring (src/ring/layout.h).
_CATEGORY: Final = 10
SAVE: Final = "checkpoint.save"
#: The part of a background save that the caller waits for; the save is a span of its own thread.
ASYNC_SAVE: Final = "checkpoint.async_save"
LOAD: Final = "checkpoint.load"

#: Functions by the module that defines them.
_FUNCTIONS: Final = {
    "torch.serialization": {"save": SAVE, "load": LOAD},
    "torch.distributed.checkpoint.state_dict_saver": {"save": SAVE, "async_save": ASYNC_SAVE},
    "torch.distributed.checkpoint.state_dict_loader": {"load": LOAD},
    "safetensors.torch": {"save_file": SAVE, "load_file": LOAD},
}
#: Modules that re-export the functions of another one, and are imported after that.
_HANDED_ON: Final = {
    "torch.serialization": "torch",
    "torch.distributed.checkpoint.state_dict_saver": "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict_loader": "torch.distributed.checkpoint",
}


class CheckpointCalls:
    """The functions of :data:`_FUNCTIONS`, replaced by ones that record each call."""

    name = "checkpoint"

    def __init__(self) -> None:
        """Nothing is touched yet."""
        self._replaced: list[tuple[ModuleType, str, Any, Any]] = []
        self._waiting: list[AfterImport] = []
        self._calls = _Calls()

    def attach(self) -> str:
        """Replace them; those of modules that are not imported yet, after their import."""
        self._calls.on = True
        try:
            for owner in dict.fromkeys(_HANDED_ON.get(name, name) for name in _FUNCTIONS):
                # Right after its import torch still counts as being imported.
                module = sys.modules.get(owner) if owner == "torch" else imported(owner)
                if module is not None:
                    self._replace_of(module)
                else:
                    self._waiting.append(AfterImport(owner, self._replace_late))
        except BaseException:
            self.detach()
            raise
        return "on: torch.save and torch.load"

    def _replace_late(self, module: ModuleType) -> None:
        with contextlib.suppress(Exception):  # an unknown version
            if self._calls.on:
                self._replace_of(module)

    def _replace_of(self, owner: ModuleType) -> None:
        for defining, functions in _FUNCTIONS.items():
            if _HANDED_ON.get(defining, defining) != owner.__name__:
                continue
            module = sys.modules.get(defining)
            for name, span in functions.items():
                original = getattr(module, name, None)
                if module is None or original is None:
                    continue
                ours = self._calls.recorded(original, span)
                for holder in dict.fromkeys((module, owner)):
                    if getattr(holder, name, None) is original:
                        setattr(holder, name, ours)
                        self._replaced.append((holder, name, original, ours))

    def detach(self) -> None:
        """Restore them. Inside somebody else's wrapper ours stays and does nothing."""
        self._calls.on = False
        while self._waiting:
            self._waiting.pop().cancel()
        while self._replaced:
            holder, name, original, ours = self._replaced.pop()
            if getattr(holder, name, None) is ours:
                setattr(holder, name, original)


class _Calls:
    """Which calls are under way."""

    def __init__(self) -> None:
        self.on = False
        self._here = threading.local()
        # Calls of torch.distributed. A list is safe among threads and after a fork, without a lock.
        self._distributed: list[str] = []

    def recorded(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return ``function`` with each call recorded as a span called ``name``."""
        distributed = function.__module__.startswith("torch.distributed.")

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not self.on or self._is_part(distributed):
                return function(*arguments, **keywords)
            span = _begun(name)
            self._here.busy = True
            if distributed:
                self._distributed.append(name)
            try:
                result = function(*arguments, **keywords)
                if span is not None:
                    with contextlib.suppress(Exception):
                        span.__exit__(None, None, None)
                return result
            finally:
                if distributed:
                    self._distributed.pop()
                self._here.busy = False

        return call

    def _is_part(self, distributed: bool) -> bool:
        """Whether a call here is a part of one under way: distributed saves write in threads."""
        if getattr(self._here, "busy", False):
            return True
        elsewhere = threading.current_thread() is not threading.main_thread()
        return elsewhere and bool(self._distributed) and not distributed


def _begun(name: str) -> Any:
    """Begin a span; None where that cannot be: the checkpoint is saved all the same."""
    try:
        span = _core.Span(name, _CATEGORY)
        span.__enter__()
    except Exception:
        return None
    return span
