"""Operators that move more than they compute: elementwise, normalisation, reduction, look-up.

Their operations are counted by the usual count of the formula's arithmetic per element, a square
root or an exponential as one; it hardly matters, since memory bounds them on every device. What
matters are the bytes: each input read once, each output written once.

Tests: tests/views/trace/roofline/test_formulas.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from haiprof.common.element_types import BYTES
from haiprof.views.trace.roofline.formulas.call import (
    Call,
    Cost,
    Formula,
    Shape,
    Tensor,
    size,
    total,
)

ELEMENTWISE: Final = "elementwise"
NORMALISATION: Final = "normalisation"
REDUCTION: Final = "reduction"
SOFTMAX: Final = "softmax"
LOOKUP: Final = "embedding"

_FLOATS: Final = ("fp8", "fp16", "bf16", "fp32", "fp64")


def _cost(kind: str, flops: int, moved: int | None, kind_of: Tensor, **sizes: int) -> Cost:
    return Cost(kind, flops, moved, "vector", kind_of.type, sizes)


# -- elementwise ---------------------------------------------------------------------------------


def broadcast(shapes: Iterable[Shape]) -> Shape | None:
    """Return the shape of the result of an elementwise operator; None if there is none."""
    found: list[int] = []
    for shape in shapes:
        found = [1] * (len(shape) - len(found)) + found
        for at, n in enumerate(reversed(shape), 1):
            if found[-at] == 1:
                found[-at] = n
            elif n not in (1, found[-at]):
                return None
    return tuple(found)


def promoted(tensors: Iterable[Tensor]) -> str | None:
    """Return the type of the result, as torch promotes; None if a type is not known.

    Tensors without dimensions only count where there are no others.
    """
    found = list(tensors)
    some = [each for each in found if each.shape] or found
    types = {each.type for each in some}
    if None in types or not types:
        return None
    if len(types) == 1:
        return types.pop()
    known = [each for each in types if each is not None]
    if {"fp16", "bf16"} <= set(known):
        known.append("fp32")

    def rank(name: str) -> tuple[int, int]:
        category = 0 if name == "bool" else 2 if name in _FLOATS else 3 if "complex" in name else 1
        return category, BYTES[name]

    return max(known, key=rank)


def _elementwise(operands: int, work: int = 1, out: str | None = None) -> Formula:
    """Of tensors ``0 … operands - 1``: ``work`` operations per element of the result."""

    def cost(call: Call) -> Cost | None:
        found = [call.tensor(each) for each in range(operands)]
        read = [each for each in found if each is not None]
        # What is not a tensor is a number.
        if not read or found[0] is None:
            return None
        shape = broadcast(each.shape for each in read)
        if shape is None:
            return None
        in_place = call.operator.endswith("_")
        result = found[0] if in_place else Tensor(shape, out or promoted(read))
        return _cost(ELEMENTWISE, work * result.elements, size(*read, result), result)

    return cost


def _copy(call: Call) -> Cost | None:
    """``copy_(self, source)``."""
    to, source = call.tensor(0), call.tensor(1)
    if to is None or source is None:
        return None
    return _cost(ELEMENTWISE, 0, size(to, source), to)


def _fill(call: Call) -> Cost | None:
    to = call.tensor(0)
    return None if to is None else _cost(ELEMENTWISE, 0, size(to), to)


def _where(call: Call) -> Cost | None:
    condition, *chosen = (call.tensor(each) for each in range(3))
    some = [each for each in chosen if each is not None]
    if condition is None or not some:
        return None
    shape = broadcast(each.shape for each in (condition, *some))
    if shape is None:
        return None
    result = Tensor(shape, promoted(some))
    return _cost(ELEMENTWISE, 0, size(condition, *some, result), result)


def _dropout(call: Call) -> Cost | None:
    """``native_dropout(input, p, train)``: the result and a mask."""
    read = call.tensor(0)
    if read is None:
        return None
    return _cost(ELEMENTWISE, 2 * read.elements, size(read, read, Tensor(read.shape, "bool")), read)


def _dropout_backward(call: Call) -> Cost | None:
    grad, mask = call.tensor(0), call.tensor(1)
    if grad is None:
        return None
    return _cost(ELEMENTWISE, 2 * grad.elements, size(grad, mask, grad), grad)


def _cat(call: Call) -> Cost | None:
    parts = call.tensors(0)
    if parts is None:
        return None
    return _cost(ELEMENTWISE, 0, size(*parts, *parts), parts[0])


def _lists(written: int, lists: int, work: int) -> Formula:
    """Of lists of tensors ``0 … lists - 1``; the first ``written`` are results (or are new)."""

    def cost(call: Call) -> Cost | None:
        first = call.tensors(0)
        if first is None:
            return None
        read = [each for at in range(lists) for each in call.tensors(at) or ()]
        result = [each for at in range(written) for each in call.tensors(at) or ()]
        flops = work * sum(each.elements for each in first)
        return _cost(ELEMENTWISE, flops, size(*read, *result), first[0])

    return cost


def _fused(call: Call, *, read: int, written: tuple[int, ...], work: int) -> Cost | None:
    """An optimizer's step for lists of tensors ``0 … read - 1``."""
    first = call.tensors(0)
    if first is None:
        return None
    lists = {at: call.tensors(at) or [] for at in range(read)}
    moved = [*range(read), *(at for at in written if lists.get(at))]
    flops = work * sum(each.elements for each in first)
    return _cost(
        ELEMENTWISE, flops, size(*(each for at in moved for each in lists.get(at, ()))), first[0]
    )


