"""Mixtures of experts in one operator: each token's rows pass through the k experts chosen for it.

A feed-forward network with gate takes 2·rows·(2·I·H + H·I) operations for ``rows`` = tokens · k,
hidden size H and intermediate size I (vLLM's ``fused_moe``: ``w1`` is (E, 2·I, H), ``w2`` is (E, H,
I); without gate, ``w1`` is (E, I, H)). Which experts are chosen only values say: at least k, at
most ``rows`` or all of them have their weights read. Weights of 4 bits lie two in a byte, so that
their last dimension is half as long.

Tests: tests/views/trace/roofline/test_formulas.py.
"""

from __future__ import annotations

import re
from typing import Final

from haiprof.views.trace.roofline.formulas.call import Call, Cost, Tensor, size
from haiprof.views.trace.roofline.formulas.gemm import EXPERTS

#: Operators of vLLM, SGLang and AITER begin with (hidden, w1, w2, topk_weights, topk_ids, …).
NAMES: Final = re.compile(r"fused_?(moe|experts)|moe_?fused|ck_moe", re.IGNORECASE)


def cost(call: Call) -> Cost | None:
    """Return the cost; None if the shapes are not those of such an operator."""
    tokens, first, second, chosen = (call.tensor(each) for each in range(4))
    if tokens is None or first is None or second is None or chosen is None:
        return None
    shapes = (tokens.shape, first.shape, second.shape, chosen.shape)
    if [len(shape) for shape in shapes] != [2, 3, 3, 2]:
        return None
    (count, hidden), (experts, wide, hidden_in), (_, hidden_out, inner), (of, k) = shapes
    packed = hidden == 2 * hidden_in and first.type == second.type == "uint8"
    if packed:
        hidden_in, inner = 2 * hidden_in, 2 * inner
    fits = hidden == hidden_in == hidden_out and second.shape[0] == experts and of == count
    if not fits or wide not in (inner, 2 * inner) or not 0 < k <= experts:
        return None
    rows = count * k
    least, most = min(k, experts), min(rows, experts)
    moved = [
        size(
            tokens,
            tokens,  # the result
            Tensor((used, *first.shape[1:]), first.type),
            Tensor((used, *second.shape[1:]), second.type),
            chosen,
        )
        for used in (least, most)
    ]
    return Cost(
        EXPERTS,
        2 * rows * hidden * (wide + inner),
        moved[0],
        "matrix",
        "fp4" if packed else first.type,
        {"experts": experts, "rows": rows, "tokens": count, "chosen": k, "k": hidden, "n": wide},
        most_bytes=moved[1],
    )
