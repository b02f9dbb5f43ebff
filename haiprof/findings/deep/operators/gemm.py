"""Why multiplications of matrices are slow.

Tests: tests/findings/deep/operators/test_problems.py.
"""

from __future__ import annotations

from typing import Final

from haiprof.common.element_types import BYTES
from haiprof.common.numbers import percent
from haiprof.findings.deep.operators.case import Operator, Problem, Rule, by

#: A multiplication is tall and skinny if one side is this many times another.
_SKINNY: Final = 16
#: Bytes that kernels load at a time: rows must be multiples of it.
_ALIGNED: Final = 16
#: The last wave of blocks fills so little of the device that this share of the time is lost.
_TAIL: Final = 0.3


def _shape(each: Operator) -> str:
    s = each.cost.sizes
    batch = f"{s['batch']} times " if s["batch"] > 1 else ""
    return f"{batch}{by(s['m'], s['k'])} by {by(s['k'], s['n'])}"


def _few_tiles(each: Operator) -> Problem | None:
    if not each.slow or not each.few_blocks:
        return None
    return Problem(
        "few_tiles",
        f"the result of multiplying {_shape(each)} is divided into {each.blocks} blocks, too few "
        f"for the {each.multiprocessors} of the device",
        "let several blocks share the sum over K (split-K or stream-K: torch.compile with "
        'mode="max-autotune", or TunableOp), compute several such products in one (bmm, grouped '
        "GEMM), or use smaller tiles",
    )


def _skinny(each: Operator) -> Problem | None:
    s = each.cost.sizes
    if not each.slow or each.bound != "memory":
        return None
    sides = {"M": s["m"], "N": s["n"], "K": s["k"]}
    shortest = min(sides, key=lambda side: sides[side])
    if max(sides.values()) < _SKINNY * sides[shortest]:
        little = "is too little to fill the device"
        moving = f"computes only {each.intensity} FLOP per byte, so that memory bounds it"
        return Problem(
            "small_gemm",
            f"multiplying {_shape(each)} {little if each.negligible else moving}",
            "compute several in one (bmm, grouped GEMM), fuse what follows into the same kernel "
            "(torch.compile), or use CUDA graphs",
        )
    return Problem(
        "tall_skinny_gemm",
        f"multiplying {_shape(each)} is bound by memory, not by computing: {shortest} is only "
        f"{sides[shortest]}",
        f"make {shortest} larger (batch more rows, merge projections that share an input into one "
        "weight), fuse it with its neighbours (torch.compile), or store the larger operand in "
        "fewer bits",
    )


def _alignment(each: Operator) -> Problem | None:
    s, size = each.cost.sizes, _element(each)
    odd = [
        f"{name} = {s[key]}" for name, key in (("N", "n"), ("K", "k")) if s[key] * size % _ALIGNED
    ]
    if not each.slow or not odd:
        return None
    return Problem(
        "misaligned_gemm",
        f"multiplying {_shape(each)} has {' and '.join(odd)}: the fast kernels need multiples of "
        f"{_ALIGNED // size}",
        f"pad to a multiple of {_ALIGNED // size} (better 64): a vocabulary or a hidden size, for "
        "example",
    )


def _element(each: Operator) -> int:
    return BYTES.get(each.cost.type or "", 2)


def _tail(each: Operator) -> Problem | None:
    count, there = each.blocks, each.limits.multiprocessors
    if not each.slow or count is None or not there or each.limits.name is None or count <= there:
        return None
    waves = -(-count // there)
    if 1 - count / (waves * there) < _TAIL:
        return None
    return Problem(
        "wave_quantization",
        f"the {count} blocks of multiplying {_shape(each)} fill the {there} multiprocessors "
        f"{waves} times, the last time for {percent(count % there / there)}",
        "choose a batch or sizes with which blocks are a multiple of the multiprocessors, or "
        'kernels with other tiles (torch.compile with mode="max-autotune", TunableOp)',
    )


def _slow_product(each: Operator) -> Problem | None:
    if not each.slow:
        return None
    return Problem(
        "slow_gemm",
        f"multiplying {_shape(each)} in {each.cost.type} reaches {each.reached}",
        'tune the choice of kernel (torch.compile with mode="max-autotune", TunableOp on AMD), or '
        "try the other layout of the operands (a contiguous or a transposed weight)",
    )


RULES: Final[tuple[Rule, ...]] = (_few_tiles, _skinny, _alignment, _tail, _slow_product)
