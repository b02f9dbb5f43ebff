"""A GPU's peak floating-point operations per second, according to its vendor.

The figures, and what they mean, are in :mod:`haiprof.common.gpu_models`. A GPU that is not known
has no peak: it is never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from haiprof.common.gpu_models import Gpu, model

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
        gpu: as its driver describes it.
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
        gpu: as its driver describes it.
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


def total_peak(
    gpus: Sequence[Gpu], flops: Mapping[str, float], given: float | None
) -> tuple[float | None, str]:
    """Return the peak (FLOP/s) of all GPUs of a process, or None and the reason with its fix.

    Args:
        gpus: those that it uses.
        flops: operations by type, as :func:`mixed_peak` takes them; empty: not known.
        given: per GPU (or per process without any), FLOP/s; None or 0: as vendors state.
    """
    if given:
        return given * max(len(gpus), 1), ""
    if not gpus:
        return None, "no GPU was used, whose peak would be known: give the option peak_flops"
    if not flops:
        return None, "the type of the multiplications is not known: set haiprof.model(dtype=…)"
    total = 0.0
    for gpu in gpus:
        one, why = mixed_peak(gpu, flops)
        if one is None:
            return None, why
        total += one
    return total, ""
