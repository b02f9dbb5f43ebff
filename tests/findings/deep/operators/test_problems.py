"""Operators that are slow are named with the reason; those that are well are not."""

from __future__ import annotations

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_data import DATA, need
from trace_frames import kernels_of, spans_of

from haiprof.analyzer import Analyzer
from haiprof.findings.deep.operators.problems import operator_problems
from haiprof.findings.deep.recommendation import Finding
from haiprof.runs import Gpu
from haiprof.views.trace.linking.linked import link
from haiprof.views.trace.roofline.device import Peaks
from haiprof.views.trace.roofline.formulas import known
from haiprof.views.trace.roofline.formulas.call import Call

H100 = Gpu("", "NVIDIA H100 80GB HBM3", 0, "", None, 132)
MI300X = Gpu("", "AMD Instinct MI300X", 0, "", None, 304)
UNNAMED: list[Gpu] = []
BF16 = "c10::BFloat16"
Op = dict[str, Any]


def op(
    name: str, shapes: list[Any], types: list[str], us: float, *, kernel: str = "kernel",
    blocks: int | None = None, values: list[str] | None = None, calls: int = 1,
    copy: str | None = None,
) -> Op:  # fmt: skip
    """Calls of an operator that each launch one kernel of this time."""
    return {
        "span": {
            "name": name, "shapes": json.dumps(shapes), "types": json.dumps(types),
            "inputs": None if values is None else json.dumps(values),
        },
        "kernel": {"name": kernel, "duration": int(us * 1000),
                   **({} if blocks is None else {"grid_x": blocks, "grid_y": 1, "grid_z": 1}),
                   **({} if copy is None else {"kind": "memcpy", "copy_kind": copy})},
        "calls": calls,
    }  # fmt: skip


def mm(m: int, k: int, n: int, us: float, *, of: str = BF16, **more: Any) -> Op:
    return op("aten::mm", [[m, k], [k, n]], [of] * 2, us, **more)


def conv(
    source: list[int], weight: list[int], us: float, groups: int = 1, dilation: int = 1, **more: Any
) -> Op:  # fmt: skip
    padding = dilation * (weight[2] - 1) // 2
    values = ["", "", "", "[1, 1]", f"[{padding}, {padding}]", f"[{dilation}, {dilation}]",
              "False", "[0, 0]", str(groups)]  # fmt: skip
    return op("aten::convolution", [source, weight], [BF16] * 2, us, values=values, **more)


def flash(batch: int, heads: int, queries: int, keys: int, depth: int, us: float) -> Op:
    shapes = [[batch, heads, n, depth] for n in (queries, keys, keys)]
    values = ["", "", "", "0.", "False", "False", ""]
    return op("aten::_scaled_dot_product_flash_attention", shapes, [BF16] * 3, us, values=values)


def moe(tokens: int, experts: int, chosen: int, us: float, name: str = "vllm::fused_moe") -> Op:
    shapes = [[tokens, 4096], [experts, 4096, 4096], [experts, 4096, 2048], [tokens, chosen]]
    return op(name, shapes, [BF16] * 3 + ["float"], us)


def found(operators: list[Op], gpus: list[Gpu]) -> list[Finding]:
    spans, kernels = [], []
    at = 0
    for number, each in enumerate(operators):
        for call in range(each["calls"]):
            correlation = 1 + 1000 * number + call
            spans += [
                {"start": at, "duration": 50, **each["span"], "stack": "train.py(7): step"},
                {"start": at + 10, "duration": 10, "category": "runtime",
                 "name": "cudaLaunchKernel", "correlation": correlation},
            ]  # fmt: skip
            kernels.append({"start": at + 60, "correlation": correlation, **each["kernel"]})
            at += 100 + each["kernel"]["duration"]
    linked = link(spans_of(spans), kernels_of(kernels))
    return list(operator_problems(linked, gpus))


