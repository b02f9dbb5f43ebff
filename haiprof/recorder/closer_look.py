"""Evidence that is gathered for some seconds once steps have become slower, to see why.

Stacks and the node are sampled more often, and a window of kernels begins in processes that use
GPUs. What sources and windows may cost stays the same: both have limits of their own. All rates are
in the recorder's memory only, so that whoever comes after it has those of before.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from haiprof.recorder.answering import Answering
from haiprof.recorder.finding_watch import EVIDENCE_S
from haiprof.recorder.launch import import_paths

log = logging.getLogger(__name__)

_STACKS_HZ: Final = 100.0
#: s between two samples of a source of the host; GPUs are asked as often as before.
_HOST_S: Final = 0.1
_GPU: Final = "gpu"
#: How long asking for windows of kernels may take, s: later, no window is of use.
SECONDS: Final = 10.0
_PROGRAM: Final = (
    "import sys; sys.path[:] = {paths!r}; from haiprof.control.ask_for_kernels import main; main()"
)


class CloserLook:
    """Says at which rates to sample, and asks for windows of kernels."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is looked at more closely yet.

        Args:
            clock: returns the time, s.
        """
        self._clock = clock
        self._until = 0.0
        self._asks: Answering | None = None

    def begin(self, pids: Sequence[int]) -> None:
        """Look more closely for :data:`EVIDENCE_S` from now on.

        Args:
            pids: of processes that use GPUs.
        """
        self._until = self._clock() + EVIDENCE_S
        if not pids or self._asks is not None:
            return
        words = [sys.executable, "-c", _PROGRAM.format(paths=import_paths())]
        try:
            self._asks = Answering([*words, *map(str, pids)], SECONDS)
        except OSError as error:
            log.error("no window of kernels is asked for: %s", error)

    @property
    def looks(self) -> bool:
        """Whether something is looked at more closely now."""
        return self._clock() < self._until

    def stack_hz(self, usual: float) -> float:
        """Return how often to sample stacks; never where they are off."""
        return max(usual, _STACKS_HZ) if usual and self.looks else usual

    def intervals(self, usual: Mapping[str, float]) -> Mapping[str, float]:
        """Return how often to read the sources of the host, s."""
        if not self.looks:
            return usual
        return {name: s if name == _GPU else min(s, _HOST_S) for name, s in usual.items()}

    def turn(self) -> None:
        """See how asking has ended."""
        if self._asks is None or not self._asks.over():
            return
        asks, self._asks = self._asks, None
        try:
            for line in asks.said().decode("utf-8", "replace").splitlines():
                log.info("%.200s", line)
        except ValueError as error:
            log.error("windows of kernels: what asks for them %s", error)

    def end(self) -> None:
        """Look as before."""
        self._until = 0.0
        if self._asks is not None:
            self._asks.end()
            self._asks = None
