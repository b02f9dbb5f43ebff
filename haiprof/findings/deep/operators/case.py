"""One operator of a trace with what its device allows: the common ground of rules on operators.

Tests: tests/findings/deep/operators/test_problems.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from haiprof.common.numbers import milliseconds, percent
from haiprof.runs import Gpu
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import texts_in
from haiprof.views.trace.roofline.device import LATENCY
from haiprof.views.trace.roofline.formulas.call import Cost
from haiprof.views.trace.roofline.limits import Limits
from haiprof.views.trace.roofline.operators import with_costs
from haiprof.views.trace.roofline.tiles import blocks, tile

#: Bandwidth from which on an operator that memory bounds is well: plain copies reach 80 to 93 % of
#: what vendors state, and what is left beyond this is less than a third.
MEMORY: Final = 0.6
#: FLOP/s from which on one that computing bounds is well. With large square matrices, libraries
#: reach 65 to 90 % of the vendor's figure on NVIDIA's GPUs, but on MI300X about half in half
#: precision, where power limits the clock.
COMPUTE: Final = {"fp64": 0.5, "fp32": 0.5, "tf32": 0.5, "fp16": 0.4, "bf16": 0.4, "fp8": 0.4}
#: The same for attention: FlashAttention-2 reaches 35 % on H100 (Shah et al., FlashAttention-3,
#: 2024), and half to three quarters on A100; in the backward pass 25 to 30 % on H100.
ATTENTION: Final = 0.3
ATTENTION_BACKWARD: Final = 0.2
#: An operator that ought to be shorter than the shortest kernel is only looked at if it takes this
#: many times as long: launching and ramping up explain the rest.
_TINY: Final = 5
#: Rows of the smallest tile that matrix units multiply, on NVIDIA's and AMD's GPUs.
UNIT_ROWS: Final = 16
#: Blocks for fewer than this share of the multiprocessors leave most of the device idle.
FILLED: Final = 0.5


class Problem(NamedTuple):
    """``kind`` as in a finding, its sentences, and what all calls can save at most, ns."""

    kind: str
    problem: str
    advice: str
    saving: int | None = None


@dataclasses.dataclass(frozen=True)
class Operator:
    """All calls of one operator with the same inputs: a row of the roofline.

    Attributes:
        row: of :func:`haiprof.views.trace.roofline.operators.operators`.
        cost: of one call.
        limits: of its device.
    """

    row: Mapping[str, Any]
    cost: Cost
    limits: Limits

    @property
    def name(self) -> str:
        """The operator."""
        return str(self.row["operator"])

    @property
    def mean(self) -> float:
        """Device time of a call, ns."""
        return float(self.row["device_time"]) / max(int(self.row["calls"]), 1)

    @property
    def tensor_cores(self) -> bool:
        """Whether its kernels are known to compute on tensor cores."""
        return bool(self.row["tensor_core"])

    @property
    def efficiency(self) -> float | None:
        """What it reached of what its device allows, at most; None if that is not known."""
        return self.limits.efficiency(self.cost, self.mean, tensor_cores=self.tensor_cores)

    @property
    def bound(self) -> str | None:
        """``compute`` or ``memory``, if that is certain."""
        return self.limits.bound(self.cost, tensor_cores=self.tensor_cores)

    @property
    def saving(self) -> int:
        """What all its calls can save at most, ns."""
        each = self.limits.saving(self.cost, self.mean, tensor_cores=self.tensor_cores)
        return round(each * int(self.row["calls"]))

    @property
    def saving_if_amortised(self) -> int:
        """What all its calls can save at most if only computing took time, ns.

        So it is if what they read served many times as many rows.
        """
        computing = [
            peak
            for each in self.limits.rooflines
            if (peak := each.computing(self.cost, tensor_cores=self.tensor_cores)) is not None
        ]
        if not computing or self.cost.flops is None:
            return self.saving
        each = max(self.mean - max(self.cost.flops / max(computing) * 1e9, LATENCY), 0.0)
        return round(each * int(self.row["calls"]))

    @property
    def saving_if_fused(self) -> int:
        """What all its calls can save at most if they became part of longer kernels, ns."""
        ideals = self.limits.ideals(self.cost, tensor_cores=self.tensor_cores, most=False)
        each = max(self.mean - min(ideals, default=0.0), 0.0)
        return round(each * int(self.row["calls"]))

    @property
    def tiny(self) -> bool:
        """Whether it is too small to tell anything from its time.

        On a device that is not known, so is all that ought to be shorter than the shortest kernels.
        """
        return self.negligible and (self.limits.name is None or self.mean < _TINY * LATENCY)

    def below(self, threshold: float) -> bool:
        """Say whether it is certain to have stayed below a share of what its device allows."""
        reached = self.efficiency
        return reached is not None and reached < threshold and not self.tiny

    @property
    def slow(self) -> bool:
        """Whether it is certain to be inefficient: see :data:`MEMORY` and :data:`COMPUTE`."""
        if self.bound == "memory":
            return self.below(MEMORY)
        limit = COMPUTE.get(self.cost.type or "")
        if self.cost.kind == "attention":
            limit = ATTENTION_BACKWARD if self.cost.sizes["backward"] else ATTENTION
        # Where either can bound it, the stricter threshold makes the claim certain.
        return limit is not None and self.below(min(limit, MEMORY))

    @property
    def blocks(self) -> int | None:
        """How many blocks its longest kernel has: of its grid, else by the tile in its name."""
        count = self.row["blocks"]
        if count is not None:
            return int(count)
        stated, sizes = tile(self.row["kernel"]), self.cost.sizes
        if stated is None or not {"batch", "m", "n"} <= sizes.keys():
            return None
        return blocks(stated, sizes["batch"], sizes["m"], sizes["n"])

    @property
    def few_blocks(self) -> bool:
        """Whether its blocks leave most multiprocessors without work."""
        count, there = self.blocks, self.limits.multiprocessors
        return count is not None and there is not None and count < FILLED * there

    @property
    def negligible(self) -> bool:
        """Whether it is certain that a call could end within the time of the shortest kernels."""
        ideals = self.limits.ideals(self.cost, tensor_cores=self.tensor_cores, most=True)
        return bool(ideals) and max(ideals) < LATENCY

    @property
    def structural(self) -> bool:
        """Whether memory bounds it on any device that it can have run on, and none is named.

        Then its shapes are a reason to name it, unless it is certain to have done well.
        """
        ideals = self.limits.ideals(self.cost, tensor_cores=self.tensor_cores, most=False)
        well = bool(ideals) and min(ideals) >= MEMORY * self.mean
        return self.limits.name is None and self.bound == "memory" and not (self.tiny or well)

    @property
    def multiprocessors(self) -> str:
        """Describe how many the device has."""
        least = "" if self.limits.name is not None else "at least "
        return f"{least}{self.limits.multiprocessors} multiprocessors"

    @property
    def reached(self) -> str:
        """Describe its efficiency."""
        most = "" if self.limits.name is not None else "at most "
        return f"{most}{percent(self.efficiency or 0.0)} of what the device allows"

    @property
    def intensity(self) -> str:
        """Describe how much it computes per byte."""
        found = self.row["intensity"]
        return "few" if found is None else f"{found:.2g}"

    def evidence(self) -> str:
        """Describe what it did in figures, and of what peak that is."""
        calls = int(self.row["calls"])
        parts = [
            f"{milliseconds(float(self.row['device_time']))} in "
            f"{'one call' if calls == 1 else f'{calls} calls'}, "
            f"{percent(float(self.row['share']))} of the device's time"
        ]
        done = []
        if self.cost.flops and self.cost.unit == "matrix":
            done.append(f"{_flops(self.row['flops_per_s'])}{self._share('flops_share')}")
        if self.row["bytes_per_s"] is not None:
            done.append(f"{_bytes(self.row['bytes_per_s'])}{self._share('bytes_share')}")
        if self.row["intensity"] is not None:
            done.append(f"{self.row['intensity']:.3g} FLOP/B")
        if done:
            parts.append(", ".join(done))
        parts.append(self._of_allowed())
        return "; ".join(part for part in parts if part)

    def _share(self, column: str) -> str:
        share = self.row[column]
        return "" if share is None else f" ({percent(float(share))} of the peak)"

    def _of_allowed(self) -> str:
        reached = self.efficiency
        if self.limits.name is not None:
            return (
                "" if reached is None else f"{percent(reached)} of what {self.limits.name} allows"
            )
        if reached is None or reached > 1:
            return "the trace does not name the device, so its share of the peak is not known"
        return (
            f"the trace does not name the device: at most {percent(reached)} of what any known GPU "
            "allows that has such kernels"
        )


Rule: TypeAlias = Callable[[Operator], Problem | None]


def operators_of(linked: Linked, gpus: Sequence[Gpu]) -> list[Operator]:
    """Return the operators of a trace whose cost is known, the longest on the device first."""
    found, costs = with_costs(linked, gpus)
    names = [
        *texts_in(linked.activities["name"])[0],
        *found["operator"].drop_nulls().unique(),
        *(name for name in texts_in(linked.ops["name"])[0] if name.startswith("hip")),
    ]
    limits = {
        device: Limits.of(gpus, device, names) for device in found["device"].unique().to_list()
    }
    chosen = []
    for row, cost in zip(found.iter_rows(named=True), costs, strict=True):
        if cost is not None and row["kind"] == cost.kind:
            chosen.append(Operator(row, cost, limits[row["device"]]))
    return chosen


def by(*sides: int) -> str:
    """Write the sides of an array."""
    return "\N{MULTIPLICATION SIGN}".join(map(str, sides))


def _flops(per_s: float) -> str:
    for unit, of in (("TFLOP/s", 1e12), ("GFLOP/s", 1e9)):
        if per_s >= of:
            return f"{per_s / of:.3g} {unit}"
    return f"{per_s / 1e6:.3g} MFLOP/s"


def _bytes(per_s: float) -> str:
    if per_s >= 1e12:
        return f"{per_s / 1e12:.3g} TB/s"
    return f"{per_s / 1e9:.3g} GB/s"
