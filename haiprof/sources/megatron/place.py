"""A rank's position in Megatron's groups.

Tests: tests/sources/megatron/test_megatron.py.
"""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A rank's position in its groups, or the sizes of the groups; in the order of the names."""

    data: int
    pipeline: int
    tensor: int

    def rank(self, sizes: Place) -> int:
        """Return the global rank, in Megatron's default order."""
        return (self.pipeline * sizes.data + self.data) * sizes.tensor + self.tensor

    def __str__(self) -> str:
        """Format it as in the names of the files."""
        return f"data-{self.data}-pipeline-{self.pipeline}-tensor-{self.tensor}"
