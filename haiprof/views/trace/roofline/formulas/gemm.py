"""Multiplications of matrices.

The product of matrices (M, K) and (K, N) takes 2·M·N·K operations (LAPACK Working Note 41, appendix
C; torch's ``mm_flop`` counts the same) and moves M·K + K·N + M·N elements at least. What is added
(a bias) counts as moved, not as computed, as in torch's counter.

Tests: tests/views/trace/roofline/test_formulas.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final

from haiprof.views.trace.roofline.formulas.call import Call, Cost, Formula, Tensor, size

KIND: Final = "gemm"
#: Multiplications by one matrix of several, which one depending on the row.
EXPERTS: Final = "experts"


def product(
    left: Tensor | None,
    right: Tensor | None,
    *more: Tensor | None,
    transposed: bool = False,
    out: str | None = None,
    kind: str = KIND,
) -> Cost | None:
    """Return the cost of a product, of matrices or of batches of them.

    Args:
        left: ``(…, M, K)``.
        right: ``(…, K, N)``; ``(…, N, K)`` if ``transposed``. Of fewer batches, it is reused.
        more: further tensors that are read.
        transposed: see ``right``.
        out: type of the result, if not that of ``left``.
        kind: of the cost.
    """
    if left is None or right is None or len(left.shape) < 2 or len(right.shape) < 2:
        return None
    m, k = left.shape[-2:]
    n, k_right = right.shape[-2:] if transposed else right.shape[-1:-3:-1]
    batch = math.prod(left.shape[:-2])
    if k != k_right:
        return None
    if len(right.shape) == 2:
        m, batch = m * batch, 1
    elif left.shape[:-2] != right.shape[:-2]:
        return None
    result = Tensor((batch, m, n), left.type if out is None else out)
    return Cost(
        kind,
        2 * batch * m * n * k,
        size(left, right, result, *more),
        "matrix",
        left.type,
        {"batch": batch, "m": m, "n": n, "k": k},
    )


def _plain(left: int, right: int, *more: int) -> Formula:
    def cost(call: Call) -> Cost | None:
        return product(call.tensor(left), call.tensor(right), *(call.tensor(each) for each in more))

    return cost


def _linear(call: Call) -> Cost | None:
    rows = call.tensor(0)
    if rows is not None and len(rows.shape) == 1:
        rows = Tensor((1, *rows.shape), rows.type)
    return product(rows, call.tensor(1), call.tensor(2), transposed=True)


def _by_vector(matrix: int, vector: int, *more: int) -> Formula:
    def cost(call: Call) -> Cost | None:
        column = call.tensor(vector)
        if column is None or len(column.shape) != 1:
            return None
        right = Tensor((*column.shape, 1), column.type)
        return product(call.tensor(matrix), right, *(call.tensor(each) for each in more))

    return cost


def _matmul(call: Call) -> Cost | None:
    """``torch.matmul``: vectors are rows or columns, batches may be reused."""
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None:
        return None
    if len(left.shape) == 1:
        left = Tensor((1, *left.shape), left.type)
    if len(right.shape) == 1:
        right = Tensor((*right.shape, 1), right.type)
    return product(left, right)


def _scaled(call: Call) -> Cost | None:
    """``_scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype)``, in fp8 or less."""
    out = call.scalar_type(6)
    if out is None and call.text(6) is None:
        # The result may have any type, so what it takes to write it is not known.
        found = product(call.tensor(0), call.tensor(1))
        return found and dataclasses.replace(found, bytes=None)
    return product(*(call.tensor(each) for each in (0, 1, 2, 3, 4)), out=out)


def _integer(call: Call) -> Cost | None:
    return product(call.tensor(0), call.tensor(1), out="int32")


def _into(call: Call) -> Cost | None:
    """``(out, a, b, …)``, as kernels of vLLM have it."""
    out = call.tensor(0)
    return product(call.tensor(1), call.tensor(2), out=None if out is None else out.type)


def _grouped(call: Call) -> Cost | None:
    """``_grouped_mm(a, b, offsets)``: rows of ``a`` in groups, a matrix of ``b`` for each.

    The offsets, which only values say, do not change how much is computed: each row belongs to one
    group. Of ``b``, at least the matrix of one group is read. If both are matrices, the groups
    divide K, with a result for each.
    """
    left, right = call.tensor(0), call.tensor(1)
    if left is None or right is None:
        return None
    if len(left.shape) == 3 and len(right.shape) == 3:
        return product(left, right, kind=EXPERTS)
    if len(left.shape) == 2 and len(right.shape) == 2:
        found = product(left, right, kind=EXPERTS)
        return found and dataclasses.replace(found, bytes=None)
    if len(left.shape) != 2 or len(right.shape) != 3 or left.shape[1] != right.shape[1]:
        return None
    (rows, k), (experts, _, n) = left.shape, right.shape
    result, one = Tensor((rows, n), left.type), Tensor((k, n), right.type)
    used = Tensor((min(experts, rows), k, n), right.type)
    return Cost(
        EXPERTS,
        2 * rows * n * k,
        size(left, one, result),
        "matrix",
        left.type,
        {"experts": experts, "rows": rows, "n": n, "k": k},
        most_bytes=size(left, used, result),
    )


FORMULAS: Final[Mapping[str, Formula]] = {
    "aten::mm": _plain(0, 1),
    "aten::bmm": _plain(0, 1),
    "aten::addmm": _plain(1, 2, 0),
    "aten::addmm_": _plain(1, 2, 0),
    "aten::_addmm_activation": _plain(1, 2, 0),
    "aten::baddbmm": _plain(1, 2, 0),
    "aten::baddbmm_": _plain(1, 2, 0),
    "aten::mv": _by_vector(0, 1),
    "aten::addmv": _by_vector(1, 2, 0),
    "aten::addmv_": _by_vector(1, 2, 0),
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::_scaled_mm": _scaled,
    "aten::_int_mm": _integer,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "_C::cutlass_scaled_mm": _into,
    "vllm::rocm_unquantized_gemm": _linear,
    "vllm::rocm_unquantized_gemm_impl": _linear,
}