_UNARY: Final = (
    "abs", "neg", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "tan", "erf", "floor", "ceil", "round", "trunc", "sign", "relu", "clamp",
    "clamp_min", "clamp_max", "bitwise_not", "pow", "square", "nan_to_num", "tril", "triu",
)  # fmt: skip
#: With what one element takes: x·sigmoid(x) is a negation, an exponential, an addition, a division
#: and a multiplication.
_ACTIVATIONS: Final = {
    "sigmoid": 4, "silu": 5, "tanh": 1, "gelu": 8, "hardtanh": 2, "hardswish": 4, "hardsigmoid": 3,
    "leaky_relu": 2, "elu": 4, "softplus": 4, "mish": 6,
}  # fmt: skip
_BINARY: Final = (
    "add", "sub", "rsub", "mul", "div", "floor_divide", "fmod", "remainder", "maximum", "minimum",
    "fmax", "fmin", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor",
)  # fmt: skip
_COMPARING: Final = (
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
)  # fmt: skip
_OF_GRADIENT: Final = {
    "threshold_backward": 1, "sigmoid_backward": 3, "tanh_backward": 3, "gelu_backward": 12,
    "silu_backward": 8, "hardtanh_backward": 2, "hardswish_backward": 5, "leaky_relu_backward": 2,
    "elu_backward": 4, "softplus_backward": 5, "mish_backward": 10, "hardsigmoid_backward": 2,
}  # fmt: skip


def _and_in_place(names: Iterable[str], formula: Formula) -> dict[str, Formula]:
    return {f"aten::{name}{end}": formula for name in names for end in ("", "_")}


_FOREACH: Final = {
    **{
        f"_foreach_{name}": (1, 1)
        for name in ("neg", "sqrt", "rsqrt", "reciprocal", "abs", "exp", "pow")
    },
    **{f"_foreach_{name}": (2, 1) for name in ("add", "sub", "mul", "div", "maximum", "minimum")},
    "_foreach_addcmul": (3, 3),
    "_foreach_addcdiv": (3, 3),
    "_foreach_lerp": (2, 3),
}


# -- normalisation -------------------------------------------------------------------------------


def _norm(work: int, *parameters: int, source: int = 0, kind: str = NORMALISATION) -> Formula:
    """A result like the input; ``parameters`` are read, one operation each."""

    def cost(call: Call) -> Cost | None:
        read = call.tensor(source)
        if read is None:
            return None
        further = [call.tensor(each) for each in parameters]
        count = work + sum(each is not None for each in further)
        return _cost(
            kind, count * read.elements, size(read, read, *further), read,
            rows=math.prod(read.shape[:-1]), columns=read.shape[-1] if read.shape else 1,
        )  # fmt: skip

    return cost


def _norm_backward(work: int, *parameters: int, grad: int = 0, source: int = 1) -> Formula:
    """Reads the gradient and the input, writes the input's gradient and those of parameters."""

    def cost(call: Call) -> Cost | None:
        given, read = call.tensor(grad), call.tensor(source)
        if given is None or read is None:
            return None
        further = [call.tensor(each) for each in parameters]
        return _cost(
            NORMALISATION, work * read.elements, size(given, read, read, *further, *further), read,
            rows=math.prod(read.shape[:-1]), columns=read.shape[-1] if read.shape else 1,
        )  # fmt: skip

    return cost


