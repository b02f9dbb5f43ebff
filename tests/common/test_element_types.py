"""Element types as profilers name them."""

from __future__ import annotations

import pytest

from haiprof.common.element_types import element_bytes, short


@pytest.mark.parametrize(
    ("name", "known", "size"),
    [
        ("c10::BFloat16", "bf16", 2),
        ("BFloat16", "bf16", 2),
        ("torch.float16", "fp16", 2),
        ("c10::Half", "fp16", 2),
        ("Float", "fp32", 4),
        ("float", "fp32", 4),
        ("double", "fp64", 8),
        ("long int", "int64", 8),
        ("unsigned char", "uint8", 1),
        ("signed char", "int8", 1),
        ("c10::Float8_e4m3fnuz", "fp8", 1),
        ("c10::complex<float>", "complex64", 8),
        ("DT_BF16", "bf16", 2),
        ("bool", "bool", 1),
        ("bf16", "bf16", 2),
        ("Scalar", None, None),
        ("TensorList", None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_a_name_means_one_type(name: object, known: str | None, size: int | None) -> None:
    assert short(name) == known
    assert element_bytes(name) == size
