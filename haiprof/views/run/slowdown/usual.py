"""What others usually take: what an operation takes once it is repaired.

Tests: tests/views/run/slowdown/test_data_parallel.py.
"""

from __future__ import annotations

import warnings
from typing import Final

import numpy as np

from haiprof.views.run.slowdown.graph import Reals

#: From this many ranks on, the median of all is as good as that of the others.
_MANY: Final = 16


def repaired(own: Reals) -> Reals:
    """Return for each rank what it takes if it is no slower than the others usually are.

    Args:
        own: of each rank (the first axis) what each thing takes; NaN where a rank has none.

    Returns:
        The same, at most the median of the others: what was faster than that stays as it is, and
        so does what no other rank has.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where no other rank has any
        if len(own) >= _MANY:
            return np.fmin(own, np.nanmedian(own, 0))
        usual = [np.nanmedian(np.delete(own, n, 0), 0) for n in range(len(own))]
    return np.where(np.isnan(own), np.nan, np.fmin(own, np.array(usual)))
