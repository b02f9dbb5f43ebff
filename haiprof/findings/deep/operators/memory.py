"""Why operators that mostly move data are slow.

Tests: tests/findings/deep/operators/test_problems.py.
"""

from __future__ import annotations

import re
from typing import Final

from haiprof.findings.deep.operators.case import Operator, Problem, Rule

#: A kernel of torch for operands that are strided or broadcast, one element at a time.
_NOT_VECTORISED: Final = re.compile(r"(?<!vectorized_)(?<!\w)elementwise_kernel")
_NAMES: Final = {
    "elementwise": "an elementwise operator",
    "normalisation": "a normalisation",
    "softmax": "a softmax",
    "reduction": "a reduction",
    "embedding": "a look-up",
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


RULES: Final[tuple[Rule, ...]] = (_bandwidth,)
