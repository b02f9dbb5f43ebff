"""Attention in one kernel, forward and backward.

Forward, the products QK^T and PV take 2·S_q·S_k·(D + D_v) operations for each head of a sequence;
backward, QK^T is computed again and four more products follow: 2·S_q·S_k·(3·D + 2·D_v) (Dao,
FlashAttention-2, 2023, algorithms 1 and 2; torch's ``sdpa_flop_count`` and
``sdpa_backward_flop_count``). With a causal mask only the pairs below the diagonal are needed,
S·(S + 1)/2 of S²; torch's counter takes all. The scores never leave the chip, so the least that is
moved are Q, K, V and the result, and for the backward pass their gradients.

If sequences of different length are packed, only values say their lengths, so operations are not
known, unless there is one sequence.

Tests: tests/views/trace/roofline/test_formulas.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from haiprof.views.trace.roofline.formulas.call import Call, Cost, Formula, Tensor, size, total

KIND: Final = "attention"


class _Places(NamedTuple):
    """Where an operator has its arguments.

    ``heads_first``: tensors are (batch, heads, sequence, head dimension), not (batch, sequence,
    heads, head dimension). ``causal`` is the flag, or the number of a kind of mask.
    """

    query: int = 0
    heads_first: bool = True
    causal: int = 0
    bias: int | None = None
    packed: int | None = None
    grad: int | None = None
    out: int | None = None
    mask_number: bool = False
    window: int | None = None
    #: The diagonal of a causal mask ends at the last key, not where it began: at the first.
    to_last_key: bool = False


def _attention(places: _Places) -> Formula:
    def cost(call: Call) -> Cost | None:
        tensors = [call.tensor(places.query + each) for each in range(3)]
        packed = places.packed is not None and call.given(places.packed)
        query, key, value = tensors
        laid_out = [_laid_out(tensor, places.heads_first, packed) for tensor in tensors]
        known = [each for each in laid_out if each is not None]
        if query is None or len(known) < len(laid_out):
            return None
        (batch, heads, queries, depth), (_, heads_kv, keys, _), (_, _, _, depth_v) = known
        result = Tensor((batch, heads, queries, depth_v), query.type)
        sequences = batch
        if packed and places.packed is not None:
            offsets = call.tensor(places.packed)
            sequences = offsets.elements - 1 if offsets is not None else 0
        backward = places.grad is not None
        pairs = _pairs(call, places, queries, keys) if sequences == batch else None
        depths = 3 * depth + 2 * depth_v if backward else depth + depth_v
        moved = [query, key, value, result]
        if backward:
            moved = [*moved, *moved]  # the gradient of each
        elif places.bias is not None:
            moved.append(call.tensor(places.bias))
        return Cost(
            KIND,
            None if pairs is None else total(2 * batch * heads * pairs * depths),
            size(*moved),
            "matrix",
            query.type,
            {
                "batch": sequences,
                "heads": heads,
                "heads_kv": heads_kv,
                "queries": queries,
                "keys": keys,
                "depth": depth,
                "backward": int(backward),
                "packed": int(packed),
            },
        )

    return cost


def _laid_out(
    tensor: Tensor | None, heads_first: bool, packed: bool
) -> tuple[int, int, int, int] | None:
    """Batch, heads, sequence and head dimension."""
    if tensor is None:
        return None
    shape = tensor.shape
    if len(shape) == 3 and packed:
        return 1, shape[1], shape[0], shape[2]
    if len(shape) == 3 and heads_first:
        return shape[0], 1, shape[1], shape[2]
    if len(shape) != 4:
        return None
    if heads_first:
        return shape[0], shape[1], shape[2], shape[3]
    return shape[0], shape[2], shape[1], shape[3]


def _pairs(call: Call, places: _Places, queries: int, keys: int) -> int | None:
    """How many pairs of a query and a key count; None if the trace does not say."""
    if places.mask_number:
        number = call.numbers(places.causal)
        if number is None or number[0] not in (0, 1, 2):
            return None
        causal, to_last = number[0] > 0, number[0] == 2
    else:
        found = call.flag(places.causal)
        if found is None:
            return None
        causal, to_last = found, places.to_last_key
    if places.window is not None:
        window = call.numbers(places.window)
        if window is not None and window[0] >= 0:
            return None
    if not causal:
        return queries * keys
    # Query i sees keys 0 … i + shift.
    shift = keys - queries if to_last else 0
    first, last = max(0, -shift), min(queries, keys - shift)
    below = sum((1 + shift + first, shift + last)) * max(last - first, 0) // 2
    return below + max(queries - max(last, first), 0) * keys


_SDPA: Final = _Places(causal=5, bias=3)
_FLASH: Final = _Places(causal=4)
_EFFICIENT: Final = _Places(causal=6, bias=3)
_FLASH_ATTN: Final = _Places(causal=5, heads_first=False, window=6, to_last_key=True)
_FLASH_ATTN_BACKWARD: Final = _Places(
    query=1, causal=11, heads_first=False, grad=0, window=12, to_last_key=True
)

FORMULAS: Final[Mapping[str, Formula]] = {
    "aten::scaled_dot_product_attention": _attention(_SDPA),
    "aten::_scaled_dot_product_flash_attention": _attention(_FLASH),
    "aten::_scaled_dot_product_efficient_attention": _attention(_EFFICIENT),
    "aten::_scaled_dot_product_cudnn_attention": _attention(_EFFICIENT),
    "aten::_flash_attention_forward": _attention(_Places(causal=8, heads_first=False, packed=3)),
    "aten::_efficient_attention_forward": _attention(
        _Places(causal=9, heads_first=False, packed=4, bias=3, mask_number=True)
    ),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(
        _Places(query=1, causal=11, grad=0, packed=6)
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(
        _Places(query=1, causal=11, grad=0)
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(
        _Places(query=1, causal=14, grad=0, packed=9)
    ),
    "aten::_flash_attention_backward": _attention(
        _Places(query=1, causal=11, heads_first=False, grad=0, packed=6)
    ),
    "aten::_efficient_attention_backward": _attention(
        _Places(query=1, causal=14, heads_first=False, grad=0, packed=6, mask_number=True)
    ),
    "flash_attn::_flash_attn_forward": _attention(_FLASH_ATTN),
    "flash_attn::_flash_attn_backward": _attention(_FLASH_ATTN_BACKWARD),
    "flash_attn::_flash_attn_varlen_forward": _attention(
        _FLASH_ATTN._replace(packed=3, causal=9, window=10)
    ),
    "aiter::_flash_attn_forward": _attention(_FLASH_ATTN),
    "aiter::mha_fwd": _attention(_FLASH_ATTN),
    "aiter::fmha_v3_fwd": _attention(_FLASH_ATTN),
    "aiter::mha_bwd": _attention(_FLASH_ATTN_BACKWARD._replace(causal=8, window=9)),
    "aiter::fmha_v3_bwd": _attention(_FLASH_ATTN_BACKWARD._replace(causal=8, window=9)),
}
