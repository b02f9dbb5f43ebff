"""Which kernels compute on tensor cores (matrix cores), by their names, Volta to Blackwell and AMD.

A name says so only if its author wrote the instruction into it; a kernel with an uninformative name
(most of Triton's) is not counted.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from haiprof.common.short_texts import kept_if_short

#: Names that match one of these run on tensor cores.
KERNELS: tuple[str, ...] = (
    # cuBLAS and cuDNN before Hopper: the shape of the instruction.
    r"[hsicdz]884", r"[hscid]1688(?!\d)", r"[hsci]?16816", r"[sb]16832", r"s161616",
    r"[hidq]mma", r"i8816",
    # cuDNN, convolutions.
    r"dgrad_1x1_stride_2x2", r"first_layer_wgrad_kernel", r"conv1x1", r"conv2d_c1_k1",
    r"direct_group",
    r"xmma_(implicit_gemm|sparse_conv|warp_specialized_implicit_gemm|gemm|sparse_gemm)",
    r"_tensor16x8x\d+",
    # cuBLAS of Hopper and Blackwell.
    r"nvjet_",
    # CUTLASS.
    r"[_\d]tensorop|MmaTensorOp", r"wgmma|gmma", r"utcmma|umma|tcgen05",
    # Attention.
    r"flash_(fwd|bwd|attn)", r"FlashAttn(Fwd|Bwd|MLA)", r"fmha(_|Sm\d)|Fmha(Fwd|Bwd)",
    r"cudnn.*(sdpa|flash).*(fprop|bprop|fwd|bwd)", r"AttentionKernel<.*Sm(75|80|90|100)",
    # TensorRT-LLM's generated ones, DeepGEMM, Marlin.
    r"(bmm|gemm)_\w*t\d+x\d+x\d+u\d", r"deep_gemm::\w*gemm", r"marlin",
    # AMD: Tensile and MIOpen write the instruction's shape or its old name into theirs.
    r"Cijk_.*_MI\d+x\d+x\d+", r"xdlops|_xdl_", r"igemm_(fwd|bwd|wrw)_gtcx", r"mfma|wmma",
)  # fmt: skip

#: Names that match one of these do not, whatever else they contain.
NOT_KERNELS: tuple[str, ...] = (
    # Single precision, multiplied and added by the ordinary units.
    r"ffma|simt",
    # Before and after the multiplications of attention.
    r"(?i)flash_?\w*(combine|dot_do|convert|clear|preprocess|postprocess)",
    r"marlin\w*(repack|permute)",
)


def on_tensor_cores(names: Iterable[str]) -> set[str]:
    """Return the names of kernels that compute on tensor cores."""
    return {name for name in names if _is_on_tensor_cores(name)}


@kept_if_short
def _is_on_tensor_cores(name: str) -> bool:
    does, does_not = _patterns()
    return does.search(name) is not None and not any(pattern.search(name) for pattern in does_not)


@functools.cache
def _patterns() -> tuple[re.Pattern[str], list[re.Pattern[str]]]:
    return re.compile("|".join(KERNELS)), [re.compile(pattern) for pattern in NOT_KERNELS]
