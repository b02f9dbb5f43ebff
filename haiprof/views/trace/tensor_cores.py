"""Which kernels compute on tensor cores (matrix cores), by their names, Volta to Blackwell and AMD.

A name says so only where its maker writes the instruction into it; a kernel whose name tells
nothing (most of Triton's) is not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Names that contain one of these run on tensor cores.
KERNELS: tuple[str, ...] = (
    # cuBLAS and cuDNN before Hopper: the shape of the instruction.
    r"[hsci]884", r"[hscid]?1688(?!\d)", r"[hscib]?16816", r"[sb]?16832", r"s161616", r"hmma",
    r"i8816", r"imma", r"dmma", r"bmma_", r"qmma", r"[cdz]884gemm",
    # cuDNN, convolutions.
    r"dgrad_1x1_stride_2x2", r"first_layer_wgrad_kernel", r"conv2d_c1_k1", r"direct_group",
    r"xmma_(implicit_gemm|sparse_conv|warp_specialized_implicit_gemm|gemm|sparse_gemm)",
    # cuBLAS of Hopper and Blackwell.
    r"nvjet_",
    # CUTLASS.
    r"tensorop", r"gmma", r"wgmma", r"utcmma", r"umma", r"tcgen05", r"MmaTensorOp",
    r"_tensor16x8x\d+",
    # Attention.
    r"flash_(fwd|bwd|attn)", r"flash::.*(fwd|bwd)", r"FlashAttn(Fwd|Bwd)",
    r"fmha_(v2|fwd|bwd|cutlass|kernel)",
    r"cudnn.*(sdpa|flash).*(fprop|bprop|fwd|bwd)", r"BatchPrefill|SinglePrefill",
    r"pytorch_flash::", r"AttentionKernel<.*Sm(75|80|90|100)",
    # DeepGEMM, Marlin.
    r"deep_gemm::", r"marlin",
    # AMD: Tensile writes MI and its shape; MFMA and WMMA name the instruction.
    r"Cijk_.*_MI\d+x\d+x\d+", r"mfma", r"wmma",
)  # fmt: skip

#: Names that contain one of these do not, whatever else they say.
NOT_KERNELS: tuple[str, ...] = (
    # Single precision, multiplied and added by the ordinary units.
    r"_ffma_",
    r"ffma",
    r"f32f32_f32f32_f32.*simt",
    r"simt",
)


def on_tensor_cores(names: Iterable[str]) -> set[str]:
    """Return of names of kernels those that compute on tensor cores."""
    does = re.compile("|".join(KERNELS), re.IGNORECASE)
    does_not = re.compile("|".join(NOT_KERNELS), re.IGNORECASE)
    return {name for name in names if does.search(name) and not does_not.search(name)}
