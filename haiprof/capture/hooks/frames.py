"""Hooks on calls of Python functions: modules, compiled functions, optimizers.

Tests: tests/capture/hooks/test_loops.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.hooks.watch import Place, Watcher

#: Where torch.compile lives; it is imported at the first compilation.
_COMPILER: Final = "torch._dynamo.eval_frame"


def _function(owner: type, name: str) -> FunctionType:
    found = getattr(owner, name)
    if not isinstance(found, FunctionType):
        raise TypeError(f"{owner.__qualname__}.{name} is a {type(found).__name__}, not a function")
    return found


class ModuleCalls:
    """Calls of ``torch.nn.Module`` instances, and the size of what they are called with."""

    name = "modules"

    def __init__(self, watcher: Watcher) -> None:
        """``watcher`` reports the calls; it is undone by its owner."""
        self._watcher = watcher

    def attach(self) -> str:
        """Watch all modules' calls; return how."""
        from torch import Tensor, nn

        _core.set_tensor_type(Tensor)
        self._watcher.watch(Place("module", _function(nn.Module, "__call__")))
        return f"on: {self._watcher.how}"

    def detach(self) -> None:
        """Do nothing: the watcher is undone."""


class OptimizerCalls:
    """``Optimizer.step`` of every optimizer: the wrapper that torch puts around each of them."""

    name = "optimizer"

    def __init__(self, watcher: Watcher) -> None:
        """``watcher`` reports the calls; it is undone by its owner."""
        self._watcher = watcher

    def attach(self) -> str:
        """Watch all optimizers' steps; return how."""
        from torch.optim import Optimizer

        wraps = _function(Optimizer, "profile_hook_step")
        self._watcher.watch(Place("optimizer", wraps, ("wrapper",), lambda: _steps(Optimizer)))
        return f"on: {self._watcher.how}"

    def detach(self) -> None:
        """Do nothing: the watcher is undone."""


def _steps(optimizer: Any) -> Iterator[FunctionType]:
    pending = [optimizer]
    while pending:
        kind = pending.pop()
        pending.extend(kind.__subclasses__())
        step = vars(kind).get("step")
        if isinstance(step, FunctionType):
            yield step


class CompiledCalls:
    """Calls of functions that ``torch.compile`` has compiled."""

    name = "compiled"

    def __init__(self, watcher: Watcher, trouble: Callable[[str], None]) -> None:
        """``trouble`` is called with the reason if they turn out not to be visible."""
        self._watcher = watcher
        self._trouble = trouble
        self._waiting: AfterImport | None = None
        self._why_not: str | None = None

    def attach(self) -> str:
        """Watch them, or wait until there can be any; return how."""
        compiler = imported(_COMPILER)
        if compiler is None:
            self._waiting = AfterImport(_COMPILER, self._imported)
        else:
            self._watch(compiler)
        return f"on: {self._watcher.how}"

    def _imported(self, compiler: ModuleType) -> None:
        self._waiting = None
        try:
            self._watch(compiler)
        except Exception as error:
            self._why_not = repr(error)
            self._trouble(f"calls of compiled functions are not seen: {error!r}")

    def _watch(self, compiler: ModuleType) -> None:
        makes = _function(compiler._TorchDynamoContext, "__call__")
        self._watcher.watch(Place("compiled", makes, ("compile_wrapper", "_fn")))

    def state(self) -> str | None:
        """Return what has changed since attach(), if anything."""
        if self._waiting is not None:
            return "waiting: torch.compile has not been used"
        return None if self._why_not is None else f"off: {self._why_not}"

    def detach(self) -> None:
        """Wait no longer; the watcher is undone."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
