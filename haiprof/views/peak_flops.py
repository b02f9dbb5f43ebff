"""A GPU's peak floating-point operations per second, according to its vendor.

Dense (without structured sparsity, for which vendors state twice as much), with fp32 accumulation,
at the boost clock. A GPU that is not in the table, or has an unusual number of multiprocessors (a
part of one, a special edition), has no peak here: it is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from haiprof.runs import Gpu


class _Model(NamedTuple):
    """One product: ``name`` matches the driver's name; TFLOP/s by type of the operands."""

    name: str
    multiprocessors: int | None
    tera: Mapping[str, float]
    source: str


_H100: Final = {"fp64": 67, "fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9}
_H100_PCIE: Final = {"fp64": 51, "fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756, "fp8": 1513}
_B200: Final = {"fp64": 40, "fp32": 80, "tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500}
_GB200: Final = {"fp64": 45, "fp32": 90, "tf32": 1250, "bf16": 2500, "fp16": 2500, "fp8": 5000}

#: Location of NVIDIA's datasheets.
_NV: Final = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
_V100: Final = (
    "https://images.nvidia.com/content/technologies/volta/pdf/"
    "volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_HOPPER: Final = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_BLACKWELL: Final = "NVIDIA Blackwell Architecture Technical Brief"
_TORCHTITAN: Final = "torchtitan, get_peak_flops"

#: The first match counts. A type is listed only if one of the documents named here states it.
_MODELS: Final = (
    _Model(r"V100S", 80, {"fp32": 16.4, "fp16": 130}, _V100),
    _Model(r"V100.*SXM", 80, {"fp32": 15.7, "fp16": 125}, _V100),
    _Model(r"V100.*PCIE", 80, {"fp32": 14, "fp16": 112}, _V100),
    _Model(
        r"\bT4\b", 40, {"fp32": 8.1, "fp16": 65},
        f"{_NV}/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    ),
    _Model(
        r"\bA100\b", 108, {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
        f"{_NV}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    ),
    _Model(
        r"\bA30\b", 56, {"fp64": 10.3, "tf32": 82, "bf16": 165, "fp16": 165},
        f"{_NV}/products/a30-gpu/pdf/a30-datasheet.pdf",
    ),
    _Model(
        r"\bA40\b", 84, {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7},
        "https://images.nvidia.cn/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf",
    ),
    _Model(
        r"\bA10\b", 72, {"fp32": 31.2, "tf32": 62.5, "bf16": 125, "fp16": 125},
        f"{_NV}/a10/pdf/a10-datasheet.pdf",
    ),
    _Model(r"\bRTX A6000\b", 84, {"fp32": 38.7, "bf16": 154.8, "fp16": 154.8}, _TORCHTITAN),
    _Model(
        r"\bRTX 3090$", 82, {"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71},
        "NVIDIA Ampere GA102 GPU Architecture white paper, appendix A",
    ),
    _Model(
        r"\bRTX 4090$", 128, {"fp32": 82.6, "bf16": 165.2, "fp16": 165.2},
        "NVIDIA Ada GPU Architecture white paper, appendix A",
    ),
    _Model(
        r"\bL4\b", 58, {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242.5},
        "https://www.nvidia.com/en-us/data-center/l4/, where twice as much is named: with sparsity",
    ),
    _Model(
        r"\bL40S\b", 142, {"fp32": 91.6, "tf32": 183, "bf16": 362.05, "fp16": 362.05, "fp8": 733},
        "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413",
    ),
    _Model(
        r"\bL40\b", 142, {"fp32": 90.5, "tf32": 90.5, "bf16": 181.05, "fp16": 181.05, "fp8": 362},
        "https://www.nvidia.com/en-us/data-center/l40/",
    ),
    _Model(
        r"\bH20\b", 78, {"fp32": 44, "tf32": 74, "bf16": 148, "fp16": 148, "fp8": 296},
        "NVIDIA H20 product brief; torchtitan, get_peak_flops",
    ),
    _Model(r"\bH100 NVL\b", 132, {"bf16": 835.5, "fp16": 835.5}, _TORCHTITAN),
    _Model(r"\bH100 PCIe\b", 114, _H100_PCIE, _HOPPER),
    _Model(
        r"\bH800\b(?! PCIe)", 132, {"bf16": 989.4, "fp16": 989.4, "fp8": 1978.9},
        "NVIDIA H800 GPU Datasheet",
    ),
    # With NVLink bridges (NVL) the clock differs.
    _Model(r"\b(H100|H200|GH200)\b(?! NVL)", 132, _H100, _HOPPER),
    _Model(r"\bGB200\b", 152, _GB200, f"{_BLACKWELL}: a half of a superchip"),
    _Model(r"\bB200\b", 148, _B200, f"{_BLACKWELL}: HGX B200"),
    _Model(r"\bMI250X\b", None, {"bf16": 191.5, "fp16": 191.5}, f"{_TORCHTITAN}: one die"),
    _Model(
        r"\bMI300X\b", None, {"fp32": 163.4, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9},
        "AMD Instinct MI300X data sheet",
    ),
)  # fmt: skip

_ALIASES: Final = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
}
_FIX: Final = "give the option peak_flops"


def spelled(dtype: str) -> str:
    """Return the short name of a type: ``bf16`` for ``torch.bfloat16``."""
    plain = dtype.lower().removeprefix("torch.")
    return "fp8" if plain.startswith("float8") else _ALIASES.get(plain, plain)


def peak(gpu: Gpu, dtype: str) -> tuple[float | None, str]:
    """Return one GPU's peak (FLOP/s), or None and the reason with its fix.

    Args:
        gpu: as the run describes it.
        dtype: type of the operands, as :func:`spelled` returns it.
    """
    if "MIG" in gpu.uuid.upper() or "MIG" in gpu.name.upper().split():
        return None, f"{gpu.name} is used in part (MIG), and its peak is not known: {_FIX}"
    model = next((m for m in _MODELS if re.search(m.name, gpu.name, re.IGNORECASE)), None)
    if model is None:
        return None, f"the peak of {gpu.name or 'a GPU without a name'} is not known: {_FIX}"
    usual = model.multiprocessors
    if gpu.multiprocessors and usual and gpu.multiprocessors != usual:
        return None, (
            f"this {gpu.name} has {gpu.multiprocessors} multiprocessors, not {usual}, so its peak "
            f"is not known: {_FIX}"
        )
    tera = model.tera.get(dtype)
    if tera is None:
        return None, f"the peak of {gpu.name} for {dtype} is not known: {_FIX}"
    return tera * 1e12, ""


def mixed_peak(gpu: Gpu, flops: Mapping[str, float]) -> tuple[float | None, str]:
    """Return a GPU's peak (FLOP/s) for a mixture of types, executed one after another.

    Args:
        gpu: as the run describes it.
        flops: operations by type; not all 0.
    """
    seconds = 0.0
    for dtype, count in flops.items():
        if count <= 0:
            continue
        known, why = peak(gpu, spelled(dtype))
        if known is None:
            return None, why
        seconds += count / known
    return sum(flops.values()) / seconds, ""