ADD = ["float", "float", "Scalar"]
NVJET = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT"
TENSILE = "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64_MI16x16x16x1_GSU1_ISA942_"
HEALTHY = [
    # A large square product at 70 % of the peak, and on MI300X at half of it.
    ([mm(8192, 8192, 8192, 1588, kernel=NVJET, blocks=132)], [H100]),
    ([mm(8192, 8192, 8192, 1682, kernel=TENSILE)], [MI300X]),
    ([mm(8192, 8192, 8192, 1682, kernel=TENSILE)], UNNAMED),
    # Decoding at 80 % of the bandwidth: as fast as weights can be read.
    ([mm(1, 8192, 8192, 50, kernel="gemv")], [H100]),
    # Additions, copies and norms at 65 % and more of the bandwidth.
    ([op("aten::add", [[8192, 8192], [8192, 8192], []], ADD, 369)], [H100]),
    ([op("aten::add", [[8192, 8192], [8192, 8192], []], ADD, 190)], [MI300X]),
    ([op("aten::native_layer_norm", [[65536, 4096], [], [4096], [4096]],
         [BF16, "ScalarList", BF16, BF16], 450)], [H100]),
    # Long sequences at 40 % of the peak, as FlashAttention-2 reaches on H100.
    ([flash(1, 32, 16384, 16384, 128, 11_100)], [H100]),
    # Convolutions of many channels; a depthwise one at 70 % of the bandwidth.
    ([conv([64, 256, 56, 56], [256, 256, 3, 3], 500)], [H100]),
    ([conv([64, 512, 56, 56], [512, 1, 3, 3], 174, groups=512)], [H100]),
    # Experts with many tokens, at 60 % of the peak; with few, at 80 % of the bandwidth.
    ([moe(16384, 8, 2, 2775)], [H100]),
    ([moe(16, 8, 8, 151)], [H100]),
    # Small operators: launching them is what takes time.
    ([mm(16, 16, 16, 4), op("aten::add", [[64, 64], [64, 64], []], ADD, 3)], [H100]),
    ([mm(16, 16, 16, 40)], UNNAMED),
    # Nothing is known.
    ([op("aten::mm", [], [], 900), op("mine::op", [[9, 9]], ["float"], 900)], [H100]),
    ([mm(8192, 8192, 8192, 90_000)], [Gpu("", "NVIDIA Tomorrow", 0, "", None)]),
    # Slow, but next to nothing of the device's time.
    ([op("aten::add", [[8192, 8192], [8192, 8192], []], ADD, 369, calls=99),
      op("aten::add", [[512, 8192], [512, 8192], []], ADD, 100)], [H100]),
    # A copy from the host is not bound by the device's memory.
    ([op("aten::copy_", [[2**26], [2**26], []], ADD, 15_000, copy="HtoD")], [H100]),
]  # fmt: skip


@pytest.mark.parametrize(("operators", "gpus"), HEALTHY, ids=range(len(HEALTHY)))
def test_operators_that_are_well_are_not_named(operators: list[Op], gpus: list[Gpu]) -> None:
    assert found(operators, gpus) == []


SIDES = st.sampled_from([512, 1024, 3072, 4096, 8192])


@st.composite
def large(draw: st.DrawFn) -> Op:
    """An operator of any kind that is large enough for its device."""
    n, m, k = (draw(SIDES) for _ in range(3))
    return draw(
        st.sampled_from(
            [
                mm(n, k, m, 1),
                conv([32, n, 28, 28], [m, n, 3, 3], 1),
                conv([128, n, 28, 28], [n, 1, 3, 3], 1, groups=n),
                flash(4, 16, n, m, 128, 1),
                moe(n, 8, 2, 1),
                op("aten::mul", [[n, m, 8], [n, m, 8]], [BF16] * 2, 1),
                op("aten::native_layer_norm", [[n, m], [], [m], [m]], [BF16, "", BF16, BF16], 1),
                op("aten::_softmax", [[n, m], [], []], ["float", "", ""], 1),
                op("aten::sum", [[n, m, 8]], [BF16], 1),
            ]
        )
    )


@given(
    st.lists(large(), min_size=1, max_size=3), st.floats(0.62, 1), st.sampled_from([H100, MI300X])
)
def test_whatever_is_near_the_roofline_is_well(
    operators: list[Op], efficiency: float, gpu: Gpu
) -> None:
    for each in operators:
        span = each["span"]
        cost = known.cost(
            Call.recorded(span["name"], span["shapes"], span["types"], span["inputs"])
        )
        assert cost is not None
        # Experts of which all weights are read.
        ideal, _ = Peaks.of(gpu).ideal(cost, tensor_cores=False, most=True)
        assert ideal is not None
        each["kernel"]["duration"] = int(max(ideal, 2_000) / efficiency)
    kinds = {finding.kind for finding in found(operators, [gpu])}
    # Several that are too small for the device are one problem, however fast they are.
    assert kinds <= {"small_operators"}


