"""Two ways to observe when a Python function of torch is called and left.

Neither puts a function in torch's way: torch.compile would break the graph at a C function and
recompile for a replaced one. Where Python has ``sys.monitoring`` (3.12), it reports the calls of a
code object; elsewhere the function keeps its identity and gets other code.

Tests: tests/capture/hooks/test_install.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final, Protocol

from haiprof import _core
from haiprof.capture.hooks.rewrite import with_calls

#: sys.monitoring ids that no tool has a claim to.
_TOOL_IDS: Final = (4, 3)


@dataclass(frozen=True)
class Place:
    """What is watched: a function, or a function that is defined inside one.

    Attributes:
        kind: "module", "compiled", "optimizer" or "backward".
        function: the function, or the one around it.
        inner: names of the inner function, the newest torch's first; empty: ``function`` itself.
        existing: finds the inner functions that are there already.
    """

    kind: str
    function: FunctionType
    inner: tuple[str, ...] = ()
    existing: Callable[[], Iterable[FunctionType]] = tuple

    @property
    def code(self) -> CodeType:
        """The code whose frames are watched."""
        return (
            inner_code(self.function.__code__, self.inner) if self.inner else self.function.__code__
        )


def inner_code(code: CodeType, names: tuple[str, ...]) -> CodeType:
    """Return the code of the function of one of these names that is defined in ``code``."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name in names:
            return constant
    raise LookupError(f"{code.co_name} defines none of {', '.join(names)}")


class Watcher(Protocol):
    """Reports calls of the places it is given."""

    how: str

    def watch(self, place: Place) -> None:
        """Report the calls of a place from now on."""

    def undo(self) -> None:
        """Stop reporting and restore everything."""


def watcher() -> Watcher:
    """Return the best watcher that this Python and its other tools allow."""
    try:
        return Monitoring()
    except (AttributeError, RuntimeError):
        return Rewriting()


class Monitoring:
    """Reports calls through sys.monitoring, with C callbacks and, but for one, local events.

    Raises:
        AttributeError: this Python has no sys.monitoring.
        RuntimeError: other tools have all ids.
    """

    how = "sys.monitoring"
    _KINDS: Final = ("module", "compiled", "optimizer", "backward")

    def __init__(self) -> None:
        """Take a free tool id."""
        # mypy checks against the oldest Python, which has no sys.monitoring.
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        self._tool = self._free_tool()
        self._codes: dict[str, CodeType] = {}
        events = self._monitoring.events
        self._callbacks = {
            events.PY_START: _core.on_start,
            events.PY_RETURN: _core.on_return,
            events.PY_UNWIND: _core.on_unwind,
        }
        for event, callback in self._callbacks.items():
            self._monitoring.register_callback(self._tool, event, callback)
        # Python can report exceptions that leave a frame only for all frames.
        self._monitoring.set_events(self._tool, events.PY_UNWIND)

    def _free_tool(self) -> int:
        for tool in _TOOL_IDS:
            try:
                self._monitoring.use_tool_id(tool, "haiprof")
            except ValueError:
                continue
            return tool
        raise RuntimeError("the sys.monitoring tool ids 3 and 4 are in use")

    def watch(self, place: Place) -> None:
        """Report the calls of a place from now on."""
        self._codes[place.kind] = place.code
        _core.watch_code(*(self._codes.get(kind) for kind in self._KINDS))
        events = self._monitoring.events
        self._monitoring.set_local_events(
            self._tool, place.code, events.PY_START | events.PY_RETURN
        )

    def undo(self) -> None:
        """Release the tool id."""
        self._monitoring.set_events(self._tool, 0)
        for code in self._codes.values():
            self._monitoring.set_local_events(self._tool, code, 0)
        for event in self._callbacks:
            self._monitoring.register_callback(self._tool, event, None)
        self._monitoring.free_tool_id(self._tool)
        _core.watch_code(*(None for _ in self._KINDS))
        self._codes.clear()


class Rewriting:
    """Gives the functions code that reports the calls.

    Raises:
        AttributeError: this torch has no ``torch.compiler.is_dynamo_compiling``, which that code
            asks.
    """

    how = "rewritten code"
    _CALLS: Final = {
        "module": (("self", "args", "kwargs"), _core.module_enter, _core.module_leave),
        "compiled": (("fn",), _core.compiled_enter, _core.module_leave),
        "optimizer": (("args",), _core.optimizer_enter, _core.optimizer_leave),
        "backward": (("tensors",), _core.backward_enter, _core.backward_leave),
    }

    def __init__(self) -> None:
        """Nothing is rewritten yet."""
        import torch

        _ = torch.compiler.is_dynamo_compiling
        self._rewritten: list[tuple[Place, CodeType, CodeType]] = []

    def watch(self, place: Place) -> None:
        """Report the calls of a place from now on."""
        names, enter, leave = self._CALLS[place.kind]
        original = place.function.__code__
        # What only adds to the first may have another name in some torch.
        known = set(names) <= set(place.code.co_varnames)
        argument = ", ".join(names if known else names[:1])
        ours = with_calls(place.function, argument, enter, leave, place.inner)
        self._rewritten.append((place, original, ours))
        _exchange(place, original, ours)

    def undo(self) -> None:
        """Restore the code of the functions."""
        while self._rewritten:
            place, original, ours = self._rewritten.pop()
            _exchange(place, ours, original)


def _exchange(place: Place, out: CodeType, into: CodeType) -> None:
    if place.inner:
        inner_out, inner_into = inner_code(out, place.inner), inner_code(into, place.inner)
        for function in place.existing():
            if function.__code__ is inner_out:
                function.__code__ = inner_into
    if place.function.__code__ is out:
        place.function.__code__ = into
