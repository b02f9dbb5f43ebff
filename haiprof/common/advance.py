"""How a process gets further, and when the last time: by the steps and phases in its ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from haiprof import _core

_STEPS: Final = _core.CATEGORIES.index("step")
_INFERENCE: Final = _core.CATEGORIES.index("inference_step")
_FURTHER: Final = frozenset(map(_core.CATEGORIES.index, ("step", "inference_step", "phase")))
#: The first steps compile and warm up: how long they take says nothing of the others.
_FIRST: Final = 3
#: Steps that wait for whoever takes them, which is many times a second.
_MOST: Final = 1 << 16
#: Number of one that has said goodbye, and has not ended.
LEAVES: Final = -1


class Standing(NamedTuple):
    """For how long a process has got no further.

    Attributes:
        number: another one as soon as it gets further.
        age_s: since the end of its newest step or phase.
        longest_s: how long that took at most before, since its first steps.
    """

    number: int
    age_s: float
    longest_s: float


class Advance:
    """How one process gets further."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._steps = self._inference = self._number = 0
        self._newest_ns = self._longest_ns = 0
        #: Steps that nobody has taken yet; None: nobody takes them.
        self._new: deque[tuple[int, int]] | None = None

    def read(self, spans: Mapping[str, tuple[int, int, bytes, bytes | None]]) -> None:
        """Take new spans, as :meth:`haiprof._core.RingReader.rows` has them."""
        if not spans:
            return
        categories = memoryview(spans["category"][2]).cast("I")
        starts = memoryview(spans["start"][2]).cast("q")
        durations = memoryview(spans["duration"][2]).cast("q")
        # In the order of their ends, but for those of several threads.
        for category, start_ns, lasts_ns in zip(categories, starts, durations, strict=True):
            if category not in _FURTHER:
                continue
            self._number += 1
            later_ns = start_ns + lasts_ns - self._newest_ns
            if later_ns > 0:
                if self._steps >= _FIRST and later_ns > self._longest_ns:
                    self._longest_ns = later_ns
                self._newest_ns += later_ns
            self._inference += category == _INFERENCE
            if category == _STEPS:
                self._steps += 1
                if self._new is not None:
                    self._new.append((start_ns, lasts_ns))

    @property
    def steps(self) -> int:
        """How many steps it has made: of training, else of inference."""
        return self._steps or self._inference

    def take_steps(self) -> list[tuple[int, int]]:
        """Return the steps read since the last call, in their order; none the first time.

        Returns:
            When each began, ns UTC, and how long it took, ns.
        """
        if self._new is None:
            self._new = deque(maxlen=_MOST)
        taken = sorted(self._new)
        self._new.clear()
        return taken

    def standing(self, now_ns: int) -> Standing | None:
        """Return for how long it has got no further; None: it has not ended its first steps.

        Args:
            now_ns: the time on the clock of its spans, ns UTC.
        """
        if self._steps < _FIRST:
            return None
        age_s = (now_ns - self._newest_ns) / 1e9
        return Standing(self._number, max(0.0, age_s), self._longest_ns / 1e9)
