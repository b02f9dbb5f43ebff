"""How efficient an operator was at most, with and without a known device."""

from __future__ import annotations

import pytest

from haiprof.runs import Gpu
from haiprof.views.trace.roofline.formulas.call import Cost
from haiprof.views.trace.roofline.limits import Limits

MI300X = Gpu("", "AMD Instinct MI300X", 0, "", None, 304)
#: Ten seconds of MI300X's half precision, and a hundredth of that of its memory.
MUCH = Cost("gemm", int(13_074e12), int(530e9), "matrix", "bf16")


def test_a_known_device_has_one_roofline() -> None:
    limits = Limits.of([MI300X], 0, ["whatever"])
    assert limits.name == "AMD Instinct MI300X"
    assert limits.multiprocessors == 304
    assert limits.bound(MUCH, tensor_cores=True) == "compute"
    assert limits.efficiency(MUCH, 20e9, tensor_cores=True) == pytest.approx(0.5)
    assert limits.saving(MUCH, 20e9, tensor_cores=True) == pytest.approx(10e9)


def test_otherwise_the_slowest_and_the_fastest_that_it_can_be_bound_it() -> None:
    limits = Limits.of([], 0, ["Cijk_Ailk_Bljk_BBS_BH_MT16x16x16_ISA942_"])
    assert limits.name is None
    # MI300A has the fewest multiprocessors and the least FLOP/s.
    assert limits.multiprocessors == 228
    assert limits.efficiency(MUCH, 20e9, tensor_cores=True) == pytest.approx(
        13_074 / 980.6 / 20, rel=1e-6
    )
    assert limits.saving(MUCH, 20e9, tensor_cores=True) == pytest.approx(10e9)
    assert limits.bound(MUCH, tensor_cores=True) == "compute"
    # Computing bounds it on some of all GPUs, memory on others.
    middle = Cost("gemm", int(100e12), int(1e12), "matrix", "fp16")
    anything = Limits.of([], 0, [])
    assert anything.bound(middle, tensor_cores=True) is None


def test_a_device_that_is_not_known_is_no_other() -> None:
    limits = Limits.of([Gpu("", "NVIDIA Tomorrow", 0, "", None)], 0, ["nvjet_hsh_128x256_64x4"])
    assert limits.rooflines == ()
    assert limits.efficiency(MUCH, 20e9, tensor_cores=True) is None
    assert limits.bound(MUCH, tensor_cores=True) is None
    assert limits.multiprocessors is None


def test_what_may_have_been_read_makes_the_most_of_it() -> None:
    experts = Cost("experts", 0, 53 * 10**8, "matrix", "bf16", most_bytes=53 * 10**9)
    limits = Limits.of([MI300X], 0, [])
    assert limits.efficiency(experts, 20e6, tensor_cores=True) == pytest.approx(0.5)
    assert limits.saving(experts, 20e6, tensor_cores=True) == pytest.approx(19e6)


def test_no_call_ends_before_the_shortest_kernel() -> None:
    little = Cost("elementwise", 1, 8, "vector", "fp32")
    limits = Limits.of([MI300X], 0, [])
    assert limits.efficiency(little, 4_000, tensor_cores=False) == 0.5
    assert limits.saving(little, 4_000, tensor_cores=False) == 2_000
    assert limits.saving(little, 1_000, tensor_cores=False) == 0
