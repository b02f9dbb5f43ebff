"""What each view of a deep trace needs, and what it lacks without: one table for all tools.

A key names what is needed: a table (``allocations``), a column with a value in any row
(``kernels.occupancy``), spans of a category or activities of a kind (``spans[op]``), or
:data:`COMMUNICATION`. Tools use such keys to say why they lack something.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

#: That any kernel or span communicates: absent communication needs no description.
COMMUNICATION: Final = "communication"
KERNELS: Final = "kernels"


class Want(NamedTuple):
    """``view`` cannot show ``lost`` if ``needs`` is missing.

    It is only reported if ``given`` is present: without it, there is nothing to report on.
    """

    view: str
    needs: str
    lost: str
    given: str | None = None


_ALL: Final = "all of it"
_LAUNCH: Final = "spans[runtime]"
_OP: Final = "spans[op]"

WANTS: Final = (
    Want("overview", KERNELS, "how busy GPUs were"),
    Want("overview", "kernels.device", "which GPU it was", KERNELS),
    Want("overview", "kernels.blocks_per_sm", "the estimated efficiency of the SMs", KERNELS),
    Want("overview", "kernels.occupancy", "the estimated achieved occupancy", KERNELS),
    Want("overview", _LAUNCH, "which step launched what; runtime's part of a step"),
    Want("steps", "spans[step]", "each step: all of the trace counts as one"),
    Want("operators", _OP, _ALL),
    Want("operators", _LAUNCH, "the time that operators take on devices", _OP),
    Want("operators", "spans.shapes", "costs by the shapes of inputs", _OP),
    Want("operators", "spans.stack", "costs by call stack", _OP),
    Want("kernels", KERNELS, _ALL),
    Want("kernels", _OP, "which operators launch them", KERNELS),
    Want("kernels", "kernels.blocks_per_sm", "blocks per SM", KERNELS),
    Want("kernels", "kernels.occupancy", "the estimated achieved occupancy", KERNELS),
    Want("roofline", KERNELS, _ALL),
    Want("roofline", _OP, "which operators launch kernels", KERNELS),
    Want("roofline", "spans.shapes", "FLOPs, bytes and efficiency of operators", _OP),
    Want("roofline", "spans.types", "bytes of operators, and which peak is theirs", "spans.shapes"),
    Want(
        "roofline", "spans.inputs", "FLOPs of convolutions and attention: stride, padding, causal",
        "spans.shapes",
    ),
    Want("memory", "allocations", _ALL),
    Want("memory", _OP, "who allocated", "allocations"),
    Want("modules", "spans.module", _ALL),
    Want("flames", "spans[python]", "Python's functions; operators and calls are there"),
    Want("distributed", COMMUNICATION, "communication, its overlap, who waits for whom"),
    Want("distributed", "collectives.bytes", "bytes of collectives, bandwidth", COMMUNICATION),
    Want("distributed", "collectives.group", "process groups and their sizes", COMMUNICATION),
    Want("stragglers", COMMUNICATION, _ALL),
    Want("temporal", KERNELS, _ALL),
    Want("idle", KERNELS, _ALL),
    Want("idle", _LAUNCH, "whether a stream waited for the host", KERNELS),
    Want("overlap", COMMUNICATION, "how much of the communication is hidden"),
    Want("launches", KERNELS, _ALL),
    Want("launches", _LAUNCH, _ALL, KERNELS),
    Want("queue_length", KERNELS, _ALL),
    Want("queue_length", _LAUNCH, _ALL, KERNELS),
    Want("full_queue", KERNELS, _ALL),
    Want("full_queue", _LAUNCH, _ALL, KERNELS),
    Want("operator_kernels", KERNELS, _ALL),
    Want("operator_kernels", _OP, _ALL, KERNELS),
    Want("operator_kernels", _LAUNCH, _ALL, KERNELS),
    Want("annotations", "spans[user]", "ranges of the user; steps are there"),
    Want("annotations", KERNELS, "what ranges cost on devices"),
    Want("bandwidth", KERNELS, _ALL),
    Want("bandwidth", "kernels.bytes", _ALL, "kernels[memcpy]"),
    Want("kernel_kinds", KERNELS, _ALL),
    Want("step_trace", "spans[step]", "each step: all of the trace counts as one"),
    Want("op_statistics", KERNELS, _ALL),
    Want("op_statistics", _OP, "operators: kernels stand for themselves", KERNELS),
    Want("hardware_counters", "spans[counters]", _ALL),
    Want("sequences", _OP, "sequences of operators; those of ranges are there", KERNELS),
    Want("critical_path", KERNELS, "what devices did"),
    Want("critical_path", _LAUNCH, "what launched what", KERNELS),
    Want("what_if", KERNELS, "what devices did"),
    Want("what_if", _LAUNCH, "what launched what", KERNELS),
    Want("recommendations", "spans[step]", "of how many steps a problem is"),
    Want("recommendations", "allocations", "advice on memory"),
    Want("recommendations", "spans.stack", "the line of code of a problem", _OP),
    Want("recommendations", "spans.shapes", "what makes operators slow on the device", _OP),
)  # fmt: skip


def missing(available: Collection[str]) -> list[Want]:
    """Return the requirements of views that a trace does not meet.

    Args:
        available: the keys that it has.
    """
    return [
        want
        for want in WANTS
        if want.needs not in available and (want.given is None or want.given in available)
    ]