SLOW = [
    ("few_tiles", [mm(256, 65536, 256, 600, kernel=NVJET, blocks=4)], [H100], "4 blocks"),
    ("few_tiles", [mm(256, 65536, 256, 600, kernel=TENSILE)], UNNAMED, "at least 228"),
    ("tall_skinny_gemm", [mm(2**20, 32, 32, 200)], [H100], "only 32"),
    ("tall_skinny_gemm", [mm(1, 8192, 8192, 120)], [H100], "M is only 1"),
    ("misaligned_gemm", [mm(8192, 4096, 50257, 12_000)], [H100], "N = 50257"),
    ("wave_quantization", [mm(4096, 4096, 4608, 500, blocks=140)], [H100], "2 times"),
    ("slow_gemm", [mm(8192, 8192, 8192, 5000)], [H100], "22 %"),
    ("small_gemm", [mm(64, 64, 64, 50)], [H100], "too little"),
    ("small_gemm", [op("aten::bmm", [[4096, 64, 64], [4096, 64, 64]], [BF16] * 2, 90)], [H100],
     "only 21 FLOP per byte"),
    ("grouped_convolution", [conv([8, 1024, 32, 32], [1024, 1, 3, 3], 100, groups=1024)],
     [H100], "depthwise"),
    ("grouped_convolution", [conv([8, 1024, 32, 32], [1024, 1, 3, 3], 400, groups=1024)],
     UNNAMED, "depthwise"),
    ("grouped_convolution", [conv([32, 256, 56, 56], [256, 8, 3, 3], 900, groups=32)], [H100],
     "32 groups"),
    ("convolution_layout",
     [conv([32, 256, 56, 56], [256, 256, 3, 3], 900, kernel="nchwToNhwcKernel")], [H100],
     "order"),
    ("few_channels", [conv([8, 3, 512, 512], [64, 3, 7, 7], 900)], [H100], "3 input channels"),
    ("few_blocks", [conv([1, 512, 7, 7], [512, 512, 3, 3], 90, blocks=16)], [H100], "16 blocks"),
    ("pointwise_convolution", [conv([32, 1024, 28, 28], [1024, 1024, 1, 1], 300)], [H100],
     "25088"),
    ("slow_convolution", [conv([64, 256, 56, 56], [256, 256, 3, 3], 3000)], [H100], "256 by 256"),
    ("slow_convolution", [conv([64, 256, 56, 56], [256, 256, 3, 3], 3000, dilation=4)], [H100],
     "dilated by 4"),
    ("slow_attention", [flash(1, 32, 16384, 16384, 128, 40_000)], [H100], "16384 queries"),
    ("short_sequences", [flash(64, 16, 128, 128, 64, 100)], [H100], "sequences of 128"),
    ("decoding_attention", [flash(8, 32, 1, 8192, 128, 900)], [H100], "8192 keys"),
    ("few_tokens_per_expert", [moe(16, 64, 2, 900)], [H100], "0.5 rows"),
    ("few_tokens_per_expert", [moe(16, 64, 2, 900, "vllm::rocm_aiter_fused_moe")], UNNAMED,
     "0.5 rows"),
    ("slow_experts", [moe(16384, 8, 2, 9000)], [H100], "8 experts"),
    ("poor_bandwidth", [op("aten::add", [[8192, 8192], [8192, 8192], []], ADD, 600)], [H100],
     "40 %"),
    ("poor_bandwidth", [op("aten::copy_", [[8192, 8192], [8192, 8192], []], ADD, 600,
                           kernel="void at::native::elementwise_kernel<128, 4>")], [H100],
     "strided"),
    ("poor_bandwidth", [op("aten::native_batch_norm", [[32, 64, 56, 56], [64], [64]], [BF16] * 3,
                           100, blocks=32)], [H100], "32 blocks"),
    ("poor_bandwidth", [op("aten::_softmax", [[8, 4096, 4096], [], []], [BF16] * 3, 500)], [H100],
     "softmax"),
    ("poor_bandwidth", [op("aten::embedding", [[50000, 1024], [65536]], [BF16, "long int"], 500)],
     [H100], "look-up"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "operators", "gpus", "words"), SLOW)
def test_a_slow_operator_is_named_with_its_reason(
    kind: str, operators: list[Op], gpus: list[Gpu], words: str
) -> None:
    (finding,) = found(operators, gpus)
    assert finding.kind == kind
    assert words in finding.problem
    assert finding.operator == operators[0]["span"]["name"]
    assert finding.stack == "train.py(7): step"
    assert "of the device's time" in finding.evidence
    took = operators[0]["kernel"]["duration"]
    assert finding.saves_ns is not None
    assert 0.3 * took < finding.saves_ns <= took


