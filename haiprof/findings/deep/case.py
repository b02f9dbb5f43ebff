"""What the rules of a deep trace share: the trace, its losses, and what kind of job it is of.

Tests: tests/findings/deep/test_rules.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import polars as pl

from haiprof.common.once import once, once_property
from haiprof.findings.deep.job import Job, job_of
from haiprof.views.intervals import Times, covered, intersect, subtract
from haiprof.views.trace import distributed
from haiprof.views.trace.communication import communications
from haiprof.views.trace.critical_path.path import window, window_of_step
from haiprof.views.trace.critical_path.what_if import Replay, Work
from haiprof.views.trace.idle_causes.causes import Idle, Intervals, in_steps, of_devices
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.overview import Overview, overview

#: A smaller share of the steps is not worth a finding.
WORTH = 0.02


@dataclasses.dataclass(frozen=True)
class Device:
    """The properties of a GPU that rules need."""

    name: str
    memory_bytes: int | None
    capability: tuple[int, int] | None
    #: Its CUDA ordinal, if that is not its index in the list.
    ordinal: int | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One rank's trace, and what the rules share.

    Attributes:
        linked: the trace.
        allocations: see :func:`haiprof.findings.deep.rules.peaks`.
        devices: the GPUs of the process.
        backends: of torch.distributed.
        waits: when its communications waited for other ranks, as ``merge`` returns it, ns; None if
            that is not known, because no other rank was traced.
    """

    linked: Linked
    allocations: pl.DataFrame
    devices: Sequence[Device]
    backends: Sequence[str]
    waits: Intervals | None

    @once_property
    def overview(self) -> Overview:
        """The overview of the trace."""
        return overview(self.linked)

    @once_property
    def job(self) -> Job:
        """What kind of job it is."""
        return job_of(self.linked, (self.devices and self.devices[0].name) or "")

    @property
    def stepped(self) -> int:
        """Total time of all recorded steps, ns."""
        steps = self.linked.steps
        return int((steps["end"] - steps["start"]).sum())

    @property
    def has_device(self) -> bool:
        """Whether any device did anything."""
        return bool(self.linked.busy.any())

    @once_property
    def whole_idle(self) -> Idle:
        """The idle time of the devices."""
        return of_devices(self.linked, self.waits)

    @once_property
    def idle(self) -> tuple[Idle, np.ndarray[tuple[int], np.dtype[np.intp]]]:
        """The idle time of the devices in the steps, and for each piece the row of its step."""
        return in_steps(self.linked, self.whole_idle)

    @property
    def lanes(self) -> int:
        """Number of devices that worked: a time that is lost on one is lost for a part of them."""
        return max(len(self.idle[0].lanes), 1)

    @once_property
    def alone(self) -> Intervals:
        """When the process communicated and computed nothing, ns."""
        return distributed.broken_down(self.linked)[1]

    @once_property
    def waiting(self) -> Intervals:
        """The part of :attr:`alone` in which it waited for other ranks; nothing if not known."""
        none = np.zeros(0, np.int64)
        return (none, none) if self.waits is None else intersect(*self.alone, *self.waits)

    @once_property
    def transfer(self) -> Intervals:
        """The part of :attr:`alone` in which it moved data, or is not known to have waited."""
        return subtract(*self.alone, *self.waiting)

    @once_property
    def communications(self) -> pl.DataFrame:
        """The communications of the process."""
        return communications(self.linked)

    def by_step(self, start: Times, end: Times) -> Times:
        """How long these intervals last in each step, ns."""
        steps = self.linked.steps
        return covered(start, end, steps["start"].to_numpy(), steps["end"].to_numpy())

    def step(self, row: int) -> int | None:
        """Return the number of a step, by its row; None if no steps are marked."""
        number = self.linked.steps["step"][row]
        return int(number) if self.linked.stepped and number is not None else None

    def saved(self, lost: int) -> int:
        """Return the most that avoiding a loss could save of the recorded steps, ns.

        It is an upper bound: other work may keep a step as long as it is (:meth:`replayed`).

        Args:
            lost: how long a device of the process, or the process, did nothing else than that.
        """
        return min(lost, self.stepped)

    def replayed(self, lost: Times, work: Work) -> int:
        """Return by how much the step that lost most is shorter without some work, ns.

        Args:
            lost: what each step lost, which bounds it.
            work: what takes no time.
        """
        row = int(lost.argmax())
        return min(self.shorter(self.step(row), work), int(lost[row]))

    def shorter(self, step: int | None, work: Work, factor: float = 0.0) -> int:
        """Return by how much a step is shorter if work takes ``factor`` of its time, ns.

        Args:
            step: its number; None for all of the trace, where no steps are marked.
            work: as for :class:`Replay`.
            factor: 0 for no time.
        """
        replay = once(self._replays, step, lambda: self._replay(step))
        return replay.before - replay.after(work, factor)

    def _replay(self, step: int | None) -> Replay:
        linked = self.linked
        each = window(linked) if step is None else window_of_step(linked, step)
        return Replay(linked, each)

    @once_property
    def _replays(self) -> dict[int | None, Replay]:
        return {}
