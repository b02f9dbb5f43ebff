"""What a device can do at most, as far as its vendor states it, and the roofline that follows.

The roofline (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009): an operator that
computes F operations and moves B bytes takes at least max(F / peak FLOP/s, B / peak B/s). The first
is larger from the intensity F/B on at which both are equal: the ridge.

Tests: tests/views/trace/roofline/test_operators.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from haiprof.common.gpu_models import Model, model
from haiprof.runs import Gpu
from haiprof.views.trace.roofline.formulas.call import Cost

#: An operator that could end within this time is too small for the device, ns: so long last even
#: the shortest kernels on GPUs from V100 to B200 and MI300X (1.2 to 2.7 µs), whatever they do.
LATENCY: Final = 2_000


@dataclasses.dataclass(frozen=True, slots=True)
class Peaks:
    """What is known of a device.

    Attributes:
        flops: FLOP/s by type of the operands, of matrix units where there are any.
        bandwidth: of its memory, B/s.
        multiprocessors: how many blocks can run at the same time at least.
        architecture: as compilers call it: ``sm_90``, ``gfx942``, ….
    """

    flops: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bandwidth: float | None = None
    multiprocessors: int | None = None
    architecture: str | None = None

    @classmethod
    def of(cls, gpu: Gpu | None) -> Peaks:
        """Return what is known of a GPU."""
        if gpu is None:
            return cls()
        known, _ = model(gpu)
        if known is None:
            return cls(multiprocessors=gpu.multiprocessors)
        peaks = cls.of_model(known)
        return dataclasses.replace(
            peaks, multiprocessors=gpu.multiprocessors or peaks.multiprocessors
        )

    @classmethod
    def of_model(cls, known: Model) -> Peaks:
        """Return what is known of a product."""
        return cls(
            {name: tera * 1e12 for name, tera in known.tera.items()},
            None if known.giga is None else known.giga * 1e9,
            known.multiprocessors,
            known.architecture,
        )

    def computing(self, cost: Cost, *, tensor_cores: bool = False) -> float | None:
        """Return the peak FLOP/s for an operator.

        Args:
            cost: of the operator.
            tensor_cores: whether its kernels are known to compute on them: fp32 is tf32 then.
        """
        if cost.unit == "vector":
            # Less than four bytes are computed as fp32.
            return self.flops.get("fp64" if cost.type == "fp64" else "fp32")
        kind = cost.type or ""
        if kind == "fp32" and tensor_cores and (self.architecture or "").startswith("sm_"):
            kind = "tf32"
        return self.flops.get(kind)

    def ideal(
        self, cost: Cost, *, tensor_cores: bool = False, most: bool = False
    ) -> tuple[float | None, str | None]:
        """Return the least time for one call, ns, and what bounds it: ``compute`` or ``memory``.

        Null where it is not known. Computing counts for operators that do not use matrix units only
        if the vendor states a peak for it.

        Args:
            cost: of the call.
            tensor_cores: see :meth:`computing`.
            most: take the most that may have to be moved, not the least.
        """
        moved = cost.most_bytes if most and cost.most_bytes is not None else cost.bytes
        computing = self.computing(cost, tensor_cores=tensor_cores)
        if moved is None or self.bandwidth is None:
            return None, None
        memory = moved / self.bandwidth * 1e9
        if cost.flops is None or computing is None:
            return (memory, "memory") if cost.unit == "vector" else (None, None)
        compute = cost.flops / computing * 1e9
        return max(compute, memory), "compute" if compute > memory else "memory"


def device_peaks(gpus: Sequence[Gpu], device: object) -> Peaks:
    """Return what is known of a device of a process, by the number that its kernels have.

    A process with one GPU means that one, however it is numbered.
    """
    if len(gpus) == 1:
        return Peaks.of(gpus[0])
    numbers = [place if gpu.device is None else gpu.device for place, gpu in enumerate(gpus)]
    return Peaks.of(gpus[numbers.index(device)]) if device in numbers else Peaks()
