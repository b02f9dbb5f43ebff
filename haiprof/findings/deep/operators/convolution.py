"""Why convolutions are slow.

Tests: tests/findings/deep/operators/test_problems.py.
"""

from __future__ import annotations

import re
from typing import Final

from haiprof.findings.deep.operators.case import Operator, Problem, Rule, by

#: Inputs with fewer channels leave parts of matrix units without work, which take 8 at a time in
#: half precision.
_CHANNELS: Final = 8
_TRANSPOSING: Final = re.compile(r"(?i)transpos|nchw_?to_?nhwc|nhwc_?to_?nchw")


def _depthwise(each: Operator) -> Problem | None:
    s = each.cost.sizes
    if s["groups"] < 2 or not (each.slow or each.structural):
        return None
    channels = s["channels_in"] // s["groups"]
    if channels == 1:
        problem = (
            f"a depthwise convolution of {s['channels_in']} channels computes "
            f"{each.intensity} FLOP per byte: matrix units have nothing to multiply"
        )
    else:
        problem = (
            f"a convolution in {s['groups']} groups has {channels} input channels in each: too few "
            "for matrix units"
        )
    return Problem(
        "grouped_convolution",
        problem,
        "store activations in channels_last, fuse the operators around it (torch.compile), or use "
        "fewer groups or an ordinary convolution, which is often as fast",
    )


def _transposed(each: Operator) -> Problem | None:
    if not each.slow or not _TRANSPOSING.search(str(each.row["kernel"])):
        return None
    return Problem(
        "convolution_layout",
        "a convolution spends more time on changing the order of its data than on computing",
        "store the model and its inputs in torch.channels_last, so that no copies are needed",
    )


def _few_channels(each: Operator) -> Problem | None:
    s = each.cost.sizes
    if not each.slow or s["channels_in"] >= _CHANNELS:
        return None
    return Problem(
        "few_channels",
        f"a convolution of {s['pixels_in']} pixels with {s['channels_in']} input channels leaves "
        "most of the matrix units without work",
        f"move pixels into channels before it (pixel_unshuffle, patches), pad to {_CHANNELS} "
        "channels, or use channels_last with half precision",
    )


def _few_blocks(each: Operator) -> Problem | None:
    if not each.slow or not each.few_blocks:
        return None
    return Problem(
        "few_blocks",
        f"{each.blocks} blocks are too few for the {each.multiprocessors} of the device",
        "give it more to do at once: a larger batch, or several such operators in one; "
        "torch.compile can choose kernels that divide the work further",
    )


def _pointwise(each: Operator) -> Problem | None:
    s = each.cost.sizes
    if not each.slow or s["taps"] != 1:
        return None
    rows = s["batch"] * s["pixels_out"]
    return Problem(
        "pointwise_convolution",
        f"a {by(1, 1)} convolution, which multiplies {by(rows, s['channels_in'])} by "
        f"{by(s['channels_in'], s['channels_out'])} in {each.cost.type}, reaches {each.reached}",
        "store activations in channels_last, so that it is a plain matrix multiplication (or call "
        "linear), use half precision (torch.autocast), or let the library choose the kernel "
        "(torch.backends.cudnn.benchmark)",
    )


def _slow_convolution(each: Operator) -> Problem | None:
    if not each.slow:
        return None
    s = each.cost.sizes
    dilated = f", dilated by {s['dilation']}," if s.get("dilation", 1) > 1 else ""
    return Problem(
        "slow_convolution",
        f"a convolution of {s['channels_in']} by {s['channels_out']} channels and {s['taps']} "
        f"taps{dilated} in {each.cost.type} reaches {each.reached}",
        "use channels_last and half precision (torch.autocast), and let the library choose the "
        "kernel (torch.backends.cudnn.benchmark=True)",
    )


RULES: Final[tuple[Rule, ...]] = (
    _depthwise,
    _transposed,
    _few_channels,
    _few_blocks,
    _pointwise,
    _slow_convolution,
)
