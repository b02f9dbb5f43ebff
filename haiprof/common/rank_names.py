"""Ranks as they are named in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: More are counted.
_NAMED: Final = 8


def ranks_named(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0, 1``, or the first eight and how many more there are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"
