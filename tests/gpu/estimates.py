"""Means with 95 % confidence intervals, and whether a target is met, missed or undecided."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

#: The 97.5 % quantile of the normal distribution.
_NORMAL = 1.959963984540054


class Estimate(NamedTuple):
    """A mean, the ends of its 95 % interval (None when one value was all there was), and from how
    many values."""

    value: float
    low: float | None
    high: float | None
    values: int

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit."""
        return Estimate(
            self.value * factor,
            None if self.low is None else self.low * factor,
            None if self.high is None else self.high * factor,
            self.values,
        )


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; within 1 % from three degrees of freedom on."""
    if freedom < 1:
        raise ValueError("no degrees of freedom")
    if freedom <= 2:
        return (12.706, 4.303)[freedom - 1]
    z, v = _NORMAL, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of values and its interval.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("nothing was measured")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None, len(values))
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def added(during: Sequence[float], without: Sequence[float]) -> Estimate:
    """By how much, in percent, times are longer than the ones that they are paired with.

    Raises:
        ValueError: there are none, or not the same number of both.
    """
    return estimate([100 * (d / w - 1) for d, w in zip(during, without, strict=True)])


def difference(during: Sequence[float], without: Sequence[float]) -> Estimate:
    """By how much values are greater than the ones that they are paired with.

    Raises:
        ValueError: there are none, or not the same number of both.
    """
    return estimate([d - w for d, w in zip(during, without, strict=True)])


def at_most(found: Estimate, limit: float) -> bool | None:
    """Whether the whole interval lies within the limit; None when the limit lies in it."""
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    if high <= limit:
        return True
    return False if low > limit else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
