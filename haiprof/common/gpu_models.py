"""What vendors state about their GPUs: peaks of computing and of memory, by the driver's name.

FLOP/s are dense (without structured sparsity, for which vendors state twice as much), with fp32
accumulation, at the boost clock. Bandwidth is of the device's own memory. A GPU that is not in the
table, or has an unusual number of multiprocessors (a part of one, a special edition), is unknown:
it is never guessed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol


class Gpu(Protocol):
    """A GPU, as far as it matters here: that of a run's files, or of its recorder."""

    @property
    def uuid(self) -> str:
        """As its driver names it."""

    @property
    def name(self) -> str:
        """Its product, as its driver names it."""

    @property
    def memory_bytes(self) -> int | None:
        """Its own memory; None: not known."""

    @property
    def multiprocessors(self) -> int | None:
        """How many it has; None: not known."""


class Model(NamedTuple):
    """One product.

    ``name`` matches the driver's name; ``tera`` is TFLOP/s by type of the operands; ``giga`` the
    memory's bandwidth in GB/s of 10^9 bytes; ``architecture`` what its compilers call it. With
    ``most_memory`` (GB of 10^9 bytes), only GPUs with at most as much are of this model.
    """

    name: str
    multiprocessors: int | None
    tera: Mapping[str, float]
    giga: float | None
    architecture: str
    source: str
    most_memory: float | None = None


