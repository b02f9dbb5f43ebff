"""Pooling and resizing: an operation for each tap of each output, inputs and outputs moved once.

Tests: tests/views/trace/roofline/test_formulas.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from haiprof.views.trace.roofline.formulas.call import Call, Cost, Formula, Shape, Tensor, size

KIND: Final = "pooling"


def _cost(flops: int, source: Tensor, *moved: Tensor | None) -> Cost:
    return Cost(KIND, flops, size(*moved), "vector", source.type)


def _pool(ceil: int, dilation: int | None, *, indices: bool) -> Formula:
    """``(self, kernel, stride, padding, …)``; without a stride it is the kernel."""

    def cost(call: Call) -> Cost | None:
        source, kernel = call.tensor(0), call.numbers(1)
        if source is None or kernel is None or call.flag(ceil) is not False:
            return None
        taps = _spread(kernel)
        strides, paddings = _spread(call.numbers(2) or kernel), _spread(call.numbers(3) or (0,))
        dilations = (1, 1) if dilation is None else _spread(call.numbers(dilation) or (1,))
        if len(source.shape) < 3 or not (taps and strides and paddings and dilations):
            return None
        pixels = [
            (n + 2 * p - d * (k - 1) - 1) // max(s, 1) + 1
            for n, k, s, p, d in zip(
                source.shape[-2:], taps, strides, paddings, dilations, strict=True
            )
        ]
        if min(pixels) <= 0:
            return None
        shape = (*source.shape[:-2], *pixels)
        result = Tensor(shape, source.type)
        where = Tensor(shape, "int64") if indices else None
        return _cost(result.elements * math.prod(taps), source, source, result, where)

    return cost


def _spread(numbers: Shape) -> Shape:
    """One number is for both dimensions; nothing if there are more than two."""
    return numbers * 2 if len(numbers) == 1 else numbers if len(numbers) == 2 else ()


def _max_backward(call: Call) -> Cost | None:
    """``max_pool2d_with_indices_backward(grad, self, …, indices)``."""
    grad, source, indices = call.tensor(0), call.tensor(1), call.tensor(7)
    if grad is None or source is None:
        return None
    return _cost(grad.elements, source, grad, indices, source)


def _resized(work: int) -> Formula:
    """``(self, output_size, …)``, with ``work`` operations per output."""

    def cost(call: Call) -> Cost | None:
        source, pixels = call.tensor(0), call.numbers(1)
        if source is None or pixels is None or len(source.shape) < len(pixels) + 1:
            return None
        if min(pixels) <= 0:
            return None
        result = Tensor((*source.shape[: -len(pixels)], *pixels), source.type)
        return _cost(work * result.elements, source, source, result)

    return cost


def _averaged(call: Call) -> Cost | None:
    """``_adaptive_avg_pool2d(self, output_size)``: each input is added once."""
    found, source = _resized(0)(call), call.tensor(0)
    if found is None or source is None:
        return None
    return Cost(KIND, source.elements, found.bytes, "vector", source.type)


FORMULAS: Final[Mapping[str, Formula]] = {
    "aten::max_pool2d_with_indices": _pool(5, 4, indices=True),
    "aten::avg_pool2d": _pool(4, None, indices=False),
    "aten::max_pool2d_with_indices_backward": _max_backward,
    "aten::_adaptive_avg_pool2d": _averaged,
    "aten::upsample_nearest2d": _resized(0),
    "aten::upsample_bilinear2d": _resized(11),
}
