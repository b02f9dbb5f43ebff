"""Tiles in the names of kernels."""

from __future__ import annotations

import pytest

from haiprof.views.trace.roofline.tiles import Tile, blocks, tile


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN_GSU2_ISA942", Tile(128, 256, 2)),
        ("Cijk_Alik_Bljk_HHS_BH_MT64x96x32_MI16x16x16x1_SN_GSU1_ISA90a", Tile(96, 64, 1)),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", Tile(256, 128, 1)),
        ("nvjet_tst_64x16_64x16_2x4_2cta_h_bz_bias_TNN", Tile(16, 64, 1)),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1",
            Tile(64, 128, 1),
        ),
        ("ampere_fp16_s16816gemm_fp16_256x128_ldg8_f2f_stages_64x3_tn", Tile(128, 256, 1)),
        ("volta_sgemm_128x32_nt", Tile(32, 128, 1)),
        ("void gemmSN_TN_kernel<float, 128, 16, 2, 4>", None),
        ("Cijk_B_PostGSU2", None),
        ("triton_mm_0", None),
        (None, None),
    ],
)
def test_a_name_says_what_one_block_computes(kernel: str | None, found: Tile | None) -> None:
    assert tile(kernel) == found


def test_blocks_are_tiles_of_all_matrices_and_splits() -> None:
    # 512 columns by 256 and 256 rows by 128: 2 times 2 tiles, each by two blocks.
    assert blocks(Tile(128, 256, 2), 1, 256, 512) == 8
    # What sticks out takes a block, too.
    assert blocks(Tile(128, 128, 1), 3, 129, 1) == 6
