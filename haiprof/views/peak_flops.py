"""A GPU's peak floating-point operations per second, according to its vendor.

The figures, and what they mean, are in :mod:`haiprof.views.gpu_models`. A GPU that is not known has
no peak: it is never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from haiprof.runs import Gpu
from haiprof.views.gpu_models import model

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
    found, why = model(gpu)
    if found is None:
        return None, f"{why}: {_FIX}"
    tera = found.tera.get(dtype)
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
