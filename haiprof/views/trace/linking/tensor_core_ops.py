"""Which operators can use tensor cores.

Tests: tests/views/trace/linking/test_tensor_cores.py.
"""

from __future__ import annotations

#: Operators that compute on tensor cores where shapes and types allow.
OPERATORS: frozenset[str] = frozenset(
    {
        # autocast runs these in half precision.
        *(f"aten::conv{kind}" for kind in ("1d", "2d", "3d", "_tbc", "olution")),
        *(f"aten::conv_transpose{size}d" for size in (1, 2, 3)),
        "aten::_convolution",
        "aten::cudnn_convolution",
        "aten::cudnn_convolution_transpose",
        "aten::miopen_convolution",
        *(
            f"aten::{name}"
            for name in ("prelu", "addmm", "addmm_", "addmv", "addr", "matmul", "mm")
        ),
        *(f"aten::{name}" for name in ("mv", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul")),
        "aten::linalg_multi_dot",
        "aten::einsum",
        "aten::_addmm_activation",
        *(f"aten::{name}" for name in ("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell")),
        *(f"aten::{name}" for name in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")),
        # 8 bits and less.
        *(
            f"aten::{name}"
            for name in ("_scaled_mm", "_scaled_grouped_mm", "_grouped_mm", "_int_mm")
        ),
        # Attention.
        "aten::scaled_dot_product_attention",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_backward",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_efficient_attention_backward",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_cudnn_attention_backward",
        "aten::_flash_attention_forward",
        "aten::_flash_attention_backward",
        "aten::_efficient_attention_forward",
        "aten::_efficient_attention_backward",
        # Backward, as each version of torch has named it.
        "aten::convolution_backward",
        "aten::linear_backward",
        *(
            f"aten::cudnn_convolution{kind}backward{part}"
            for kind in ("_", "_transpose_")
            for part in ("", "_weight", "_input")
        ),
        *(
            f"{name}Backward{version}"
            for name in (
                "CudnnConvolution",
                "CudnnConvolutionTranspose",
                "Convolution",
                "Linear",
                "Mm",
                "Bmm",
                "Mv",
                "Addmm",
                "Addmv",
                "Addbmm",
                "Baddbmm",
                "ScaledDotProductFlashAttention",
                "ScaledDotProductEfficientAttention",
                "ScaledDotProductCudnnAttention",
            )
            for version in ("", "0")
        ),
    }
)
