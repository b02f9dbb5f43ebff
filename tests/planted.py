"""Jobs made by hand with one planted fault each, for tests of findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest
from trace_rows import kernel, span, table

from haiprof.findings.deep import rules
from haiprof.findings.deep.case import Case, Device
from haiprof.findings.deep.recommendation import Finding
from haiprof.views.trace.idle_causes.causes import Intervals
from haiprof.views.trace.linking.linked import link

US = 1000
STEP = 1000
STEPS = 3
SLOW = 2
LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
H100 = Device("NVIDIA H100", 80 * 2**30, (9, 0))
Rows = list[dict[str, Any]]


@dataclasses.dataclass
class Job:
    """Three steps of 1 ms, numbered from 1, each with two kernels that take all of it."""

    spans: Rows = dataclasses.field(default_factory=list)
    kernels: Rows = dataclasses.field(default_factory=list)
    allocations: Rows = dataclasses.field(default_factory=list)
    devices: Sequence[Device] = (H100,)
    backends: Sequence[str] = ()
    name: str = "sm90_xmma_gemm_bf16bf16_bf16f32"

    def __post_init__(self) -> None:
        for number in range(1, STEPS + 1):
            begin = (number - 1) * STEP
            self.host("step", f"ProfilerStep#{number}", begin, begin + STEP, step=number)
            self.host("op", "aten::mm", begin + 1, begin + 9)
            self.host("runtime", "cudaLaunchKernel", begin + 5, begin + 8, correlation=number)

    def host(self, category: str, name: str, start: int, end: int, **more: Any) -> None:
        self.spans.append(span(category, name, start * US, end * US, **more))

    def ran(self, start: int, end: int, name: str = "", **more: Any) -> None:
        self.kernels.append(kernel(name or self.name, start * US, end * US, **more))

    def launch(self, at: int, correlation: int, name: str = "cudaLaunchKernel") -> None:
        """A call that takes no time, so that nothing else does because of it."""
        self.host("runtime", name, at, at, correlation=correlation)

    def busy(self, idle: dict[int, tuple[int, int]] | None = None) -> Job:
        """Keep the device busy but for one interval of each of some steps."""
        for number in range(1, STEPS + 1):
            begin = (number - 1) * STEP
            low, high = (idle or {}).get(number, (500, 500))
            self.ran(begin, begin + low, correlation=number)
            self.launch(begin + high, 50 + number)
            self.ran(begin + high, begin + STEP, correlation=50 + number)
        return self

    def findings(self, waits: Intervals | None = None) -> list[Finding]:
        linked = link(table("spans", self.spans), table("kernels", self.kernels))
        allocations = table("allocations", self.allocations)
        given = (linked, allocations, self.devices, self.backends, waits)
        found = rules.recommendations(*given)
        beside = WithoutIdleTime(*given)
        for rule in set(rules.RULES) - rules.OF_IDLE_TIME:
            assert set(rule(beside)) <= set(found)
        return sorted(found, key=lambda f: -(f.saves_ns or 0))


class WithoutIdleTime(Case):
    """For rules that run beside the search for the idle time."""

    @property
    def whole_idle(self) -> NoReturn:
        """What they must not ask for: they would wait for it."""
        raise AssertionError("a rule asks for the idle time that is not in OF_IDLE_TIME")

    idle = whole_idle


#: Idle from 300 to 700 µs of the second step.
IDLE = {SLOW: (300, 700)}
BEGIN = (SLOW - 1) * STEP


def first(job: Job, kind: str, operator: str, lost: int) -> Finding:
    """The finding that saves most, which is this: ``lost`` µs of the second step."""
    found = job.findings()[0]
    assert (found.kind, found.operator, found.step) == (kind, operator, SLOW)
    assert found.saves_ns == lost * US
    assert found.share == pytest.approx(lost / (STEPS * STEP))
    return found


def of_memory(total: int, device: int = 0) -> dict[str, Any]:
    """A record of the allocator: how much is in use."""
    record = {"time": 1, "kind": "cuda", "device": device, "address": 1, "bytes": 1}
    return {**record, "total_allocated": total, "total_reserved": total}
