"""Which names communicate, and which collective each is."""

from __future__ import annotations

import polars as pl
import pytest

from haiprof.views.trace.linking.roles import (
    BACKENDS,
    KERNELS,
    OPERATIONS,
    communicates,
    communication,
)

COMMUNICATES = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)": "send_recv",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": "reduce_scatter",
    "ncclSymkDevKernel_AllGather_LLMC": "all_gather",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": None,
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)": "all_to_all",
    "void deep_ep::internode_ll::combine<true, 7168>(void*)": "all_to_all",
    "void dpsk::ep::combine(int)": "all_to_all",
    "nvshmemi_barrier_all_kernel": "barrier",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)": "all_reduce",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16>(float**)": "all_reduce",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "all_reduce",
    "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot": "all_reduce",
    "void quickreduce::allreduce_prototype_twoshot<int>": "all_reduce",
    "hcom_allReduce__929_0_1": "all_reduce",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs": None,
}
DOES_NOT = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >",
    "void at::native::(anonymous namespace)::gather_kernel",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*)",
    "volta_sgemm_128x64_nn",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>",
    "splitKreduce_kernel",
    "",
]


@pytest.mark.parametrize(("name", "op"), COMMUNICATES.items())
def test_kernels_of_libraries_and_of_users_communicate(name: str, op: str | None) -> None:
    assert communication([name]) == {name: op}


@pytest.mark.parametrize("name", DOES_NOT)
def test_reductions_and_gathers_on_one_device_do_not(name: str) -> None:
    assert communication([name]) == {}


def test_a_column_of_names_is_judged_as_each_name_is() -> None:
    names = [*COMMUNICATES, *DOES_NOT, None]
    found = pl.DataFrame({"name": pl.Series(names, dtype=pl.Categorical())}).select(communicates())
    assert found["name"].to_list() == [name in COMMUNICATES for name in names]


def test_what_users_add_decides_first() -> None:
    rules = [(r"^ncclDevKernel_Generic", "all_gather"), ("halo", None), *KERNELS]
    names = ["ncclDevKernel_Generic(x)", "halo_send", "ncclKernel_Broadcast"]
    assert communication(names, rules) == {
        "ncclDevKernel_Generic(x)": "all_gather",
        "halo_send": "send",
        "ncclKernel_Broadcast": "broadcast",
    }
    assert communication(names, []) == {}


def test_the_host_prepares_a_collective_and_its_backend_does_it() -> None:
    names = ["nccl:all_reduce", "gloo:_all_gather_base", "c10d::allreduce_", "aten::all"]
    assert communication(names, BACKENDS) == {
        "nccl:all_reduce": "all_reduce",
        "gloo:_all_gather_base": "all_gather",
    }
    assert list(communication(names, OPERATIONS)) == names[:3]
