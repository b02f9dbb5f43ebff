"""Operators against the roofline: figures by hand, and nothing where something is not known."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.runs import Gpu
from haiprof.views.trace.linking.linked import Linked, link
from haiprof.views.trace.roofline.collectives import collectives
from haiprof.views.trace.roofline.gemms import gemms
from haiprof.views.trace.roofline.operators import SCHEMA, operators

H100 = Gpu("", "NVIDIA H100 80GB HBM3", 0, "", 80 * 10**9, 132)
MM = {"shapes": "[[8192,8192],[8192,8192]]", "types": '["c10::BFloat16","c10::BFloat16"]'}


def trace(*calls: tuple[dict[str, Any], list[dict[str, Any]]]) -> Linked:
    """One operator after another, each with the kernels that it launches."""
    spans: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    for at, (op, launched) in enumerate(calls):
        begin = at * 10_000
        spans.append({"start": begin, "duration": 5_000, "name": "aten::mm", **op})
        for number, kernel in enumerate(launched):
            correlation = 100 * at + number + 1
            spans.append(
                {"start": begin + 10 + 20 * number, "duration": 10, "category": "runtime",
                 "name": "cudaLaunchKernel", "correlation": correlation}
            )  # fmt: skip
            kernels.append({"start": begin + 100, "correlation": correlation, **kernel})
    return link(spans_of(spans), kernels_of(kernels))


def test_a_multiplication_by_hand() -> None:
    grid = {"grid_x": 132, "grid_y": 1, "grid_z": 1}
    kernel = {"name": "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", **grid}
    linked = trace(
        (MM, [{**kernel, "duration": 1_500_000}]), (MM, [{**kernel, "duration": 1_700_000}])
    )
    (row,) = operators(linked, [H100]).iter_rows(named=True)
    flops, moved = 2 * 8192**3, 3 * 2 * 8192**2
    assert row == {
        "operator": "aten::mm",
        "kind": "gemm",
        **MM,
        "inputs": None,
        "device": 0,
        "graph": False,
        "calls": 2,
        "kernels": 2,
        "kernel": kernel["name"],
        "blocks": 132,
        "tensor_core": True,
        "device_time": 3_200_000,
        "share": 1.0,
        "flops": flops,
        "bytes": moved,
        "intensity": flops / moved,
        "flops_per_s": pytest.approx(flops / 1.6e-3),
        "bytes_per_s": pytest.approx(moved / 1.6e-3),
        "flops_share": pytest.approx(flops / 1.6e-3 / 989.4e12),
        "bytes_share": pytest.approx(moved / 1.6e-3 / 3350e9),
        "bound": "compute",
        "ideal": pytest.approx(flops / 989.4e12 * 1e9),
        "efficiency": pytest.approx(flops / 989.4e12 / 1.6e-3),
    }
    (product,) = gemms(operators(linked, [H100]), [H100]).iter_rows(named=True)
    assert {name: product[name] for name in ("batch", "m", "n", "k", "type", "blocks")} == {
        "batch": 1, "m": 8192, "n": 8192, "k": 8192, "type": "bf16", "blocks": 132,
    }  # fmt: skip
    assert (product["tile_m"], product["tile_n"], product["waves"]) == (256, 128, 1.0)


@pytest.mark.parametrize(
    ("op", "name", "ns", "gpu", "expected"),
    [
        # 3 · 4 · 2²⁶ bytes of an addition in 300 µs, of 3.35 TB/s.
        (
            {"name": "aten::add", "shapes": "[[8192,8192],[8192,8192],[]]",
             "types": '["float","float","Scalar"]'},
            "vectorized", 300_000, H100,
            {"bound": "memory", "efficiency": 805306368 / 3.35e12 / 300e-6},
        ),
        # Tensor cores compute fp32 as tf32.
        (
            {**MM, "types": '["float","float"]'}, "sm80_xmma_gemm_f32f32_tf32_s1688gemm", 3_000_000,
            H100, {"bound": "compute", "flops_share": 2 * 8192**3 / 3e-3 / 494.7e12},
        ),
        (
            {**MM, "types": '["float","float"]'}, "sgemm_simt", 20_000_000,
            H100, {"bound": "compute", "flops_share": 2 * 8192**3 / 20e-3 / 67e12},
        ),
        ({"shapes": "[[8,8],[8,8]]", "types": '["float","float"]'}, "gemm", 9_000, H100,
         {"bound": "latency", "flops": 1024}),
        # No shapes, no type, no device.
        ({}, "gemm", 9_000, H100, {"kind": None, "flops": None, "bound": None, "calls": 1}),
        ({"shapes": "[[8,8],[8,8]]"}, "gemm", 9_000, H100,
         {"kind": "gemm", "flops": 1024, "bytes": None, "efficiency": None}),
        (MM, "gemm", 9_000_000, None,
         {"flops": 2 * 8192**3, "flops_share": None, "bound": None, "efficiency": None}),
        (MM, "gemm", 9_000_000, Gpu("", "NVIDIA Tomorrow", 0, "", None),
         {"flops": 2 * 8192**3, "flops_share": None, "bound": None}),
        # A type that the device has no peak for.
        ({**MM, "types": '["c10::Float8_e4m3fn","c10::Float8_e4m3fn"]'}, "gemm", 9_000_000,
         Gpu("", "NVIDIA A100-SXM4-80GB", 0, "", None), {"flops_share": None, "efficiency": None}),
    ],
)  # fmt: skip
def test_bounds_and_what_is_not_known(
    op: dict[str, Any], name: str, ns: int, gpu: Gpu | None, expected: dict[str, Any]
) -> None:
    linked = trace((op, [{"name": name, "duration": ns}]))
    (row,) = operators(linked, [] if gpu is None else [gpu]).iter_rows(named=True)
    found = {key: row[key] for key in expected}
    assert found == {
        key: pytest.approx(value) if isinstance(value, float) else value
        for key, value in expected.items()
    }


def test_kernels_count_for_the_innermost_operator_with_a_formula() -> None:
    outer = {"start": 0, "duration": 9_000, "name": "aten::linear", **MM}
    inner = {"start": 10, "duration": 500, "name": "aten::copy_", "shapes": "[[4],[4],[]]",
             "types": '["float","float","Scalar"]'}  # fmt: skip
    further = {"start": 600, "duration": 300, "name": "aten::resolve_conj"}
    calls = [
        {"start": at, "duration": 5, "category": "runtime", "name": "cudaLaunchKernel",
         "correlation": number}
        for number, at in enumerate((20, 650, 1000), 1)
    ]  # fmt: skip
    lone = {"start": 500, "duration": 40, "name": "lone", "correlation": 99}
    kernels = [
        {"start": 100 * number, "duration": 10 * number, "name": name, "correlation": number}
        for number, name in enumerate(("copy", "conj", "gemm"), 1)
    ]
    linked = link(spans_of([outer, inner, further, *calls]), kernels_of([*kernels, lone]))
    found = operators(linked)
    assert found.select("operator", "device_time", "kernels", "kernel").rows() == [
        ("aten::linear", 50, 2, "gemm"),
        (None, 40, 1, "lone"),
        ("aten::copy_", 10, 1, "copy"),
    ]


def test_a_copy_from_the_host_is_of_no_device_memory() -> None:
    copied = {"name": "aten::copy_", "shapes": "[[1024],[1024],[]]",
              "types": '["float","float","Scalar"]'}  # fmt: skip
    memcpy = {"name": "Memcpy HtoD (Pinned -> Device)", "kind": "memcpy", "copy_kind": "HtoD"}
    (row,) = operators(trace((copied, [{**memcpy, "duration": 4096}])), [H100]).iter_rows(
        named=True
    )
    assert (row["kind"], row["bytes"], row["bytes_per_s"]) == ("transfer", 4096, 1e9)
    assert row["bytes_share"] is None
    assert row["bound"] is None


def test_a_grid_of_threads_has_fewer_blocks() -> None:
    def row(call: str) -> int | None:
        spans = spans_of(
            [
                {"start": 0, "duration": 90, "name": "aten::mm", **MM},
                {"start": 10, "duration": 5, "category": "runtime", "name": call, "correlation": 1},
            ]
        )
        sides = {"grid_x": 1024, "grid_y": 4, "grid_z": 1, "block_x": 256, "block_y": 1}
        ran = {"start": 20, "duration": 9, "correlation": 1, **sides, "block_z": 1}
        blocks: int | None = operators(link(spans, kernels_of([ran])))["blocks"][0]
        return blocks

    assert row("hipLaunchKernel") == 4096
    assert row("hipExtModuleLaunchKernel") == 16


def test_devices_have_their_own_peaks() -> None:
    gpus = [H100, Gpu("", "AMD Instinct MI300X", 1, "", None, 304)]
    linked = trace(*((MM, [{"duration": 2_000_000, "device": n}]) for n in range(3)))
    found = operators(linked, gpus).sort("device")
    flops = 2 * 8192**3 / 2e-3
    assert found["flops_share"].to_list() == [
        pytest.approx(flops / 989.4e12), pytest.approx(flops / 1307.4e12), None,
    ]  # fmt: skip


def test_nothing_ran() -> None:
    found = operators(link(spans_of([]), kernels_of([])), [H100])
    assert found.schema == pl.Schema(SCHEMA)
    assert not gemms(found).height


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["aten::mm", "aten::add", "mine::op"]),
            st.sampled_from([None, "[[2,2],[2,2]]", "[[3,3],[3,3]]"]),
            st.lists(st.integers(0, 5_000), max_size=3),
        ),
        max_size=8,
    )
)
def test_the_devices_time_is_divided_among_operators(calls: list[Any]) -> None:
    linked = trace(
        *(
            ({"name": name, "shapes": shapes}, [{"duration": ns} for ns in durations])
            for name, shapes, durations in calls
        )
    )
    found = operators(linked, [H100])
    ran = [ns for *_, durations in calls for ns in durations]
    assert found["device_time"].sum() == sum(ran)
    assert found["kernels"].sum() == len(ran)
    if sum(ran):
        assert found["share"].sum() == pytest.approx(1)
    # Each call that launched anything is counted once.
    assert found["calls"].sum() == sum(1 for *_, durations in calls if durations)


def test_collectives_have_the_bandwidths_of_nccl_tests() -> None:
    found = pl.DataFrame(
        {
            "op": ["all_reduce", "all_reduce", "all_gather", None],
            "group": ["0", "0", "0", None],
            "group_size": [8, 8, 8, None],
            "type": ["BFloat16"] * 3 + [None],
            "size": [2**20, 2**20, 2**23, None],
            "start": [0, 10_000_000, 20_000_000, 30_000_000],
            "end": [100_000, 10_300_000, 20_100_000, 30_000_500],
        },
        {"op": pl.String, "group": pl.String, "group_size": pl.UInt32, "type": pl.String,
         "size": pl.Int64, "start": pl.Int64, "end": pl.Int64},
    )  # fmt: skip
    rows = {row["op"]: row for row in collectives(found).iter_rows(named=True)}
    reduced = rows["all_reduce"]
    assert (reduced["calls"], reduced["device_time"], reduced["shortest"]) == (2, 400_000, 100_000)
    assert reduced["algorithm_bandwidth"] == pytest.approx(2 * 2**20 / 400e-6)
    assert reduced["bus_bandwidth"] == pytest.approx(2 * 2**20 / 400e-6 * 2 * 7 / 8)
    assert reduced["best_bus_bandwidth"] == pytest.approx(2**20 / 100e-6 * 2 * 7 / 8)
    gathered = rows["all_gather"]
    assert gathered["bus_bandwidth"] == pytest.approx(2**23 / 100e-6 * 7 / 8)
    assert rows[None]["algorithm_bandwidth"] is None
