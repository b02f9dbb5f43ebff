"""Why operators that mostly move data are slow.

Tests: tests/findings/deep/operators/test_problems.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from haiprof.common.numbers import milliseconds
from haiprof.findings.deep.operators.case import Operator, Problem, Rule
from haiprof.views.trace.roofline.device import LATENCY

#: Small operators are a problem together from this share of the device's time and these calls on.
_MUCH: Final = 0.25
_CALLS: Final = 10
#: One that takes longer has another problem, ns.
_SHORT: Final = 10_000
#: A kernel of torch for operands that are strided or broadcast, one element at a time.
_NOT_VECTORISED: Final = re.compile(r"(?<!vectorized_)(?<!\w)elementwise_kernel")
_NAMES: Final = {
    "elementwise": "an elementwise operator",
    "normalisation": "a normalisation",
    "softmax": "a softmax",
    "reduction": "a reduction",
    "embedding": "a look-up",
    "pooling": "pooling or resizing",
}


def _bandwidth(each: Operator) -> Problem | None:
    if not each.slow:
        return None
    what = _NAMES.get(each.cost.kind)
    if what is None:
        return None
    if each.few_blocks:
        why = f", since {each.blocks} blocks are too few for the {each.multiprocessors}"
        advice = (
            "give it more to do at once (a larger batch), or another kernel: torch.compile divides "
            "the work further"
        )
    elif _NOT_VECTORISED.search(str(each.row["kernel"])):
        why = ", with a kernel for operands that are strided or broadcast"
        advice = (
            "make its operands contiguous in the same order (contiguous(), channels_last), or fuse "
            "it with its neighbours (torch.compile)"
        )
    else:
        why = ""
        advice = (
            "fuse it with its neighbours (torch.compile, or a fused version of the layer), so that "
            "the data is read once, and look at what else uses the memory at that time"
        )
    moved = each.reached.replace("what the device allows", "the memory's bandwidth")
    return Problem("poor_bandwidth", f"{what} reaches {moved}{why}", advice)


def small(every: Sequence[Operator]) -> list[list[tuple[Operator, Problem]]]:
    """Return the operators of each device that are too small for it, if they take much of its time.

    Each is nearly as fast as a kernel can be, so none is a problem by itself.
    """
    groups = []
    for device in dict.fromkeys(each.row["device"] for each in every):
        mine = [
            each
            for each in every
            if each.row["device"] == device and each.negligible and each.mean < _SHORT
        ]
        calls = sum(int(each.row["calls"]) for each in mine)
        took = sum(int(each.row["device_time"]) for each in mine)
        if calls < _CALLS or sum(each.row["share"] or 0.0 for each in mine) < _MUCH:
            continue
        words = (
            "small_operators",
            f"{calls} calls of operators with so little data that it takes less than "
            f"{milliseconds(LATENCY)} each take {milliseconds(took / calls)} on average",
            "fuse them (torch.compile, fused or foreach optimizers and layers), or give them more "
            "data at once: a larger batch",
        )
        groups.append([(each, Problem(*words, each.saving_if_fused)) for each in mine])
    return groups


RULES: Final[tuple[Rule, ...]] = (_bandwidth,)
