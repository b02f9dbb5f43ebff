"""Why attention is slow.

Tests: tests/findings/deep/operators/test_problems.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from haiprof.findings.deep.operators.case import UNIT_ROWS, Operator, Problem, Rule, by
from haiprof.views.trace.roofline.formulas.call import Shape
from haiprof.views.trace.roofline.operators import call_of

#: With fewer keys, scores are no larger than the queries and keys themselves.
_KEYS: Final = 128


def _decoding(each: Operator) -> Problem | None:
    s = each.cost.sizes
    if not each.slow or s["packed"] or s["queries"] >= UNIT_ROWS or s["keys"] <= s["queries"]:
        return None
    return Problem(
        "decoding_attention",
        f"attention of {_queries(s)} to {s['keys']} keys reads them for hardly any "
        "computing, and reaches a small part of the memory's bandwidth",
        "divide the keys among blocks (flash decoding), decode larger batches, share keys and "
        "values among heads (GQA), or store them in fewer bits",
    )


def _short_sequences(each: Operator) -> Problem | None:
    s = each.cost.sizes
    if not each.slow or each.bound != "memory" or s["packed"]:
        return None
    return Problem(
        "short_sequences",
        f"attention over sequences of {s['queries']} computes {each.intensity} FLOP per byte: too "
        "short for one to pay for moving the other",
        "pack several sequences into one call (varlen, nested tensors, FlexAttention with document "
        "masks), use longer sequences or larger batches, or fuse it with torch.compile or CUDA "
        "graphs",
    )


def _slow_attention(each: Operator) -> Problem | None:
    if not each.slow:
        return None
    s = each.cost.sizes
    return Problem(
        "slow_attention",
        f"attention of {_queries(s)} to {s['keys']} keys, {s['heads']} heads of "
        f"{s['depth']}, reaches {each.reached}",
        "use a faster backend: torch.nn.attention.sdpa_kernel (cuDNN or FlashAttention on "
        "NVIDIA), FlashAttention-3 on Hopper, CK or AITER on AMD; head dimensions of 64 or 128",
    )


def _queries(sizes: Mapping[str, int]) -> str:
    return "one query" if sizes["queries"] == 1 else f"{sizes['queries']} queries"


def unfused(every: Sequence[Operator]) -> list[list[tuple[Operator, Problem]]]:
    """Return groups of operators that are attention in separate kernels.

    A softmax over scores of S_q by S_k for each head, a multiplication that makes these scores and
    one that uses them, and what else is done to them one by one.
    """
    groups = []
    softmaxes = [each for each in every if each.cost.kind == "softmax"]
    for shape in dict.fromkeys(_first_shape(each) for each in softmaxes):
        if len(shape) < 3:
            continue
        *heads, queries, keys = shape
        scores = {"batch": math.prod(heads), "m": queries}
        if queries < UNIT_ROWS or keys < _KEYS:
            continue
        products = [each for each in every if each.cost.kind == "gemm"]
        made = [each for each in products if _has(each, {**scores, "n": keys})]
        used = [each for each in products if _has(each, {**scores, "k": keys})]
        if not made or not used:
            continue
        between = [
            each
            for each in every
            if each.cost.kind in ("softmax", "elementwise") and _first_shape(each) == shape
        ]
        words = (
            "unfused_attention",
            f"attention writes and reads its scores, {by(*shape)}, one operator after another",
            "use torch.nn.functional.scaled_dot_product_attention (in transformers "
            'attn_implementation="sdpa" or "flash_attention_2"), or FlexAttention: scores then '
            "stay on the chip",
        )
        groups.append(
            [
                *((each, Problem(*words, int(each.row["device_time"]))) for each in between),
                *(
                    (each, Problem(*words, each.saving_if_amortised))
                    for each in {id(each): each for each in (*made, *used)}.values()
                ),
            ]
        )
    return groups


def _first_shape(each: Operator) -> Shape:
    found = call_of(each.row).tensor(0)
    return () if found is None else found.shape


def _has(each: Operator, sizes: dict[str, int]) -> bool:
    return all(each.cost.sizes.get(name) == value for name, value in sizes.items())


RULES: Final[tuple[Rule, ...]] = (_decoding, _short_sequences, _slow_attention)
