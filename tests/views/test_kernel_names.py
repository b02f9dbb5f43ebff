"""Names of kernels: readable where they can be read, unchanged where not, and never an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haiprof.views.kernel_names import demangled, short_name

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
