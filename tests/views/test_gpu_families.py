"""Which GPUs can have run kernels of these names."""

from __future__ import annotations

import pytest

from haiprof.common.gpu_models import MODELS
from haiprof.views.gpu_families import candidates

TENSILE = "Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN"


@pytest.mark.parametrize(
    ("names", "architectures"),
    [
        ([TENSILE], {"gfx908", "gfx90a", "gfx942", "gfx950"}),
        ([f"{TENSILE}_ISA942_IU1"], {"gfx942"}),
        ([f"{TENSILE}_ISA90a_IU1"], {"gfx90a"}),
        (["igemm_fwd_gtcx3_nhwc_bf16_bx0"], {"gfx908", "gfx90a", "gfx942", "gfx950"}),
        (["hipLaunchKernel"], {"gfx908", "gfx90a", "gfx942", "gfx950"}),
        (["attn_fwd.kd"], {"gfx908", "gfx90a", "gfx942", "gfx950"}),
        (["vllm::rocm_aiter_fused_moe"], {"gfx942", "gfx950"}),
        (["sm90_xmma_gemm_bf16bf16_bf16f32"], {"sm_90"}),
        (["nvjet_tst_64x64_64x16_2x1_v_bz_TNN"], {"sm_90", "sm_100"}),
        (["ampere_sgemm_128x64_nn"], {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100"}),
        (["ampere_sgemm_128x64_nn", "nvjet_hsh_64x8_64x16"], {"sm_90", "sm_100"}),
        ([TENSILE, "volta_sgemm_128x64_nn"], set()),
        (["triton_poi_fused_add_0"], {each.architecture for each in MODELS}),
    ],
)
def test_names_leave_some_architectures(names: list[str], architectures: set[str]) -> None:
    found = candidates(names)
    assert {each.architecture for each in found} == architectures
    assert found == tuple(each for each in MODELS if each.architecture in architectures)
