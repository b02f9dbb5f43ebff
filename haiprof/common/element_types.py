"""Element types of tensors: one short name for each spelling of profilers, and its bytes."""

from __future__ import annotations

from typing import Final

#: Bytes of an element, by the type's short name.
BYTES: Final = {
    "fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
_NAMES: Final = {
    "double": "fp64", "float64": "fp64", "float": "fp32", "float32": "fp32", "bfloat16": "bf16",
    "half": "fp16", "float16": "fp16", "long": "int64", "long int": "int64", "long long": "int64",
    "int": "int32", "short": "int16", "char": "int8", "signed char": "int8", "byte": "uint8",
    "unsigned char": "uint8", "complexfloat": "complex64", "complexdouble": "complex128",
    "complex<float>": "complex64", "complex<double>": "complex128",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
}  # fmt: skip


def short(name: object) -> str | None:
    """Return a type's short name: ``bf16`` for ``c10::BFloat16``; None for what is no type."""
    plain = str(name).removeprefix("torch.").removeprefix("c10::").lower().removeprefix("dt_")
    if plain.startswith("float8"):
        return "fp8"
    found = _NAMES.get(plain, plain)
    return found if found in BYTES else None


def element_bytes(name: object) -> int | None:
    """Return the bytes of an element of a type; None for what is no type."""
    found = short(name)
    return None if found is None else BYTES[found]