def _softmax_backward(call: Call) -> Cost | None:
    """``_softmax_backward_data(grad, output, …)``."""
    grad, output = call.tensor(0), call.tensor(1)
    if grad is None or output is None:
        return None
    return _cost(SOFTMAX, 4 * grad.elements, size(grad, output, grad), grad)


def _add_and_norm(call: Call) -> Cost | None:
    """``fused_add_rms_norm(input, residual, weight, epsilon)``, both in place."""
    read, residual, weight = (call.tensor(each) for each in range(3))
    if read is None or residual is None:
        return None
    moved = size(read, residual, weight, read, residual)
    return _cost(NORMALISATION, 5 * read.elements, moved, read)


# -- reduction -----------------------------------------------------------------------------------


def _reduction(dims: int, work: int = 1, out: str | None = None, alone: int = 2) -> Formula:
    """Of all elements, or along the dimensions that input ``dims`` names.

    With at most ``alone`` inputs it has no dimensions to name.
    """

    def cost(call: Call) -> Cost | None:
        read = call.tensor(0)
        if read is None:
            return None
        shape = read.shape
        along: Shape | None = tuple(range(len(shape)))
        if len(call.shapes) > alone and call.text(dims) not in ("", "[]", "()"):
            along = call.numbers(dims)
        moved = None
        if along is not None and all(-len(shape) <= each < len(shape) for each in along):
            gone = {each % len(shape) for each in along} if shape else set()
            kept = tuple(n for at, n in enumerate(shape) if at not in gone)
            moved = size(read, Tensor(kept, out or read.type))
        return _cost(REDUCTION, work * read.elements, moved, read)

    return cost


_REDUCTIONS: Final = {
    **dict.fromkeys(("aten::sum", "aten::mean", "aten::prod"), _reduction(1)),
    **{
        f"aten::{name}": _reduction(1, alone=1)
        for name in ("amax", "amin", "max", "min", "any", "all")
    },
    **{f"aten::{name}": _reduction(1, out="int64", alone=1) for name in ("argmax", "argmin")},
    **{f"aten::{name}": _reduction(1, 4) for name in ("var", "std", "var_mean", "std_mean")},
    **dict.fromkeys(("aten::linalg_vector_norm", "aten::norm"), _reduction(2, 2)),
    "aten::logsumexp": _reduction(1, 3, alone=1),
}


# -- look-up -------------------------------------------------------------------------------------


def _embedding(call: Call) -> Cost | None:
    """``embedding(weight, indices, …)``: a row for each index, of the table at most once."""
    table, indices = call.tensor(0), call.tensor(1)
    if table is None or indices is None or len(table.shape) != 2:
        return None
    rows, width = table.shape
    found = Tensor((*indices.shape, width), table.type)
    read = Tensor((min(rows, indices.elements), width), table.type)
    return _cost(LOOKUP, 0, size(indices, read, found), table, rows=rows, width=width)


def _embedding_backward(call: Call) -> Cost | None:
    """``embedding_dense_backward(grad, indices, rows, …)``: adds each to its row of a new table."""
    grad, indices, rows = call.tensor(0), call.tensor(1), call.numbers(2)
    if grad is None or indices is None or not grad.shape:
        return None
    width = grad.shape[-1]
    table = None if rows is None else Tensor((rows[0], width), grad.type)
    moved = None if table is None else size(grad, indices, table)
    return _cost(LOOKUP, grad.elements, moved, grad, width=width)


def _index_select(call: Call) -> Cost | None:
    """``index_select(self, dim, index)``."""
    source, dim, index = call.tensor(0), call.numbers(1), call.tensor(2)
    if source is None or dim is None or index is None:
        return None
    at = dim[0]
    if not -len(source.shape) <= at < len(source.shape):
        return None
    shape = list(source.shape)
    shape[at] = index.elements
    result = Tensor(tuple(shape), source.type)
    shape[at] = min(index.elements, source.shape[at])
    return _cost(LOOKUP, 0, size(Tensor(tuple(shape), source.type), index, result), source)


