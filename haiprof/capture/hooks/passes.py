"""Calls functions once, before a later backward pass, on the thread that runs it.

While none is waiting, a backward pass costs nothing more; while some are, a lookup of the engine's
method counts it. So no frame of ours is ever around the pass. Passes that are only traced, by
torch.compile, do not count: they run under settings of the compiler's own.

Tests: tests/capture/hooks/test_settings.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

_METHOD: Final = "run_backward"


class Passes:
    """The backward passes of an engine class of ours."""

    def __init__(self) -> None:
        """Nothing is counted until :meth:`watch`."""
        self._engine: Any = None
        self._run: Any = None
        self._traced: Callable[[], int] = int
        self._count = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    @property
    def watched(self) -> bool:
        """Whether passes are seen."""
        return self._engine is not None

    def watch(self, engine_class: type) -> None:
        """Count the passes of engines of this class, which must be haiprof's own."""
        import torch

        self._engine, self._run = engine_class, vars(engine_class)[_METHOD]
        # How many modes see each operation instead of the device; a torch without it says 0.
        self._traced = getattr(torch._C, "_len_torch_dispatch_stack", int)
        if self._waiting:
            self._arm()

    def leave(self) -> None:
        """Forget who waits, and restore the class. Idempotent."""
        self._waiting.clear()
        self._disarm()
        self._engine = self._run = None

    def before(self, number: int, call: Callable[[], None]) -> None:
        """Call ``call`` before the ``number``-th pass from now (1: the next). Its errors are lost.

        If passes are not seen, it waits until they are.
        """
        self._waiting.append((self._count + number, call))
        self._arm()

    def _arm(self) -> None:
        if self._engine is not None:
            setattr(self._engine, _METHOD, _Counted(self._run, self._passed))

    def _disarm(self) -> None:
        if self._engine is not None:
            setattr(self._engine, _METHOD, self._run)

    def _passed(self) -> None:
        if self._traced():
            return
        self._count += 1
        due = [each for each in self._waiting if each[0] <= self._count]
        for each in due:
            self._waiting.remove(each)
            with contextlib.suppress(Exception):
                each[1]()
        if not self._waiting:
            self._disarm()


class _Counted:
    """A descriptor that reports each lookup of a method, and then lets it happen."""

    def __init__(self, method: Any, looked_up: Callable[[], None]) -> None:
        self._method = method
        self._looked_up = looked_up

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is not None:
            with contextlib.suppress(Exception):  # the job must not notice
                self._looked_up()
        return self._method.__get__(instance, owner)
