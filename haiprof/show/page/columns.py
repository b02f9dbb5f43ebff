"""Arrays as compact columns of the page: few bytes an item, differences of times, deflated.

A blob holds the columns of one section, so that the page inflates only what it shows. It is a raw
deflate stream as base64 (``DecompressionStream("deflate-raw")``).
"""

from __future__ import annotations

import base64
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from haiprof.show.page.document import Column, ColumnType

_TYPES: Final[dict[ColumnType, str]] = {
    "f32": "<f4", "f64": "<f8", "i32": "<i4", "u32": "<u4", "u16": "<u2", "u8": "u1",
}  # fmt: skip
#: Without the highest number, which stands for an absent value.
_UNSIGNED: Final[tuple[tuple[ColumnType, int], ...]] = (
    ("u8", 2**8 - 2),
    ("u16", 2**16 - 2),
    ("u32", 2**32 - 2),
)
_ALIGNMENT: Final = 8
#: Of a float32's 23 bits of fraction, those that are kept: four digits, and zeros deflate well.
_KEPT_BITS: Final = 14
_LEVELS: Final = 2**16 - 2
#: Whole numbers beyond this one are not exact in a float64, which is what the page sums in.
_EXACT: Final = 2**53
Numbers = npt.NDArray[Any]


class Columns:
    """Collects the columns of a document."""

    def __init__(self) -> None:
        """Start without a blob."""
        self._blobs: list[bytearray] = [bytearray()]

    def next_blob(self) -> None:
        """Let the columns that follow be in another blob than those before."""
        if self._blobs[-1]:
            self._blobs.append(bytearray())

    def encoded(self) -> list[str]:
        """Return the blobs as base64 of raw deflate."""
        return [_deflated(bytes(blob)) for blob in self._blobs]

    def times(self, seconds: Numbers, quantum: float = 1e-3) -> Column:
        """Add times, each to the nearest multiple of ``quantum`` seconds."""
        values = np.asarray(seconds, np.float64)
        if not np.isfinite(values).all():
            return self._add("f64", values)
        with np.errstate(over="ignore"):
            ticks = np.rint(values / quantum)
        if np.abs(ticks).max(initial=0) >= _EXACT:
            return self._add("f64", values)
        whole = ticks.astype(np.int64)
        differences = np.diff(whole, prepend=whole[:1])
        kind = _least_type(differences)
        if kind is None:
            return self._add("f64", values)
        column = self._add(kind, differences)
        column["delta"] = True
        column["scale"] = quantum
        column["offset"] = (int(whole[0]) if len(whole) else 0) * quantum
        return column

    def numbers(self, values: Numbers) -> Column:
        """Add values of four digits or more; NaN is an absent one."""
        with np.errstate(over="ignore", invalid="ignore"):
            exact = np.asarray(values, np.float32).copy()
        bits = exact.view(np.uint32)
        drop = 23 - _KEPT_BITS
        rounded = (bits + np.uint32(1 << (drop - 1))) & np.uint32(~((1 << drop) - 1) & 0xFFFFFFFF)
        # Rounding up may reach infinity, and a NaN may lose the bits that make it one.
        keep = np.isfinite(exact) & np.isfinite(rounded.view(np.float32))
        return self._add("f32", np.where(keep, rounded.view(np.float32), exact))

    def integers(self, values: Numbers) -> Column:
        """Add whole numbers in the fewest bytes that hold them."""
        whole = np.asarray(values).astype(np.int64)
        kind = _least_type(whole)
        return self._add("f64" if kind is None else kind, whole)

    def levels(self, values: Numbers) -> Column:
        """Add values on 65 534 levels from the least to the greatest; NaN is an absent one."""
        given = np.asarray(values, np.float64)
        present = np.isfinite(given)
        low = float(given[present].min()) if present.any() else 0.0
        high = float(given[present].max()) if present.any() else 0.0
        scale = (high - low) / _LEVELS
        if not np.isfinite(scale):  # the range of a float64 itself
            return self._add("f64", given)
        items = np.full(len(given), _LEVELS + 1, np.int64)
        # With differences near the least float there is, the quotient may be rounded up.
        level = np.minimum(np.rint((given[present] - low) / (scale or 1.0)), _LEVELS)
        items[present] = level.astype(np.int64)
        column = self._add("u16", items)
        column["scale"] = scale or 1.0
        column["offset"] = low
        return column

    def _add(self, kind: ColumnType, values: Numbers) -> Column:
        blob = self._blobs[-1]
        blob.extend(bytes(-len(blob) % _ALIGNMENT))
        at = len(blob)
        blob.extend(np.ascontiguousarray(values, _TYPES[kind]).tobytes())
        return {"type": kind, "blob": len(self._blobs) - 1, "at": at, "n": len(values)}


def _least_type(values: npt.NDArray[np.int64]) -> ColumnType | None:
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low >= 0:
        return next((kind for kind, most in _UNSIGNED if high <= most), None)
    return "i32" if low > -(2**31) and high < 2**31 else None


def _deflated(data: bytes) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")
