"""Hooks on calls that torch makes through one attribute: engine, GradScaler, DataLoader, zero_grad.

Tests: tests/capture/hooks/test_install.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from haiprof import _core
from haiprof.capture.hooks.passes import Passes
from haiprof.capture.hooks.watch import Place, Watcher


class Attribute:
    """One function in a class, replaced by a WrappedCall around it."""

    def __init__(self, owner: type, name: str, kind: str) -> None:
        """Replace ``owner.name``; ``kind`` is what WrappedCall is to report."""
        self._owner = owner
        self._name = name
        self._own = name in vars(owner)
        self._original = vars(owner)[name] if self._own else getattr(owner, name)
        self._wrapped = _core.WrappedCall(self._original, kind)
        setattr(owner, name, self._wrapped)

    def restore(self) -> None:
        """Restore the original. Inside somebody else's wrapper ours stays and does nothing."""
        if vars(self._owner).get(self._name) is not self._wrapped:
            self._wrapped.disable()
        elif self._own:
            setattr(self._owner, self._name, self._original)
        else:
            delattr(self._owner, self._name)


class DataLoaderCalls:
    """``DataLoader.__iter__`` and ``next()`` on its iterators."""

    name = "dataloader"

    def __init__(self) -> None:
        """Nothing is touched yet."""
        self._attributes: list[Attribute] = []

    def attach(self) -> str:
        """Replace both; return how."""
        from torch.utils.data import dataloader

        try:
            for owner, name, kind in (
                (dataloader._BaseDataLoaderIter, "__next__", "fetch"),
                (dataloader.DataLoader, "__iter__", "iterate"),
            ):
                self._attributes.append(Attribute(owner, name, kind))
        except BaseException:
            self.detach()
            raise
        return "on: DataLoader.__iter__ and its iterators' __next__"

    def detach(self) -> None:
        """Restore both."""
        while self._attributes:
            self._attributes.pop().restore()


# Cached, because torch keeps in the function what refers to it: a cycle for each attach.
@functools.cache
def _untraced(inner: Callable[..., Any], kind: str) -> tuple[Callable[..., Any], Any]:
    """Return a method that reports its calls as ``kind``, and the WrappedCall in it.

    It is not traced by torch.compile, which would call a C function in a class without the object.
    """
    from torch import _disable_dynamo

    wrapped = _core.WrappedCall(inner, kind)

    # Not what torch keeps in the original: that calls the original.
    @functools.wraps(inner, updated=())
    def reported(*args: Any, **keywords: Any) -> Any:
        return wrapped(*args, **keywords)

    return _disable_dynamo(reported), wrapped


class Method:
    """A method that compiled code may call, replaced by one that reports its calls."""

    def __init__(self, owner: type, name: str, kind: str) -> None:
        """Replace ``owner.name``; ``kind`` is what WrappedCall is to report."""
        self._owner, self._name = owner, name
        self._original: Any = vars(owner)[name]
        # What torch itself does not have traced, it has wrapped as well.
        inner = getattr(self._original, "__wrapped__", self._original)
        self._ours, self._wrapped = _untraced(inner, kind)
        setattr(owner, name, self._ours)

    def restore(self) -> None:
        """Restore the original. Inside somebody else's wrapper ours stays and does nothing."""
        if vars(self._owner).get(self._name) is self._ours:
            setattr(self._owner, self._name, self._original)
        else:
            self._wrapped.disable()
            _untraced.cache_clear()


class ScalerCalls:
    """``GradScaler.step``, which counts as an update also when it skips the optimizer."""

    name = "scaler"

    def __init__(self) -> None:
        """Nothing is touched yet."""
        self._method: Method | None = None

    def attach(self) -> str:
        """Replace it; return how."""
        try:
            from torch.amp.grad_scaler import GradScaler
        except ImportError:  # before torch 2.3
            from torch.cuda.amp.grad_scaler import GradScaler
        self._method = Method(GradScaler, "step", "scaler")
        return "on: GradScaler.step"

    def detach(self) -> None:
        """Restore it."""
        if self._method is not None:
            self._method.restore()
            self._method = None


class ZeroGradCalls:
    """``Optimizer.zero_grad``, which is the optimizer's work wherever in the step it is called."""

    name = "zero_grad"

    def __init__(self) -> None:
        """Nothing is touched yet."""
        self._method: Method | None = None

    def attach(self) -> str:
        """Replace it; return how."""
        from torch.optim import Optimizer

        self._method = Method(Optimizer, "zero_grad", "zero")
        return "on: Optimizer.zero_grad"

    def detach(self) -> None:
        """Restore it."""
        if self._method is not None:
            self._method.restore()
            self._method = None


# Cached, because a class is a reference cycle: one per attach would stay until Python's
# collector runs.
@functools.cache
def _engine_class(base: Any) -> tuple[type, Any]:
    """Return a subclass of an engine's, and the WrappedCall in it."""
    wrapped = _core.WrappedCall(base.run_backward, "backward")
    return type(base.__name__, (base,), {"run_backward": wrapped, "__slots__": ()}), wrapped


class BackwardCalls:
    """The autograd engine: ``backward()``, ``autograd.grad`` and those who call it directly."""

    name = "backward"

    def __init__(
        self, watcher: Watcher | None, passes: Passes, trouble: Callable[[str], None]
    ) -> None:
        """Nothing is touched yet.

        Args:
            watcher: reports ``torch.autograd.backward``, if there is one; its owner undoes it.
            passes: counts the passes for others while the engine is replaced.
            trouble: called with the reason if that cannot be watched.
        """
        self._watcher = watcher
        self._passes = passes
        self._trouble = trouble
        self._original: Any = None
        self._engine: Any = None
        self._wrapped: Any = None

    def attach(self) -> str:
        """Replace the engine by one of a subclass; return how."""
        from torch.autograd import Variable

        original = Variable._execution_engine
        base: Any = type(original)
        subclass, wrapped = _engine_class(base)
        engine = subclass()
        self._original, self._engine, self._wrapped = original, engine, wrapped
        Variable._execution_engine = engine
        self._passes.watch(subclass)
        self._watch_preparation()
        return "on: autograd engine"

    def _watch_preparation(self) -> None:
        # The tens of us that torch.autograd.backward needs before it calls the engine are backward,
        # too; where it cannot be watched they count as forward.
        from torch import autograd

        if self._watcher is None or not isinstance(autograd.backward, FunctionType):
            return
        try:
            self._watcher.watch(Place("backward", autograd.backward))
        except Exception as error:  # whatever reading its source may raise
            self._trouble(f"the beginning of backward is taken for forward: {error!r}")

    def detach(self) -> None:
        """Restore the engine."""
        from torch.autograd import Variable

        if self._engine is None:
            return
        self._passes.leave()
        if Variable._execution_engine is self._engine:
            Variable._execution_engine = self._original
        else:
            self._wrapped.disable()
            _engine_class.cache_clear()
        self._original = self._engine = self._wrapped = None
