"""Names of kernels: readable where they can be read, unchanged where not, and never an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haiprof.views.kernel_names import demangled, lasting_name, short_name

ADD = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEvi"
    "T0_T1_"
)


def readable(name: str) -> str:
    return demangled([name])[name]


def test_a_mangled_name_is_read() -> None:
    assert readable(ADD).startswith(
        "void at::native::vectorized_elementwise_kernel<4, at::native::"
    )
    assert readable("_ZN12_GLOBAL__N_13fooEPf") == "(anonymous namespace)::foo(float*)"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "f",
        "_Z",
        "_Zfoo",
        "_ZN999999999999999999999999",
        "_Z1\0a",
        "_Z\N{SNOWMAN}",
        "volta_sgemm_128x64_nn",
        "Memcpy HtoD (Pinned -> Device)",
    ],
)
def test_what_is_no_mangled_name_stays(name: str) -> None:
    assert readable(name) == name


def test_a_name_too_long_for_the_library_tells_what_it_is_called() -> None:
    long = "_ZN7cutlass13device_kernelI" + "N1a1bIiEE" * 400 + "EEvT_"
    assert readable(long) == "cutlass::device_kernel<…>"
    assert readable("_Z6gelu_kI" + "N1a1bIiEE" * 400 + "EEvT_").startswith("_Z6gelu_k") is False


@given(st.text(max_size=60), st.sampled_from(["", "_Z", "_ZN", "_ZN2at"]))
def test_nonsense_is_never_an_error(text: str, beginning: str) -> None:
    assert isinstance(short_name(readable(beginning + text)), str)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void f<int>(float*)", "f<int>"),
        ("void (anonymous namespace)::foo<(a::B)3>(int, void (*)(int))", "foo<(a::B)3>"),
        ("ncclDevKernel_AllReduce(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("Memset (Device)", "Memset (Device)"),
        ("at::f<std::array<char*, 3ul> >(int)", "at::f<std::array<char*, 3ul> >"),
        ("", ""),
        (")", ")"),
        ("()", "()"),
    ],
)
def test_short_names_leave_out_types_and_parameters(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("name", "lasting"),
    [
        ("hcom_allReduce__868_3_1", "hcom_allReduce"),
        ("hcom_broadcast_303_1_1", "hcom_broadcast"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
         "ncclKernel_AllReduce_RING_LL_Sum_float"),
        ("triton_poi_fused_add_cos_sin_0", "triton_poi_fused_add_cos_sin"),
        ("triton_red_fused_mean_12", "triton_red_fused_mean"),
        ("triton_poi_fused_add_3_0d1d2de3d", "triton_poi_fused_add"),
        ("## Call CompiledFxGraph fud64jsrxcxliekg7lptyw24yz5k3oa65b73wjfbhz6j2fg6ouu7 ##",
         "## Call CompiledFxGraph"),
    ],
)  # fmt: skip
def test_what_differs_from_run_to_run_is_left_out(name: str, lasting: str) -> None:
    assert lasting_name(name) == lasting


@pytest.mark.parametrize(
    "name",
    ["triton_poi_fused_conv2d", "my_triton_kernel_2", "volta_sgemm_128x64_nn", "aten::add_", "f_1",
     "ncclAllReduce", "Conv2D4", "hcom_allReduce_", ""],
)  # fmt: skip
def test_what_tells_kernels_apart_stays(name: str) -> None:
    assert lasting_name(name) == name
