"""Whether slow steps are single ones, or all of a part of the run.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from haiprof.findings.recorded.case import Rank

#: Of the steps from the first to the last slow one, single ones are at most this share.
_SINGLE: Final = 0.5
_FEW: Final = 5


def scattered(rank: Rank) -> bool:
    """Say whether the slow steps of a rank are single ones."""
    at = np.flatnonzero(rank.slow.any(1))
    return len(at) < _FEW or len(at) < _SINGLE * (at[-1] - at[0] + 1)
