"""Peak FLOP/s of GPUs, and what is not guessed."""

from __future__ import annotations

import pytest

from haiprof.common.peak_flops import mixed_peak, peak, spelled, total_peak
from haiprof.runs import Gpu


def gpu(name: str, multiprocessors: int | None = None, uuid: str = "GPU-1") -> Gpu:
    return Gpu(uuid, name, 0, "", None, multiprocessors)


@pytest.mark.parametrize(
    ("name", "multiprocessors", "dtype", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", 108, "bf16", 312),
        ("NVIDIA A100 80GB PCIe", 108, "tf32", 156),
        ("NVIDIA H100 80GB HBM3", 132, "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", None, "fp8", 1978.9),
        ("NVIDIA H100 PCIe", 114, "bf16", 756),
        ("NVIDIA H100 NVL", 132, "bf16", 835.5),
        ("NVIDIA H800", 132, "bf16", 989.4),
        ("NVIDIA H200", 132, "bf16", 989.4),
        ("NVIDIA GH200 480GB", 132, "bf16", 989.4),
        ("NVIDIA H20", 78, "bf16", 148),
        ("NVIDIA B200", 148, "bf16", 2250),
        ("NVIDIA GB200", 152, "bf16", 2500),
        ("NVIDIA L40S", 142, "bf16", 362.05),
        ("NVIDIA L40", 142, "bf16", 181.05),
        ("Tesla V100-SXM2-32GB", 80, "fp16", 125),
        ("NVIDIA RTX A6000", 84, "bf16", 154.8),
    ],
)
def test_a_product_has_the_peak_that_its_maker_names(
    name: str, multiprocessors: int | None, dtype: str, tera: float
) -> None:
    assert peak(gpu(name, multiprocessors), dtype) == (tera * 1e12, "")


@pytest.mark.parametrize(
    ("unknown", "dtype", "why"),
    [
        (gpu("NVIDIA Tomorrow"), "bf16", "the peak of NVIDIA Tomorrow is not known"),
        (gpu("NVIDIA A10G", 80), "bf16", "the peak of NVIDIA A10G is not known"),
        (gpu("NVIDIA GeForce RTX 4090 D", 114), "bf16", "4090 D is not known"),
        (gpu("NVIDIA A100-SXM-64GB", 124), "bf16", "has 124 multiprocessors, not 108"),
        (gpu("NVIDIA A100-SXM4-80GB", 108), "fp8", "A100-SXM4-80GB for fp8 is not known"),
        (gpu("Tesla V100-SXM2-32GB", 80), "bf16", "for bf16 is not known"),
        (gpu("NVIDIA H100 80GB HBM3", 16, "MIG-7"), "bf16", "is used in part"),
        (gpu("NVIDIA H200 NVL", 132), "bf16", "H200 NVL is not known"),
        (gpu("NVIDIA H800 PCIe", 114), "bf16", "H800 PCIe is not known"),
        (gpu("NVIDIA H800", 132), "fp64", "H800 for fp64 is not known"),
        (gpu(""), "bf16", "a GPU without a name"),
    ],
)
def test_what_is_not_known_is_not_guessed(unknown: Gpu, dtype: str, why: str) -> None:
    found, reason = peak(unknown, dtype)
    assert found is None
    assert why in reason
    assert reason.endswith("give the option peak_flops")


def test_of_a_mixture_the_times_add_up() -> None:
    h100 = gpu("NVIDIA H100 80GB HBM3", 132)
    mixed, _ = mixed_peak(h100, {"fp8": 1978.9, "bfloat16": 989.4, "fp32": 0})
    assert mixed == pytest.approx((1978.9 + 989.4) / 2 * 1e12)
    assert mixed_peak(h100, {"bf16": 1.0, "int4": 1.0})[0] is None


def test_a_type_is_known_by_all_its_names() -> None:
    names = ("torch.bfloat16", "BF16", "float16", "torch.float8_e4m3fn", "float", "int8")
    assert [spelled(name) for name in names] == ["bf16", "bf16", "fp16", "fp8", "fp32", "int8"]


def test_the_peaks_of_all_gpus_add_up() -> None:
    h100, t4 = gpu("NVIDIA H100 80GB HBM3", 132), gpu("Tesla T4", 40)
    assert total_peak([h100, h100], {"bf16": 1.0}, None) == (2 * 989.4e12, "")
    assert total_peak([h100, t4], {"fp16": 3.0}, 0.0)[0] == pytest.approx((989.4 + 65) * 1e12)
    assert total_peak([h100, h100], {}, 5e12) == (1e13, ""), "what is given counts"
    assert total_peak([], {}, 5e12) == (5e12, "")


def test_a_total_that_is_not_known_has_a_reason() -> None:
    h100, t4 = gpu("NVIDIA H100 80GB HBM3", 132), gpu("Tesla T4", 40)
    none, why = total_peak([h100, t4], {"bf16": 1.0}, None)
    assert none is None
    assert "T4 for bf16 is not known" in why
    assert "no GPU was used" in total_peak([], {"bf16": 1.0}, None)[1]
    assert "haiprof.model(dtype=" in total_peak([h100], {}, None)[1]
