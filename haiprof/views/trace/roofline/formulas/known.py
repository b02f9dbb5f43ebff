"""Which operators have a formula.

Tests: tests/views/trace/roofline/test_formulas.py.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from haiprof.views.trace.roofline.formulas import (
    attention,
    convolution,
    experts,
    gemm,
    memory,
    pooling,
)
from haiprof.views.trace.roofline.formulas.call import Call, Cost, Formula, fits

_FORMULAS: Final = {
    **gemm.FORMULAS,
    **convolution.FORMULAS,
    **attention.FORMULAS,
    **memory.FORMULAS,
    **pooling.FORMULAS,
}


def formula(operator: str | None) -> Formula | None:
    """Return the formula of an operator; None if there is none."""
    found = _FORMULAS.get(operator or "")
    if found is None and operator and experts.NAMES.search(operator):
        return experts.cost
    return found


def cost(call: Call) -> Cost | None:
    """Return what a call must compute and move; None if its recorded inputs do not say."""
    known = formula(call.operator)
    found = None if known is None else known(call)
    if found is None or not fits(*found.sizes.values()):
        return None
    return found if fits(found.flops) else dataclasses.replace(found, flops=None)


def needs_values(operator: str) -> bool:
    """Say whether an operator's formula looks at inputs that are not tensors."""
    return operator in _OF_VALUES


_OF_VALUES: Final = frozenset(
    {
        *convolution.FORMULAS,
        *attention.FORMULAS,
        *pooling.FORMULAS,
        *(name for name in memory.FORMULAS if name in memory.OF_VALUES),
        "aten::_scaled_mm",
    }
)