_A100: Final = {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312}
_H100: Final = {"fp64": 67, "fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9}
_H100_PCIE: Final = {"fp64": 51, "fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756, "fp8": 1513}
_B200: Final = {"fp64": 40, "fp32": 80, "tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500}
_GB200: Final = {"fp64": 45, "fp32": 90, "tf32": 1250, "bf16": 2500, "fp16": 2500, "fp8": 5000}
#: AMD's fp32 and fp64 are those of the matrix cores, which its libraries use for these types.
_MI300X: Final = {"fp64": 163.4, "fp32": 163.4, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9}

#: Location of NVIDIA's datasheets.
_NV: Final = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
_V100: Final = (
    "https://images.nvidia.com/content/technologies/volta/pdf/"
    "volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_A100_SHEET: Final = f"{_NV}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_A100_40: Final = f"{_NV}/a100/pdf/nvidia-a100-datasheet.pdf: 40 GB"
_HOPPER: Final = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_BLACKWELL: Final = "NVIDIA Blackwell Architecture Technical Brief"
_TORCHTITAN: Final = "torchtitan, get_peak_flops"

#: The first match counts. A figure is listed only if one of the documents named here states it.
MODELS: Final = (
    Model(r"V100S", 80, {"fp32": 16.4, "fp16": 130}, 1134, "sm_70", _V100),
    Model(r"V100.*SXM", 80, {"fp32": 15.7, "fp16": 125}, 900, "sm_70", _V100),
    Model(r"V100.*PCIE", 80, {"fp32": 14, "fp16": 112}, 900, "sm_70", _V100),
    Model(
        r"\bT4\b", 40, {"fp32": 8.1, "fp16": 65}, 320, "sm_75",
        f"{_NV}/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    ),
    Model(r"\bA100\b.*80GB.*PCIe|\bA100\b.*PCIe.*80GB", 108, _A100, 1935, "sm_80", _A100_SHEET),
    Model(r"\bA100\b.*80GB", 108, _A100, 2039, "sm_80", _A100_SHEET),
    Model(r"\bA100\b", 108, _A100, 1555, "sm_80", _A100_40, most_memory=48),
    Model(r"\bA100\b", 108, _A100, None, "sm_80", _A100_SHEET),
    Model(
        r"\bA30\b", 56, {"fp64": 10.3, "tf32": 82, "bf16": 165, "fp16": 165}, 933, "sm_80",
        f"{_NV}/products/a30-gpu/pdf/a30-datasheet.pdf",
    ),
    Model(
        r"\bA40\b", 84, {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7}, 696, "sm_86",
        "https://images.nvidia.cn/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf",
    ),
    Model(
        r"\bA10\b", 72, {"fp32": 31.2, "tf32": 62.5, "bf16": 125, "fp16": 125}, 600, "sm_86",
        f"{_NV}/a10/pdf/a10-datasheet.pdf",
    ),
    Model(
        r"\bRTX A6000\b", 84, {"fp32": 38.7, "bf16": 154.8, "fp16": 154.8}, 768, "sm_86",
        f"{_TORCHTITAN}; NVIDIA RTX A6000 datasheet (memory)",
    ),
    Model(
        r"\bRTX 3090$", 82, {"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71}, 936, "sm_86",
        "NVIDIA Ampere GA102 GPU Architecture white paper, appendix A",
    ),
    Model(
        r"\bRTX 4090$", 128, {"fp32": 82.6, "bf16": 165.2, "fp16": 165.2}, 1008, "sm_89",
        "NVIDIA Ada GPU Architecture white paper, appendix A",
    ),
    Model(
        r"\bL4\b", 58, {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242.5}, 300,
        "sm_89",
        "https://www.nvidia.com/en-us/data-center/l4/, where twice as much is named: with sparsity",
    ),
    Model(
        r"\bL40S\b", 142, {"fp32": 91.6, "tf32": 183, "bf16": 362.05, "fp16": 362.05, "fp8": 733},
        864, "sm_89", "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413",
    ),
    Model(
        r"\bL40\b", 142, {"fp32": 90.5, "tf32": 90.5, "bf16": 181.05, "fp16": 181.05, "fp8": 362},
        864, "sm_89", "https://www.nvidia.com/en-us/data-center/l40/",
    ),
    Model(
        r"\bH20\b", 78, {"fp32": 44, "tf32": 74, "bf16": 148, "fp16": 148, "fp8": 296}, 4000,
        "sm_90", f"NVIDIA H20 product brief; {_TORCHTITAN}",
    ),
    Model(
        r"\bH100 NVL\b", 132, {"bf16": 835.5, "fp16": 835.5}, 3900, "sm_90",
        f"{_TORCHTITAN}; {_HOPPER} (memory)",
    ),
    Model(r"\bH100 PCIe\b", 114, _H100_PCIE, 2000, "sm_90", _HOPPER),
    Model(
        r"\bH800\b(?! PCIe)", 132, {"bf16": 989.4, "fp16": 989.4, "fp8": 1978.9}, 3350, "sm_90",
        "NVIDIA H800 GPU Datasheet",
    ),
    # With NVLink bridges (NVL) the clock differs.
    Model(
        r"\bGH200\b(?! NVL)", 132, _H100, 4000, "sm_90",
        "NVIDIA GH200 Grace Hopper Superchip datasheet: 96 GB of HBM3", most_memory=104,
    ),
    Model(
        r"\bGH200\b(?! NVL)", 132, _H100, None, "sm_90",
        "NVIDIA GH200 Grace Hopper Superchip datasheet",
    ),
    Model(
        r"\bH200\b(?! NVL)", 132, _H100, 4800, "sm_90",
        "https://www.nvidia.com/en-us/data-center/h200/",
    ),
    Model(r"\bH100\b(?! NVL)", 132, _H100, 3350, "sm_90", _HOPPER),
    Model(
        r"\bGB200\b", 152, _GB200, 8000, "sm_100", f"{_BLACKWELL}: a half of a superchip"
    ),
    Model(r"\bB200\b", 148, _B200, 8000, "sm_100", f"{_BLACKWELL}: HGX B200"),
    Model(
        r"\bMI100\b", 120, {"fp32": 46.1, "bf16": 92.3, "fp16": 184.6}, 1228.8, "gfx908",
        "AMD Instinct MI100 data sheet",
    ),
    Model(
        r"\bMI210\b", 104, {"fp64": 45.3, "fp32": 45.3, "bf16": 181, "fp16": 181}, 1638.4,
        "gfx90a", "AMD Instinct MI210 data sheet",
    ),
    Model(
        r"\bMI250X\b", None, {"fp32": 47.9, "bf16": 191.5, "fp16": 191.5}, 1638.4, "gfx90a",
        f"{_TORCHTITAN}; AMD Instinct MI250X data sheet: one die",
    ),
    Model(
        r"\bMI250\b", 104, {"fp32": 45.3, "bf16": 181, "fp16": 181}, 1638.4, "gfx90a",
        "AMD Instinct MI250 data sheet: one die",
    ),
    Model(
        r"\bMI300A\b", 228, {"fp32": 122.6, "bf16": 980.6, "fp16": 980.6, "fp8": 1961.2}, 5300,
        "gfx942", "AMD Instinct MI300A data sheet",
    ),
    Model(r"\bMI300X\b", 304, _MI300X, 5300, "gfx942", "AMD Instinct MI300X data sheet"),
    Model(r"\bMI325X\b", 304, _MI300X, 6000, "gfx942", "AMD Instinct MI325X data sheet"),
    Model(
        r"\bMI355X\b", 256, {"fp32": 157.3, "bf16": 2516.6, "fp16": 2516.6, "fp8": 5033.2}, 8000,
        "gfx950", "AMD Instinct MI355X data sheet",
    ),
)  # fmt: skip


def model(gpu: Gpu) -> tuple[Model | None, str]:
    """Return what is known of a GPU, or None and the reason, as the end of a sentence.

    Args:
        gpu: as its driver describes it.
    """
    if "MIG" in gpu.uuid.upper() or "MIG" in gpu.name.upper().split():
        return None, f"{gpu.name} is used in part (MIG), and its peak is not known"
    found = next((each for each in _named(gpu.name) if _fits(each, gpu)), None)
    if found is None:
        return None, f"the peak of {gpu.name or 'a GPU without a name'} is not known"
    usual = found.multiprocessors
    if gpu.multiprocessors and usual and gpu.multiprocessors != usual:
        return None, (
            f"this {gpu.name} has {gpu.multiprocessors} multiprocessors, not {usual}, so its peak "
            "is not known"
        )
    return found, ""


@functools.lru_cache(64)
def _named(name: str) -> tuple[Model, ...]:
    return tuple(each for each in MODELS if re.search(each.name, name, re.IGNORECASE))


def _fits(each: Model, gpu: Gpu) -> bool:
    if each.most_memory is None:
        return True
    return gpu.memory_bytes is not None and gpu.memory_bytes <= each.most_memory * 1e9


def peak_bandwidth(gpu: Gpu) -> float | None:
    """Return the peak of a GPU's memory in B/s; None if it is not known."""
    found, _ = model(gpu)
    return None if found is None or found.giga is None else found.giga * 1e9
