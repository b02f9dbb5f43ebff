"""What the rows of one rank add up to."""

from __future__ import annotations

import bisect
import contextlib
import json
from collections import defaultdict, deque
from typing import Any, Final

from haiprof import _core
from haiprof.recorder.arrow_stream import Batch
from haiprof.recorder.metrics.families import BUCKETS, Histogram
from haiprof.recorder.metrics.names import OTHER, Names, group_kind
from haiprof.recorder.metrics.work import Work
from haiprof.recorder.step_rows import Step, parts_of, steps_of

_STEP: Final = _core.CATEGORIES.index("step")
_INFERENCE: Final = _core.CATEGORIES.index("inference_step")
_WAITS: Final = _core.COLLECTIVE_SIDES.index("wait")
_EVENTS: Final = ("group", "budget", "model")
_PAUSES: Final = ("gc", "checkpoint", "compile")
#: The phase in which DistributedDataParallel waits for the gradients of other ranks.
_SYNC: Final = "gradient_sync"
#: Process groups that are remembered.
_MOST_GROUPS: Final = 4096
#: Steps that ranks are compared by: the newest.
COMPARED: Final = 32


class Rank:
    """Counts what one rank has done; another process of the same rank goes on."""

    def __init__(self, phases: Names) -> None:
        """Begin at 0.

        Args:
            phases: which of them have series.
        """
        self._phase_name = phases
        self._trains = False
        self._counts = [0] * (len(BUCKETS) + 1)
        self._total_ns = 0
        #: When the newest step ended, ns UTC.
        self.last_step_ns = 0
        self.phases: defaultdict[str, int] = defaultdict(int)
        self.device_phases: defaultdict[str, int] = defaultdict(int)
        self.pauses: defaultdict[str, int] = defaultdict(int)
        #: ns by kind of group.
        self.waits: defaultdict[str, int] = defaultdict(int)
        #: ns of steps of which all kernels were recorded, and of the two in them; None: of none.
        self.observed: int | None = None
        self.busy = self.exposed = 0
        self.overhead: float | None = None
        #: The newest steps that are summed up, and their ns without waiting for others.
        self.own: deque[tuple[int, int]] = deque(maxlen=COMPARED)
        #: Records that processes before the newest had lost.
        self.lost_before = self.lost = 0
        self._groups: dict[str, str] = {}
        self.work = Work()

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return sum(self._counts)

    @property
    def durations(self) -> Histogram:
        """How long they took, s."""
        return Histogram(tuple(self._counts), self._total_ns / 1e9)

    def begin_process(self) -> None:
        """Begin to count for another process of the rank."""
        self.lost_before += self.lost
        self.lost = 0
        self.own.clear()
        self._groups.clear()
        self.work.begin_process()

    def read(self, batch: Batch) -> None:
        """Take rows as they are written."""
        if batch.table.name == "spans":
            self._read_spans(batch)
        elif batch.table.name == "step_parts":
            self._read_parts(batch)
        elif batch.table.name == "collectives":
            self._read_waits(batch)
        elif batch.table.name == "events":
            self._read_events(batch)

    def _read_spans(self, batch: Batch) -> None:
        kinds, durations = batch.numbers("category"), batch.numbers("duration")
        starts = batch.numbers("start")
        self.work.begin_rows()
        for kind, start_ns, lasts_ns in zip(kinds, starts, durations, strict=True):
            if kind not in (_STEP, _INFERENCE):
                continue
            if kind == _STEP and not self._trains:
                self._trains = True  # what came before was a check of the model, or evaluation
                self._counts, self._total_ns = [0] * len(self._counts), 0
            if (kind == _STEP) is self._trains:
                self._counts[bisect.bisect_left(BUCKETS, lasts_ns / 1e9)] += 1
                self._total_ns += max(0, lasts_ns)
                self.last_step_ns = max(self.last_step_ns, start_ns + lasts_ns)
            if kind == _STEP:
                self.work.add_step(start_ns + lasts_ns)

    def _read_parts(self, batch: Batch) -> None:
        for step in steps_of(batch):
            if step.whole.kind == "step" or not self._trains:
                self._add_step(step, batch.value("step", step.whole.row))
        on_device: dict[int | None, int] = {}
        for row, kind, name, lasts_ns in parts_of(batch):
            if kind in _PAUSES:
                self.pauses[kind] += lasts_ns
            elif kind == "device_phase":
                self.device_phases[self._phase_name(name)] += lasts_ns
            elif kind == "device_step":
                on_device[batch.value("device", row)] = lasts_ns
            elif kind == "busy":
                whole = on_device.pop(batch.value("device", row), lasts_ns)
                self.observed = (self.observed or 0) + max(whole, lasts_ns)
                self.busy += lasts_ns
            elif kind == "exposed":
                self.exposed += lasts_ns

    def _add_step(self, step: Step, number: int | None) -> None:
        """Add a step and its parts; ranges are parts only of one that has no phases."""
        parts = "phase" if any(part.kind == "phase" for part in step.parts) else "user"
        waited = synchronised = 0
        for _, kind, name, lasts_ns in step.parts:
            if kind == parts:
                self.phases[self._phase_name(name)] += lasts_ns
                synchronised += lasts_ns if name == _SYNC else 0
            elif kind == "other":
                self.phases[OTHER] += lasts_ns
            elif kind == "wait":
                waited += lasts_ns
        # What threads waited in that phase for is in it.
        own = max(0, step.whole.duration - max(waited, synchronised))
        self.own.append((-1 if number is None else number, own))

    def _read_waits(self, batch: Batch) -> None:
        sides, durations = batch.numbers("side"), batch.numbers("duration")
        for row, side in enumerate(sides):
            if side == _WAITS:
                group = batch.value("group", row) or ""
                kind = self._groups.get(group)
                self.waits[group_kind(group) if kind is None else kind] += durations[row]

    def _read_events(self, batch: Batch) -> None:
        texts = batch.column("kind").texts
        assert texts is not None
        wanted = {n: text for n, text in enumerate(texts.all) if text in _EVENTS}
        times = batch.numbers("time")
        for row, number in enumerate(batch.numbers("kind") if wanted else ()):
            if number not in wanted:
                continue
            about: Any = None
            with contextlib.suppress(ValueError, RecursionError):  # the job can write anything
                about = json.loads(batch.value("attributes", row) or "")
            if not isinstance(about, dict):
                continue
            if wanted[number] == "budget":
                self.overhead = _share(about)
            elif wanted[number] == "model":
                self.work.state(times[row], about)
            elif len(self._groups) < _MOST_GROUPS:
                purpose = about.get("purpose")
                if isinstance(purpose, str):
                    self._groups[batch.value("text", row) or ""] = group_kind(purpose)


def _share(about: dict[str, Any]) -> float | None:
    """Return the share of the time that recording kernels takes; None: not known.

    Args:
        about: attributes of an event of kind ``budget``.
    """
    longer, share, spent = (about.get(name) for name in ("overhead", "share", "spent"))
    if isinstance(longer, (int, float)) and isinstance(share, (int, float)):
        return longer * share
    return spent if isinstance(spent, (int, float)) else None
