"""What to change about a job, from one rank's deep trace: one rule per reason for lost time.

The TensorBoard plugin's advice, and for each reason why a device was idle within a step
(:mod:`haiprof.views.trace.idle_causes.causes`) the operator, the line of code, the step and the
most that can be saved. A rule says nothing about what its trace cannot show, and gives no finding
that nobody can act on. The rules are in one file for each theme: ``*_rules.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import polars as pl

from haiprof.common.cores import Beside
from haiprof.findings.deep import communication_rules, device_rules, host_rules, queue_rules
from haiprof.findings.deep.case import Case, Device
from haiprof.findings.deep.recommendation import Finding
from haiprof.views.trace.idle_causes.causes import Intervals
from haiprof.views.trace.linking.linked import Linked

#: The columns of allocations that rules need.
ALLOCATIONS: Final = ("device", "total_allocated", "total_reserved")

#: Gives the findings of one trace.
Rule: TypeAlias = Callable[[Case], Iterator[Finding]]
#: The order of findings that save the same.
RULES: Final[tuple[Rule, ...]] = (
    host_rules.data_loading,
    host_rules.synchronisation,
    communication_rules.exposed_communication,
    device_rules.copies,
    device_rules.slow_unit,
    host_rules.startup,
    host_rules.python,
    host_rules.launch,
    host_rules.cpu_operator,
    host_rules.allocator,
    queue_rules.graph_launch,
    queue_rules.other_device,
    queue_rules.latency,
    queue_rules.incomplete,
    device_rules.tensor_cores,
    device_rules.unexplained,
    device_rules.memory,
    device_rules.data_parallel,
)
#: Those that look at the idle time, which takes as long to find as all that the others need.
OF_IDLE_TIME: Final[frozenset[Rule]] = frozenset(
    rule for rule in RULES if rule.__module__ in (host_rules.__name__, queue_rules.__name__)
) | {device_rules.unexplained}


def recommendations(
    linked: Linked,
    allocations: pl.DataFrame,
    devices: Sequence[Device] = (),
    backends: Sequence[str] = (),
    waits: Intervals | None = None,
) -> list[Finding]:
    """Return what makes this rank slow, in the order of the rules.

    Args:
        linked: the trace.
        allocations: :data:`ALLOCATIONS` of the table of that name, or
            :func:`haiprof.findings.deep.device_rules.peaks` of these.
        devices: the GPUs of the process.
        backends: of torch.distributed: ``nccl``, ``gloo``, …
        waits: when communications of the process waited for other ranks, as ``merge`` returns it,
            ns; None if that is not known, because no other rank was traced.
    """
    return of_case(Case(linked, allocations, devices, backends, waits))


def of_case(case: Case) -> list[Finding]:
    """Return :func:`recommendations` of a case."""
    if not case.stepped:
        return []
    others = Beside(_findings, case, [rule for rule in RULES if rule not in OF_IDLE_TIME])
    found = _findings(case, [rule for rule in RULES if rule in OF_IDLE_TIME]) | others.result()
    return [finding for rule in RULES for finding in found[rule]]


def _findings(case: Case, some: Sequence[Rule]) -> dict[Rule, list[Finding]]:
    return {rule: list(rule(case)) for rule in some}
