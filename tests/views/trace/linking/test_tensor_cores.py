"""Which kernels compute on tensor cores."""

from __future__ import annotations

import pytest

from haiprof.views.trace.linking.tensor_cores import on_tensor_cores

ON = [
    "volta_h884gemm_128x128_ldg8_nn",
    "turing_h1688gemm_128x128_nn",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(int)",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_32x1_nn_align8>",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwc_tensor16x8x8_execute_kernel",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute",
    "nvjet_tst_192x8_64x8_4x1_v_bz_TNT",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32",
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(AttentionKernel<float>)",
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u>",
    "Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64",
    "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3",
]
OFF = [
    "volta_sgemm_128x64_nn",
    "ampere_sgemm_32x128_tn",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4",
    "cutlass_80_simt_sgemm_128x64_8x5_nt_align1",
    "SubTensorOpWithScalar1d",
    "void flash_fwd_splitkv_combine_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>",
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true>",
    "triton_poi_fused_add_cos_sin_0",
    "kernel_unified_attention_2d",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >",
    "void (anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long, long)",
]


@pytest.mark.parametrize("name", ON)
def test_names_that_tell_the_instruction(name: str) -> None:
    assert on_tensor_cores([name]) == {name}


@pytest.mark.parametrize("name", OFF)
def test_ordinary_units_and_names_that_tell_nothing(name: str) -> None:
    assert on_tensor_cores([name]) == set()
