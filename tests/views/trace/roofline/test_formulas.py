"""FLOPs and bytes: by hand, by torch's own counter, of what torch's profiler records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haiprof.views.trace.roofline.formulas import known
from haiprof.views.trace.roofline.formulas.call import Call, Cost
from haiprof.views.trace.roofline.formulas.memory import broadcast

BF16 = "c10::BFloat16"
NONE: list[int] = []


def cost(
    operator: str, shapes: list[Any], types: list[str] | None, values: list[str] | None = None,
    kernel: str | None = None,
) -> Cost | None:  # fmt: skip
    return known.cost(
        Call.recorded(
            operator,
            json.dumps(shapes),
            None if types is None else json.dumps(types),
            None if values is None else json.dumps(values),
            kernel,
        )
    )


def conv(stride: str, padding: str, groups: str) -> list[str]:
    return ["", "", "", stride, padding, "[1, 1]", "False", "[0, 0]", groups]


@pytest.mark.parametrize(
    ("operator", "shapes", "types", "values", "flops", "moved"),
    [
        # 2 · 256 · 512 · 1024; two bytes for each of 256·1024 + 1024·512 + 256·512.
        ("aten::mm", [[256, 1024], [1024, 512]], [BF16] * 2, None, 268_435_456, 1_835_008),
        # A bias of 512 in fp32: 4 · (512 + 8·16 + 16·512 + 8·512).
        (
            "aten::addmm", [[512], [8, 16], [16, 512]], ["float"] * 3, None,
            2 * 8 * 16 * 512, 4 * (512 + 128 + 8192 + 4096),
        ),
        ("aten::bmm", [[4, 2, 3], [4, 3, 5]], ["double"] * 2, None, 240, 8 * 4 * (6 + 15 + 10)),
        # fp8 to bf16: one byte each for the operands, two for the result, four for the scales.
        (
            "aten::_scaled_mm", [[64, 32], [32, 16], [], [], NONE, NONE, NONE],
            ["c10::Float8_e4m3fn"] * 2 + ["float"] * 2 + [""] * 3,
            ["", "", "", "", "", "", "15", "False"],
            2 * 64 * 32 * 16, 64 * 32 + 32 * 16 + 4 + 4 + 2 * 64 * 16,
        ),
        # 7·7 taps of 3 channels for each of 64·1024·1024 outputs.
        (
            "aten::convolution", [[1, 3, 2048, 2048], [64, 3, 7, 7]], ["Float"] * 2,
            conv("(2,2)", "(3,3)", "1"), 2 * 147 * 64 * 1024**2,
            4 * (3 * 2048**2 + 64 * 147 + 64 * 1024**2),
        ),
        # Depthwise: 9 taps of one channel.
        (
            "aten::convolution", [[8, 1024, 32, 32], [1024, 1, 3, 3]], ["Float"] * 2,
            conv("(1,1)", "(1,1)", "1024"), 2 * 9 * 8 * 1024 * 32 * 32,
            4 * (2 * 8 * 1024 * 1024 + 9 * 1024),
        ),
        # Attention of 16 · 32 heads: 4 · S² · D; Q, K, V and the result.
        (
            "aten::_scaled_dot_product_flash_attention",
            [[16, 32, 128, 64]] * 3 + [NONE] * 4, [BF16] * 3 + ["Scalar"] * 4,
            ["", "", "", "0.", "False", "False", ""],
            4 * 16 * 32 * 128 * 128 * 64, 4 * 2 * 16 * 32 * 128 * 64,
        ),
        # Causal: of 4 · 4 pairs the 10 that are not above the diagonal.
        (
            "aten::_flash_attention_forward", [[1, 4, 2, 8]] * 3 + [NONE] * 7,
            [BF16] * 3 + [""] * 7, ["", "", "", "", "", "4", "4", "0.", "True", "False"],
            4 * 10 * 2 * 8, 4 * 2 * 4 * 2 * 8,
        ),
        # 8 queries of 4 heads to 32 keys of 2: the diagonal of flash-attn ends at the last key.
        (
            "flash_attn::_flash_attn_forward", [[1, 8, 4, 16], [1, 32, 2, 16], [1, 32, 2, 16]],
            [BF16] * 3, ["", "", "", "0.", "0.25", "True", "-1", "-1"],
            4 * (8 * 24 + 36) * 4 * 16, 2 * 16 * (2 * 8 * 4 + 2 * 32 * 2),
        ),
        ("aten::add", [[128, 64], [64], []], ["float", "float", "Scalar"], None, 8192,
         4 * (8192 + 64 + 8192)),
        ("aten::copy_", [[100], [100], []], ["float", BF16, "Scalar"], None, 0, 600),
        ("aten::gt", [[100], []], ["float", "Scalar"], None, 100, 500),
        # Mean, squares, scaling and a weight and a bias: 8 operations per element.
        (
            "aten::native_layer_norm", [[32, 256], NONE, [256], [256], NONE],
            [BF16, "ScalarList", BF16, BF16, "Scalar"], None, 8 * 32 * 256,
            2 * (2 * 32 * 256 + 2 * 256),
        ),
        ("aten::_softmax", [[8, 128], NONE, NONE], ["float", "Scalar", "Scalar"], None,
         5 * 1024, 2 * 4096),
        (
            "aten::sum", [[64, 32], NONE, NONE, NONE], ["float", "ScalarList", "Scalar", ""],
            ["", "[1]", "False", ""], 2048, 4 * (2048 + 64),
        ),
        # 10 rows of 64 in bf16 are read and written, ten indices of 8 bytes are read.
        ("aten::embedding", [[1000, 64], [2, 5]], [BF16, "long int"], None, 0,
         2 * 2 * 640 + 80),
        # Eight elements of four and as many indices are read, sums of them read and written.
        (
            "aten::scatter_add_", [[100], NONE, [8], [8]], ["float", "Scalar", "long int", "float"],
            None, 8, 8 * 8 + 3 * 32,
        ),
        (
            "aten::max", [[64, 32], NONE, NONE], ["float", "Scalar", "Scalar"],
            ["", "1", "False"], 2048, 4 * (2048 + 64),
        ),
        # 3·3 taps for each of 4·6·6 outputs, whose places take eight bytes.
        (
            "aten::max_pool2d_with_indices", [[1, 4, 12, 12], NONE, NONE, NONE, NONE, NONE],
            ["float", *[""] * 5], ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"],
            9 * 144, 4 * 576 + 12 * 144,
        ),
        (
            "aten::upsample_bilinear2d", [[2, 3, 8, 8], NONE, NONE], [BF16, "", ""],
            ["", "[16, 16]", "False"], 11 * 1536, 2 * (384 + 1536),
        ),
        (
            "aten::_adaptive_avg_pool2d", [[2, 512, 7, 7], NONE], ["float", ""], ["", "[1, 1]"],
            2 * 512 * 49, 4 * (2 * 512 * 49 + 1024),
        ),
        # Lists have no type; the kernel names it.
        (
            "aten::_foreach_add_", [[[10], [20]], [[10], [20]], NONE],
            ["TensorList", "TensorList", "Scalar"], None, 30, None,
        ),
    ],
)  # fmt: skip
def test_an_operator_by_hand(
    operator: str,
    shapes: list[Any],
    types: list[str],
    values: list[str] | None,
    flops: int,
    moved: int | None,
) -> None:
    found = cost(operator, shapes, types, values)
    assert found is not None
    assert (found.flops, found.bytes) == (flops, moved)


def test_lists_have_the_type_that_the_kernel_names() -> None:
    kernel = "multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2>>"
    found = cost("aten::_foreach_add_", [[[10]], [[10]], []], ["TensorList"] * 2, None, kernel)
    assert found is not None
    assert found.bytes == 3 * 40
    joined = "CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int>"
    found = cost("aten::cat", [[[4, 8], [4, 8]], []], ["TensorList", "Scalar"], None, joined)
    assert found is not None
    assert found.bytes == 2 * 2 * 64


def test_experts_have_a_least_and_a_most_of_weights() -> None:
    shapes = [[16, 4096], [64, 22016, 4096], [64, 4096, 11008], [16, 2]]
    found = cost("vllm::rocm_aiter_fused_moe", shapes, [BF16] * 3 + ["float"])
    assert found is not None
    one = 22016 * 4096 + 4096 * 11008
    assert found.flops == 2 * 16 * 2 * one
    rest = 2 * 2 * 16 * 4096 + 4 * 32
    assert (found.bytes, found.most_bytes) == (2 * 2 * one + rest, 2 * 32 * one + rest)
    assert (found.sizes["experts"], found.sizes["rows"]) == (64, 32)
    # The same in 4 bits.
    halves = [[16, 4096], [64, 22016, 2048], [64, 4096, 5504], [16, 2]]
    types = [BF16, "unsigned char", "unsigned char", "float"]
    packed = cost("vllm::rocm_aiter_fused_moe", halves, types)
    assert packed is not None
    assert (packed.flops, packed.bytes, packed.type) == (found.flops, one + rest, "fp4")


@pytest.mark.parametrize(
    ("operator", "shapes", "types", "values"),
    [
        ("aten::mm", [], [], None),
        ("aten::mm", [[2, 3], [4, 5]], [BF16] * 2, None),
        ("aten::mm", [[2, "x"], None], [BF16] * 2, None),
        ("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], ["float"] * 2, None),
        ("aten::convolution", [[1, 3, 8, 8], [4, 3, 9, 9]], ["float"] * 2,
         conv("[1, 1]", "[0, 0]", "1")),
        ("vllm::fused_moe", [[16, 4096], [64, 10, 4096], [64, 4096, 11], [16, 2]], [BF16] * 4,
         None),
        ("nobody::knows", [[2, 3], [3, 4]], [BF16] * 2, None),
    ],
)  # fmt: skip
def test_what_inputs_do_not_say_is_not_guessed(
    operator: str, shapes: list[Any], types: list[str], values: list[str] | None
) -> None:
    assert cost(operator, shapes, types, values) is None


def test_parts_that_are_not_recorded_are_null() -> None:
    without_types = cost("aten::mm", [[2, 3], [3, 4]], None)
    assert without_types is not None
    assert (without_types.flops, without_types.bytes) == (48, None)
    # Whether it is causal only its inputs that are no tensors say.
    flash = [[1, 2, 64, 8]] * 3
    attention = cost("aten::_scaled_dot_product_flash_attention", flash, [BF16] * 3)
    assert attention is not None
    assert (attention.flops, attention.bytes) == (None, 4 * 2 * 2 * 64 * 8)
    # Sequences of unknown lengths in one call; of one sequence the length is known.
    packed = [[96, 2, 8]] * 3 + [[4], [4]]
    inputs = [*[""] * 5, "64", "64", "0.", "False", "False"]
    several = cost("aten::_flash_attention_forward", packed, [BF16] * 3 + ["int"] * 2, inputs)
    assert several is not None
    assert (several.flops, several.sizes["batch"]) == (None, 3)
    alone = [[96, 2, 8]] * 3 + [[2], [2]]
    one = cost("aten::_flash_attention_forward", alone, [BF16] * 3 + ["int"] * 2, inputs)
    assert one is not None
    assert one.flops == 4 * 2 * 96 * 96 * 8


_VALUES = st.one_of(
    st.none(), st.integers(-(10**20), 10**20), st.text(max_size=8),
    st.lists(st.integers(-3, 10**19), max_size=5),
    st.lists(st.lists(st.integers(0, 10**10), max_size=3), max_size=3),
)  # fmt: skip


@given(
    st.sampled_from(sorted([*known._FORMULAS, "vllm::fused_experts"])),
    st.lists(_VALUES, max_size=12),
    st.lists(st.sampled_from(["float", BF16, "Scalar", "", "TensorList", "long int"]), max_size=12),
    st.lists(st.sampled_from(["", "True", "[1, 1]", "2", "[True, False]", "0" * 30]), max_size=12),
)
def test_whatever_a_file_says_is_a_cost_or_none(
    operator: str, shapes: list[Any], types: list[str], values: list[str]
) -> None:
    found = cost(operator, shapes, types, values)
    if found is not None:
        assert all(number is None or 0 <= number < 2**63 for number in (found.flops, found.bytes))


@given(st.lists(st.lists(st.sampled_from([1, 3]), max_size=4), min_size=1, max_size=3))
def test_shapes_broadcast_as_numpy_has_it(shapes: list[list[int]]) -> None:
    import numpy as np

    assert broadcast(map(tuple, shapes)) == np.broadcast_shapes(*map(tuple, shapes))


# -- torch's own counter and profiler ------------------------------------------------------------


def _meta(torch: Any) -> dict[str, Callable[[], object]]:
    """Operators on tensors without data, of sizes that no two dimensions share."""

    def of(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.empty(shape, device="meta", dtype=dtype)

    aten = torch.ops.aten
    q, k, v = of(2, 4, 64, 32), of(2, 4, 96, 32), of(2, 4, 96, 32)
    out, lse = of(2, 4, 64, 32), of(2, 4, 64, dtype=torch.float32)
    seed = of(2, dtype=torch.int64)
    x, w = of(3, 8, 20, 18), of(12, 8, 5, 3)
    grad = of(3, 12, 9, 18)

    def backward(mask: list[bool]) -> object:
        return aten.convolution_backward(
            grad, x, w, None, [2, 1], [1, 1], [1, 1], False, [0, 0], 1, mask
        )

    return {
        "mm": lambda: aten.mm(of(5, 7), of(7, 11)),
        "addmm": lambda: aten.addmm(of(11), of(5, 7), of(7, 11)),
        "bmm": lambda: aten.bmm(of(3, 5, 7), of(3, 7, 11)),
        "baddbmm": lambda: aten.baddbmm(of(3, 5, 11), of(3, 5, 7), of(3, 7, 11)),
        "convolution": lambda: aten.convolution(
            x, w, None, [2, 1], [1, 1], [1, 1], False, [0, 0], 1
        ),
        "grouped": lambda: aten.convolution(
            x, of(12, 2, 5, 3), None, [2, 1], [1, 1], [2, 1], False, [0, 0], 4
        ),
        "transposed": lambda: aten.convolution(
            x, of(8, 12, 5, 3), None, [2, 1], [1, 1], [1, 1], True, [1, 0], 1
        ),
        "backward of both": lambda: backward([True, True, False]),
        "backward of the weight": lambda: backward([False, True, False]),
        "backward of the input": lambda: backward([True, False, False]),
        "transposed backward": lambda: aten.convolution_backward(
            of(3, 12, 42, 18), x, of(8, 12, 5, 3), None, [2, 1], [1, 1], [1, 1], True, [1, 0], 1,
            [True, True, False],
        ),
        "flash": lambda: aten._scaled_dot_product_flash_attention(q, k, v),
        "efficient": lambda: aten._scaled_dot_product_efficient_attention(q, k, v, None, True),
        "efficient backward": lambda: aten._scaled_dot_product_efficient_attention_backward(
            out, q, k, v, None, out, lse, seed, seed, 0.0, [True, True, True, False]
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def torch_counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[Any]]]:
    """What torch's counter counts in each operator, and the calls that its profiler records."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    file: Path = tmp_path_factory.mktemp("torch") / "trace.json"
    calls = _meta(torch)
    counted, begun = {}, []
    for name, call in calls.items():
        with FlopCounterMode(display=False) as counter:
            call()
        counted[name] = counter.get_total_flops()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for name, call in calls.items():
            with torch.profiler.record_function(name):
                call()
    recorded.export_chrome_trace(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    begun = [each for each in events if each.get("cat") == "user_annotation"]
    found = {}
    for each in begun:
        inside = [
            other
            for other in events
            if other.get("cat") == "cpu_op"
            and each["ts"] <= other["ts"] <= each["ts"] + each["dur"]
            and "Input Dims" in other["args"]
        ]
        found[each["name"]] = counted[each["name"]], inside
    return found


def test_operators_have_the_flops_that_torch_counts(
    torch_counts: dict[str, tuple[int, list[Any]]],
) -> None:
    for name, (flops, events) in torch_counts.items():
        costs = [
            (event["name"], found.flops)
            for event in events
            if (
                found := known.cost(
                    Call.recorded(
                        event["name"],
                        *(
                            json.dumps(event["args"].get(key))
                            for key in ("Input Dims", "Input type", "Concrete Inputs")
                        ),
                    )
                )
            )
            and found.unit == "matrix"
        ]
        # The outermost operator and those that it calls say the same.
        assert costs, name
        assert {count for _, count in costs} == {flops}, name
