"""One operator's recorded inputs, and what its formula says about them.

Tests: tests/views/trace/roofline/test_formulas.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from haiprof.common.element_types import BYTES, short

Shape: TypeAlias = tuple[int, ...]
#: A matrix unit multiplies its operands; everything else runs on the ordinary units.
Unit = Literal["matrix", "vector"]
#: More than this fits no column.
_MOST: Final = 2**63 - 1
_INTEGER: Final = re.compile(r"(?<!\d)-?\d{1,18}(?!\d)")
#: torch's numbers of element types (``c10/core/ScalarType.h``), as scalar inputs give them.
_SCALAR_TYPES: Final = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "fp16", 6: "fp32", 7: "fp64",
    9: "complex64", 10: "complex128", 11: "bool", 15: "bf16", 23: "fp8", 24: "fp8", 25: "fp8",
    26: "fp8",
}  # fmt: skip
#: Kernels over lists of tensors name their element type, those that only copy its size.
_OF_LIST: Final = re.compile(
    r"(?:Functor|Kernel)<(float|double|c10::Half|c10::BFloat16)\b|OpaqueType<(\d+)u?>"
)
_OF_SIZE: Final = {1: "uint8", 2: "bf16", 4: "fp32", 8: "int64"}


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: its shape, and its element type's short name (None: not known)."""

    shape: Shape
    type: str | None

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int | None:
        """Its size; None if its type is not known."""
        return None if self.type is None else self.elements * BYTES[self.type]


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What one call must compute and move at least.

    Attributes:
        kind: ``gemm``, ``convolution``, ``attention``, ….
        flops: floating-point operations, a multiplication and an addition each one; None where the
            inputs do not say.
        bytes: each input element that is needed read once, each output element written once.
        unit: what computes.
        type: of the operands.
        sizes: the dimensions that the formula used, by name.
        most_bytes: as ``bytes``, if which elements are needed depends on values that no trace has:
            the most that it can be.
    """

    kind: str
    flops: int | None
    bytes: int | None
    unit: Unit
    type: str | None
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    most_bytes: int | None = None


Formula: TypeAlias = "Callable[[Call], Cost | None]"


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """The inputs of an operator: for each its shape, type and (if it is no tensor) its value."""

    operator: str
    shapes: tuple[Any, ...]
    types: tuple[Any, ...]
    values: tuple[Any, ...]
    #: Element type of the tensors in lists, for which profilers record none.
    list_type: str | None = None

    @classmethod
    def recorded(
        cls,
        operator: str,
        shapes: str | None,
        types: str | None,
        inputs: str | None = None,
        kernel: str | None = None,
    ) -> Call:
        """Return the call that columns of spans describe.

        Args:
            operator: its name.
            shapes: JSON array, or None.
            types: likewise.
            inputs: likewise, the values.
            kernel: name of the longest kernel that it launched.
        """
        return cls(operator, _array(shapes), _array(types), _array(inputs), _list_type(kernel))

    def tensor(self, at: int) -> Tensor | None:
        """Return an input; None where there is none, or no tensor."""
        shape = self.shapes[at] if at < len(self.shapes) else None
        named = self.types[at] if at < len(self.types) else None
        kind = None if named is None else short(named)
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            return None
        # The shape of a number is empty as well; it has no element type.
        return Tensor(tuple(shape), kind) if shape or kind else None

    def tensors(self, at: int) -> list[Tensor] | None:
        """Return an input that is a list of tensors; None if their shapes were not recorded."""
        shapes = self.shapes[at] if at < len(self.shapes) else None
        if not isinstance(shapes, list) or not shapes:
            return None
        if not all(
            isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
            for shape in shapes
        ):
            return None
        return [Tensor(tuple(shape), self.list_type) for shape in shapes]

    def given(self, at: int) -> bool:
        """Say whether an input has a value or is a tensor: not None and not left out."""
        return self.tensor(at) is not None or self.text(at) not in (None, "", "None")

    def text(self, at: int) -> str | None:
        """Return the value of an input as a text; None if none was recorded."""
        return str(self.values[at]) if at < len(self.values) else None

    def flag(self, at: int) -> bool | None:
        """Return the value of a Boolean input."""
        return {"true": True, "false": False, "1": True, "0": False}.get(
            (self.text(at) or "").lower()
        )

    def numbers(self, at: int) -> Shape | None:
        """Return the value of an input that is an integer or a list of them."""
        found = _INTEGER.findall(self.text(at) or "")
        return tuple(int(n) for n in found) if found else None

    def flags(self, at: int) -> tuple[bool, ...] | None:
        """Return the value of a list of Booleans."""
        found = re.findall(r"true|false", (self.text(at) or "").lower())
        return tuple(word == "true" for word in found) if found else None

    def scalar_type(self, at: int) -> str | None:
        """Return the element type that an input's value names."""
        found = self.numbers(at)
        return _SCALAR_TYPES.get(found[0]) if found else None


def fits(*numbers: int | None) -> bool:
    """Say whether a column can contain these numbers."""
    return all(number is None or abs(number) <= _MOST for number in numbers)


def total(*parts: int | None) -> int | None:
    """Return the sum; None if a part is not known, or it is more than a column can contain."""
    summed = 0
    for part in parts:
        if part is None:
            return None
        summed += part
    return summed if fits(summed) else None


def size(*tensors: Tensor | None) -> int | None:
    """Return the bytes of tensors together; those that are None count nothing."""
    return total(*(each.bytes for each in tensors if each is not None))


def _array(text: str | None) -> tuple[Any, ...]:
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return ()
    return tuple(found) if isinstance(found, list) else ()


def _list_type(kernel: str | None) -> str | None:
    found = _OF_LIST.search(kernel or "")
    if found is None:
        return None
    return short(found[1]) if found[1] else _OF_SIZE.get(int(found[2]))