def _gather(call: Call) -> Cost | None:
    """``gather(self, dim, index)``."""
    source, index = call.tensor(0), call.tensor(2)
    if source is None or index is None:
        return None
    result = Tensor(index.shape, source.type)
    read = min(source.elements, index.elements)
    moved = total(size(index, result, Tensor((read,), source.type)))
    return _cost(LOOKUP, 0, moved, source)


def _add_at(call: Call) -> Cost | None:
    """Add ``source`` to the places of the first input that ``index`` names, each at most once."""
    to, index, source = call.tensor(0), call.tensor(2), call.tensor(3)
    if to is None or index is None or source is None:
        return None
    touched = Tensor((min(to.elements, source.elements),), to.type)
    return _cost(LOOKUP, source.elements, size(index, source, touched, touched), to)


FORMULAS: Final[Mapping[str, Formula]] = {
    **_and_in_place(_UNARY, _elementwise(1)),
    **{
        name: formula
        for activation, work in _ACTIVATIONS.items()
        for name, formula in _and_in_place((activation,), _elementwise(1, work)).items()
    },
    **_and_in_place(_BINARY, _elementwise(2)),
    **_and_in_place(_COMPARING, _elementwise(2, out="bool")),
    **_and_in_place(("logical_not",), _elementwise(1, out="bool")),
    **_and_in_place(("masked_fill",), _elementwise(2, 0)),
    **_and_in_place(("lerp", "addcmul", "addcdiv"), _elementwise(3, 3)),
    **{f"aten::{name}": _elementwise(2, work) for name, work in _OF_GRADIENT.items()},
    "aten::where": _where,
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::native_dropout": _dropout,
    "aten::native_dropout_backward": _dropout_backward,
    "aten::cat": _cat,
    **{
        f"aten::{name}{end}": _lists(1, lists, work)
        for name, (lists, work) in _FOREACH.items()
        for end in ("", "_")
    },
    # (parameters, gradients, averages, squared averages, …); 15 operations as in Kingma and Ba.
    **dict.fromkeys(
        ("aten::_fused_adam_", "aten::_fused_adamw_"),
        lambda call: _fused(call, read=4, written=(0, 2, 3), work=15),
    ),
    "aten::_fused_sgd_": lambda call: _fused(call, read=3, written=(0, 2), work=4),
    # Mean, squared deviations and scaling: one, three and two operations per element.
    **dict.fromkeys(("aten::native_layer_norm", "aten::layer_norm"), _norm(6, 2, 3)),
    "aten::native_group_norm": _norm(6, 1, 2),
    "aten::group_norm": _norm(6, 2, 3),
    **dict.fromkeys(
        (
            "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
            "aten::batch_norm", "aten::_batch_norm_with_update", "aten::instance_norm",
        ),
        _norm(6, 1, 2),
    ),
    **dict.fromkeys(("aten::rms_norm", "aten::_fused_rms_norm"), _norm(3, 2)),
    "_C::rms_norm": _norm(3, 2, source=1),
    "vllm::rocm_aiter_rms_norm": _norm(3, 1),
    "_C::fused_add_rms_norm": _add_and_norm,
    # The gradient of the input takes as much again as the forward pass, those of the weight and
    # the bias two and one operations more.
    "aten::native_layer_norm_backward": _norm_backward(11, 5, 6),
    "aten::native_group_norm_backward": _norm_backward(11, 4),
    "aten::native_batch_norm_backward": _norm_backward(11, 2),
    **dict.fromkeys(
        ("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward"),
        _norm_backward(11, 2, grad=1, source=0),
    ),
    "aten::_fused_rms_norm_backward": _norm_backward(8, 4),
    # Maximum, difference, exponential, sum and division.
    **dict.fromkeys(
        ("aten::_softmax", "aten::_log_softmax", "aten::softmax", "aten::log_softmax"),
        _norm(5, kind=SOFTMAX),
    ),
    **dict.fromkeys(
        ("aten::_softmax_backward_data", "aten::_log_softmax_backward_data"), _softmax_backward
    ),
    **_REDUCTIONS,
    "aten::cumsum": _elementwise(1),
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    # (self, dim, index, source, …): rows of the result are read and written where others are added.
    **_and_in_place(("scatter_add", "index_add"), _add_at),
}  # fmt: skip
#: Of these, inputs that are not tensors matter, too.
OF_VALUES: Final = frozenset({*_REDUCTIONS, "aten::embedding_dense_backward", "aten::index_select"})