def test_attention_in_separate_kernels_is_one_problem() -> None:
    scores = [8, 12, 2048, 2048]
    operators = [
        op("aten::bmm", [[96, 2048, 64], [96, 64, 2048]], [BF16] * 2, 700),
        op("aten::mul", [scores, []], [BF16, "double"], 600),
        op("aten::_softmax", [scores, [], []], [BF16, "Scalar", "Scalar"], 2000),
        op("aten::bmm", [[96, 2048, 2048], [96, 2048, 64]], [BF16] * 2, 700),
    ]
    (finding,) = found(operators, [H100])
    assert finding.kind == "unfused_attention"
    assert finding.operator == "aten::_softmax"
    # All but what the two products compute.
    computing = 2 * 2 * 96 * 2048 * 2048 * 64 / 989.4e12 * 1e9
    assert finding.saves_ns == pytest.approx(4_000_000 - computing, rel=1e-3)
    # The same in another type is part of it, not another.
    again = op("aten::_softmax", [scores, [], []], ["float", "Scalar", "Scalar"], 2000)
    (both,) = found([*operators, again], [H100])
    assert both.saves_ns == pytest.approx(6_000_000 - computing, rel=1e-3)


def test_operators_that_are_too_small_are_one_problem() -> None:
    small = [op("aten::add", [[n, 64], [n, 64], []], ADD, 3, calls=20) for n in (8, 16, 32)]
    (finding,) = found(small, [H100])
    assert finding.kind == "small_operators"
    assert finding.problem.startswith("60 calls")
    # All but what moving the data takes.
    moved = sum(3 * 4 * 64 * n for n in (8, 16, 32)) / 3350e9 * 1e9
    assert finding.saves_ns == pytest.approx(60 * 3000 - 20 * moved, rel=1e-3)
    # Beside much other work they are not.
    assert found([*small, mm(8192, 8192, 8192, 1588)], [H100]) == []


def test_the_same_in_other_shapes_is_one_finding() -> None:
    operators = [
        op("aten::add", [[n, 8192], [n, 8192], []], ADD, n / 12) for n in (8192, 6144, 4096)
    ]
    (finding,) = found(operators, [H100])
    assert "the same for 2 more" in finding.evidence
    slowest = [op("aten::add", [[8192, 8192], [8192, 8192], []], ADD, 8192 / 12)]
    assert (finding.saves_ns or 0) > 2 * (found(slowest, [H100])[0].saves_ns or 0)


def test_a_problem_is_of_the_step_and_the_call_that_took_longest() -> None:
    spans: list[dict[str, Any]] = []
    kernels = []
    add = op("aten::add", [[8192, 8192], [8192, 8192], []], ADD, 0)["span"]
    for step, us in enumerate((600, 900, 700)):
        begin = step * 1_000_000
        spans += [
            {"start": begin, "duration": 990_000, "category": "step", "step": step,
             "name": f"ProfilerStep#{step}"},
            {"start": begin + 10, "duration": 50, **add, "stack": f"train.py({step}): step"},
            {"start": begin + 20, "duration": 10, "category": "runtime",
             "name": "cudaLaunchKernel", "correlation": step + 1},
        ]  # fmt: skip
        kernels.append({"start": begin + 70, "duration": us * 1000, "correlation": step + 1})
    linked = link(spans_of(spans), kernels_of(kernels))
    (finding,) = operator_problems(linked, [H100])
    assert (finding.step, finding.stack) == (1, "train.py(1): step")


#: The operator problem that each file is named after -> what says so.
LABELLED = {
    "conv_01_large_spatial_small_ch": "few_channels",
    "conv_04_depthwise": "grouped_convolution",
    "conv_05_pointwise_1x1": "pointwise_convolution",
    "elem_01_add_poor_bw": "poor_bandwidth",
    "gemm_01_compute_few_tiles": "few_tiles",
    "gemm_04_memory_tall_skinny": "tall_skinny_gemm",
    "moe_01_many_experts_few_tokens": "few_tokens_per_expert",
    "moe_06_tiny_batch_many_experts": "few_tokens_per_expert",
    "sdpa_01_long_seq_low_eff": "slow_attention",
    "sdpa_03_short_seq_overhead": "short_sequences",
}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    with (
        lzma.open(need(DATA / "other" / "labelled_ops.tar.xz")) as whole,
        tarfile.open(fileobj=whole) as tar,
    ):
        tar.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("name", LABELLED)
def test_the_problem_of_a_labelled_trace_is_its_first_or_second_finding(
    name: str, labelled: Path
) -> None:
    (file,) = labelled.rglob(f"{name}.json")
    rows = Analyzer(file).recommendations().select("kind", "evidence").head(2).rows()
    assert LABELLED[name] in {kind for kind, _ in rows}
    (evidence,) = [evidence for kind, evidence in rows if kind == LABELLED[name]]
    assert "FLOP/B" in evidence
