"""The part of a matrix that one block of a kernel computes, if the kernel's name says.

cuBLAS and Tensile see matrices by columns, torch by rows: the first side of their tile lies along
torch's N.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Tile(NamedTuple):
    """Rows and columns of the result that one block computes; ``splits`` blocks share K."""

    m: int
    n: int
    splits: int


_SPLITS: Final = (
    re.compile(r"_GSU(\d{1,4})(?=_|$)"),
    re.compile(r"(?i)split_?k_?(\d{1,4})(?=_|$)"),
)
#: Names with the tile as columns by rows of torch's matrix.
_TILES: Final = (
    # Tensile: macro tile, of AMD's libraries.
    re.compile(r"^Cijk_.*_MT(\d{1,4})x(\d{1,4})x\d"),
    # cuBLAS since Hopper, cuDNN and CUTLASS's generated kernels, cuBLAS before.
    re.compile(r"^nvjet_\w+?_(\d{1,4})x(\d{1,4})_\d"),
    re.compile(r"tilesize(\d{1,4})x(\d{1,4})x\d"),
    re.compile(r"gemm\w*?_(\d{2,3})x(\d{2,3})(?=_|$)"),
)


def tile(kernel: str | None) -> Tile | None:
    """Return the tile that a kernel's name states; None if it states none."""
    for pattern in _TILES:
        found = pattern.search(kernel or "")
        if found and int(found[1]) and int(found[2]):
            splits = next((int(s[1]) for p in _SPLITS if (s := p.search(kernel or ""))), 1)
            return Tile(int(found[2]), int(found[1]), max(splits, 1))
    return None


def blocks(found: Tile, batch: int, m: int, n: int) -> int:
    """Return how many blocks a product of this size makes."""
    return batch * -(-m // found.m) * -(-n // found.n) * found.splits
