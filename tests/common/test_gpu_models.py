"""What vendors state about GPUs, and which of them a trace is of."""

from __future__ import annotations

import pytest

from haiprof.common.gpu_models import MODELS, model, peak_bandwidth
from haiprof.runs import Gpu


def gpu(name: str, gigabytes: float | None = None, multiprocessors: int | None = None) -> Gpu:
    memory = None if gigabytes is None else int(gigabytes * 1e9)
    return Gpu("GPU-1", name, 0, "", memory, multiprocessors)


@pytest.mark.parametrize(
    ("of", "giga"),
    [
        (gpu("Tesla V100-SXM2-32GB"), 900),
        (gpu("NVIDIA A100-SXM4-80GB"), 2039),
        (gpu("NVIDIA A100 80GB PCIe"), 1935),
        (gpu("NVIDIA A100-SXM4-40GB", 42.3), 1555),
        (gpu("NVIDIA A100-PG509-200", 42.3), 1555),
        (gpu("NVIDIA H100 80GB HBM3"), 3350),
        (gpu("NVIDIA H100 PCIe"), 2000),
        (gpu("NVIDIA H200"), 4800),
        (gpu("NVIDIA GH200 480GB", 101), 4000),
        (gpu("NVIDIA B200"), 8000),
        (gpu("AMD Instinct MI210"), 1638.4),
        (gpu("AMD Instinct MI300X", multiprocessors=304), 5300),
        (gpu("AMD Instinct MI325X"), 6000),
    ],
)
def test_memory_has_the_bandwidth_that_its_maker_states(of: Gpu, giga: float) -> None:
    assert peak_bandwidth(of) == giga * 1e9


@pytest.mark.parametrize(
    "of",
    [
        # 40 GB and 80 GB differ, and so do the boards of 80 GB.
        gpu("NVIDIA A100-PG510-200", 85),
        gpu("NVIDIA A100-PG509-200"),
        gpu("NVIDIA GH200 144G HBM3e", 151),
        gpu("NVIDIA Tomorrow"),
        gpu(""),
        # A partition of one.
        gpu("AMD Instinct MI300X", multiprocessors=38),
    ],
)
def test_what_is_not_known_is_not_guessed(of: Gpu) -> None:
    assert peak_bandwidth(of) is None


def test_every_model_has_a_source_and_each_name_means_one_architecture() -> None:
    assert all(each.source and each.tera for each in MODELS)
    found, why = model(gpu("AMD Instinct MI300X", multiprocessors=38))
    assert (found, why) == (
        None,
        "this AMD Instinct MI300X has 38 multiprocessors, not 304, so its peak is not known",
    )
