"""How efficient an operator can have been: certain also where the trace does not name its device.

Of a known device there is one roofline. Otherwise the device is one of those that can have run the
kernels (:mod:`haiprof.views.gpu_families`), and each gives its own: an operator is inefficient only
if it is on all of them.

Times are ns, shares of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from haiprof.common.gpu_models import model
from haiprof.runs import Gpu
from haiprof.views.gpu_families import candidates
from haiprof.views.trace.roofline.device import LATENCY, Peaks, device_peaks
from haiprof.views.trace.roofline.formulas.call import Cost


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The rooflines that a device can have.

    Attributes:
        rooflines: one, if the device is known.
        name: of the device; None if the trace does not name a known one.
    """

    rooflines: tuple[Peaks, ...]
    name: str | None

    @classmethod
    def of(cls, gpus: Sequence[Gpu], device: object, names: Iterable[str]) -> Limits:
        """Return the limits of a device of a process.

        Args:
            gpus: of the process.
            device: by the number that its kernels have.
            names: of its kernels, and of operators.
        """
        known = device_peaks(gpus, device)
        if known.flops or known.bandwidth:
            return cls((known,), _name(gpus, device))
        if any(gpu.name for gpu in gpus):
            # It has a name, but it is none that is known: no other stands for it.
            return cls((), None)
        return cls(tuple(Peaks.of_model(each) for each in candidates(names)), None)

    def ideals(self, cost: Cost, *, tensor_cores: bool, most: bool) -> list[float]:
        """Return the least time of a call on each of them that has it, ns."""
        found = (
            each.ideal(cost, tensor_cores=tensor_cores, most=most)[0] for each in self.rooflines
        )
        return [ideal for ideal in found if ideal is not None]

    def efficiency(self, cost: Cost, mean: float, *, tensor_cores: bool) -> float | None:
        """Return the efficiency that calls can have had at most; null if nothing bounds it.

        No call ends before the shortest kernels do (:data:`LATENCY`).
        """
        ideals = self.ideals(cost, tensor_cores=tensor_cores, most=True)
        return max(max(ideals), LATENCY) / mean if ideals and mean > 0 else None

    def saving(self, cost: Cost, mean: float, *, tensor_cores: bool) -> float:
        """Return the time that one call can save at most, ns."""
        ideals = self.ideals(cost, tensor_cores=tensor_cores, most=False)
        least = max(min(ideals), LATENCY) if ideals else LATENCY
        return max(mean - least, 0.0)

    def bound(self, cost: Cost, *, tensor_cores: bool) -> str | None:
        """Return what bounds a call on all of them: ``compute`` or ``memory``; else None."""
        found = {
            bound
            for each in self.rooflines
            if (bound := each.ideal(cost, tensor_cores=tensor_cores, most=True)[1]) is not None
        }
        return found.pop() if len(found) == 1 else None

    @property
    def multiprocessors(self) -> int | None:
        """How many a device has at least."""
        known = [each.multiprocessors for each in self.rooflines if each.multiprocessors]
        return min(known) if known else None


def _name(gpus: Sequence[Gpu], device: object) -> str | None:
    for place, gpu in enumerate(gpus):
        if len(gpus) == 1 or device == (place if gpu.device is None else gpu.device):
            return gpu.name if model(gpu)[0] is not None else None
    return None
