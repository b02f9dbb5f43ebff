"""Tokens, samples and FLOPs of the steps of a rank, as its job states them: never an estimate."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from haiprof.common.model_work import figure, formula, given
from haiprof.common.peak_flops import spelled

#: Statements that wait for a step.
_MOST_WAITING: Final = 4096


class Work:
    """Adds up what the steps of a rank did; another process of the same rank goes on.

    A statement holds from the step on that it is made in, and the first one for the steps before
    it, as :func:`haiprof.views.run.efficiency.work` has it.
    """

    def __init__(self) -> None:
        """Nothing is known."""
        self._totals: dict[str, float] = {}
        self._forget()

    def _forget(self) -> None:
        #: Type of most multiplications, as stated last; empty: not stated.
        self.dtype = ""
        #: Steps that are added up, and ends of those that are not yet, ns UTC.
        self._steps = 0
        self._ends: list[int] = []
        self._waiting: deque[tuple[int, dict[str, float]]] = deque(maxlen=_MOST_WAITING)
        self._now: dict[str, float] = {}
        self._ever: set[str] = set()

    def begin_process(self) -> None:
        """Begin to count for another process of the rank: it makes its own statements."""
        self._settle()
        self._forget()

    def begin_rows(self) -> None:
        """Add up what came before: of the rows that come now, statements follow the steps."""
        self._settle()

    def add_step(self, end_ns: int) -> None:
        """Take a step of training that has ended."""
        self._ends.append(end_ns)

    def state(self, time_ns: int, attributes: Mapping[str, Any]) -> None:
        """Take a statement: attributes of an event of kind ``model``."""
        flops = given(attributes)
        said = {
            "tokens": figure(attributes, "tokens_per_step"),
            "samples": figure(attributes, "samples_per_step"),
            "flops": formula(attributes) if flops is None else flops,
        }
        values = {name: value for name, value in said.items() if value is not None}
        if isinstance(dtype := attributes.get("dtype"), str):
            self.dtype = spelled(dtype)
        self._waiting.append((time_ns, values))

    @property
    def totals(self) -> Mapping[str, float]:
        """``tokens``, ``samples`` and ``flops`` of all steps; what was not stated is not there."""
        self._settle()
        return self._totals

    def _settle(self) -> None:
        for end_ns in self._ends:
            while self._waiting and self._waiting[0][0] <= end_ns:
                self._apply(self._waiting.popleft()[1])
            for name, value in self._now.items():
                self._add(name, value)
            self._steps += 1
        self._ends = []

    def _apply(self, values: dict[str, float]) -> None:
        for name in values.keys() - self._ever:
            self._add(name, values[name] * self._steps)
        self._ever |= values.keys()
        self._now = values

    def _add(self, name: str, amount: float) -> None:
        self._totals[name] = self._totals.get(name, 0.0) + amount
