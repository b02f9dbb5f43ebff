"""Convolutions, forward and backward.

Each output element is the sum over the filter's taps and the input channels of its group: 2 ·
outputs · taps · channels operations (as torch's ``conv_flop_count``; padding counts as computed).
A transposed convolution does so for each input element. The backward pass is a convolution for each
gradient that is wanted, with as many operations each. For the gradient of the weight torch's
counter leaves out that groups divide the channels; here they do.

Tests: tests/views/trace/roofline/test_formulas.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from haiprof.views.trace.roofline.formulas.call import (
    Call,
    Cost,
    Formula,
    Shape,
    Tensor,
    size,
    total,
)

KIND: Final = "convolution"


class _Places(NamedTuple):
    """Where an operator has its arguments; None: it has none of these."""

    stride: int
    padding: int
    dilation: int | None
    groups: int | None = None
    bias: int | None = 2
    transposed: int | bool = False
    output_padding: int | None = None


def _forward(places: _Places) -> Formula:
    def cost(call: Call) -> Cost | None:
        source, weight = call.tensor(0), call.tensor(1)
        if source is None or weight is None or len(source.shape) != len(weight.shape):
            return None
        dimensions = len(weight.shape) - 2
        swapped = places.transposed
        transposed = swapped if isinstance(swapped, bool) else call.flag(swapped)
        stride = _spread(call.numbers(places.stride), dimensions)
        padding = _spread(call.numbers(places.padding), dimensions)
        dilation: Shape | None = (1,) * dimensions
        if places.dilation is not None:
            dilation = _spread(call.numbers(places.dilation), dimensions)
        if dimensions < 1 or transposed is None or not (stride and padding and dilation):
            return None
        added: Shape = (0,) * dimensions
        if transposed and places.output_padding is not None:
            added = _spread(call.numbers(places.output_padding), dimensions) or added
        group = call.numbers(places.groups) if places.groups is not None else None
        groups = group[0] if group else max(source.shape[1] // max(weight.shape[1], 1), 1)
        pixels = [
            _transposed(n, k, s, p, d, a) if transposed else _plain(n, k, s, p, d)
            for n, k, s, p, d, a in zip(
                source.shape[2:], weight.shape[2:], stride, padding, dilation, added, strict=True
            )
        ]
        if any(n <= 0 for n in pixels):
            return None
        channels = weight.shape[1] * groups if transposed else weight.shape[0]
        result = Tensor((source.shape[0], channels, *pixels), source.type)
        bias = None if places.bias is None else call.tensor(places.bias)
        centre = source if transposed else result
        return Cost(
            KIND,
            _operations(centre.shape, weight.shape),
            size(source, weight, bias, result),
            "matrix",
            source.type,
            {**_sizes(source, weight, result, groups), "dilation": max(dilation)},
        )

    return cost


def _backward(call: Call) -> Cost | None:
    """``(grad_output, input, weight, bias_sizes, …, transposed, _, groups, output_mask)``."""
    grad, source, weight = (call.tensor(each) for each in (0, 1, 2))
    transposed, wanted, group = call.flag(7), call.flags(10), call.numbers(9)
    if grad is None or source is None or weight is None or transposed is None:
        return None
    if not wanted or not group or not len(grad.shape) == len(source.shape) == len(weight.shape):
        return None
    centre = source if transposed else grad
    passes = sum(wanted[:2])
    once = _operations(centre.shape, weight.shape)
    gradients = [
        tensor for tensor, is_wanted in zip((source, weight), wanted, strict=False) if is_wanted
    ]
    # The input is only read for the gradient of the weight, and the other way round.
    read = [tensor for tensor, is_used in zip((weight, source), wanted, strict=False) if is_used]
    return Cost(
        KIND,
        total(passes * once),
        size(grad, *read, *gradients),
        "matrix",
        source.type,
        _sizes(source, weight, grad, group[0]),
    )


def _sizes(source: Tensor, weight: Tensor, result: Tensor, groups: int) -> dict[str, int]:
    return {
        "batch": source.shape[0],
        "channels_in": source.shape[1],
        "channels_out": result.shape[1],
        "groups": groups,
        "taps": math.prod(weight.shape[2:]),
        "pixels_in": math.prod(source.shape[2:]),
        "pixels_out": math.prod(result.shape[2:]),
    }


def _operations(centre: Shape, weight: Shape) -> int:
    """Operations of a convolution: ``centre`` is the output, of a transposed one the input."""
    return 2 * centre[0] * math.prod(centre[2:]) * math.prod(weight)


def _plain(n: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (n + 2 * padding - dilation * (kernel - 1) - 1) // max(stride, 1) + 1


def _transposed(n: int, kernel: int, stride: int, padding: int, dilation: int, added: int) -> int:
    return (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + added + 1


def _spread(numbers: Shape | None, dimensions: int) -> Shape | None:
    """One number is for all dimensions."""
    if numbers is None:
        return None
    if len(numbers) == 1:
        return numbers * dimensions
    return numbers if len(numbers) == dimensions else None


_ATEN: Final = _Places(3, 4, 5, groups=8, transposed=6, output_padding=7)
_CONV: Final = _Places(3, 4, 5, groups=6)
_CONV_TRANSPOSED: Final = _Places(3, 4, 7, groups=6, transposed=True, output_padding=5)
_CUDNN: Final = _Places(3, 2, 4, groups=5, bias=None)
_CUDNN_TRANSPOSED: Final = _Places(4, 2, 5, 6, None, transposed=True, output_padding=3)
_MIOPEN: Final = _Places(4, 3, 5, groups=6)
_MIOPEN_TRANSPOSED: Final = _Places(5, 3, 6, groups=7, transposed=True, output_padding=4)
_SLOW: Final = _Places(4, 5, None, bias=3)
_DEPTHWISE: Final = _Places(4, 5, 6, bias=3)

FORMULAS: Final[Mapping[str, Formula]] = {
    **dict.fromkeys(
        ("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"),
        _forward(_ATEN),
    ),
    **{f"aten::conv{n}d": _forward(_CONV) for n in (1, 2, 3)},
    **{f"aten::conv_transpose{n}d": _forward(_CONV_TRANSPOSED) for n in (1, 2, 3)},
    "aten::cudnn_convolution": _forward(_CUDNN),
    "aten::cudnn_convolution_relu": _forward(_CONV),
    "aten::cudnn_convolution_transpose": _forward(_CUDNN_TRANSPOSED),
    "aten::miopen_convolution": _forward(_MIOPEN),
    "aten::miopen_depthwise_convolution": _forward(_MIOPEN),
    "aten::miopen_convolution_transpose": _forward(_MIOPEN_TRANSPOSED),
    "aten::mkldnn_convolution": _forward(_MIOPEN),
    "aten::_slow_conv2d_forward": _forward(_SLOW),
    "aten::thnn_conv2d": _forward(_SLOW),
    "aten::_conv_depthwise2d": _forward(_DEPTHWISE),
    "aten::conv_depthwise3d": _forward(_DEPTHWISE),
    "aten::convolution_backward": _backward,
}
