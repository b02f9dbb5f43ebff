"""What the steps of each process of a node were spent on so far, for who shows it while it runs.

It is summed up from the rows of ``step_parts`` that are written anyway, and only once a process has
left a mark that it wants them (:mod:`haiprof.capture.trackers`): they then are in a file beside the
rings, made anew every few seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

from haiprof.common.owned_files import Folder
from haiprof.common.places import FIGURES_MARK, FIGURES_NAME
from haiprof.recorder.arrow_stream import Batch
from haiprof.recorder.process_folder import write_json
from haiprof.recorder.step_rows import steps_of

log = logging.getLogger(__name__)

#: How often the file is made anew, s.
_EVERY_S: Final = 2.0
#: Others than phases that are parts of a step.
_PARTS: Final = ("wait", "gc", "other")
#: A job has far fewer phases: names of more are one.
_MOST_PHASES: Final = 32
_FURTHER: Final = "further"


class StepSums:
    """How many steps a process has made since somebody wants to know, and what they took, ns."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.steps = self.duration = 0
        self.phases: dict[str, int] = {}
        self.parts: dict[str, int] = {}

    def read(self, batch: Batch) -> None:
        """Take new rows of ``step_parts``."""
        for step in steps_of(batch):
            if step.whole.kind != "step":
                continue
            self.steps += 1
            self.duration += step.whole.duration
            for part in step.parts:
                if part.kind == "phase":
                    self._add(self.phases, part.name, part.duration)
                elif part.kind in _PARTS:
                    self._add(self.parts, part.kind, part.duration)

    def _add(self, sums: dict[str, int], name: str, lasts_ns: int) -> None:
        if name not in sums and len(sums) >= _MOST_PHASES:
            name = _FURTHER
        sums[name] = sums.get(name, 0) + lasts_ns

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it; times in ns."""
        return {
            "steps": self.steps,
            "duration": self.duration,
            "phases": self.phases,
            "parts": self.parts,
        }


class Summed(Protocol):
    """A recorded process, as far as it matters here."""

    pid: int
    rank: int | None
    role: str

    def sums(self) -> StepSums:
        """Return its sums, which begin with the first call."""


class Figures:
    """Makes them known while somebody wants them."""

    def __init__(self, rings: Folder, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody wants them yet.

        Args:
            rings: the folder of the rings.
            clock: returns the time, s.
        """
        self._rings, self._clock = rings, clock
        self._due = 0.0
        self._failed = False

    def turn(self, names: Collection[str], processes: Sequence[Summed]) -> None:
        """Make them known if it is time to. Never raises.

        Args:
            names: what is in the folder.
            processes: those that are recorded.
        """
        if FIGURES_MARK not in names or self._clock() < self._due or self._failed:
            return
        self._due = self._clock() + _EVERY_S
        try:
            ranks = [
                {"pid": one.pid, "rank": one.rank, **one.sums().as_json()}
                for one in processes
                if one.role == "rank"
            ]
            write_json(self._rings, FIGURES_NAME, {"ranks": ranks})
        except OSError as error:  # no room: the next turn tries again
            log.debug("figures: %s", error)
        except Exception:  # the recording is worth more
            log.exception("what steps are spent on is made known no more")
            self._failed = True
