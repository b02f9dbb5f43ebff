"""Bounds on how far one host's clock is ahead of another's, at each time with evidence.

Tests: tests/views/clock/test_hosts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

Reals = npt.NDArray[np.float64]

#: Combined error of the two times of an interval: traces in whole microseconds, and device times
#: that were mapped to the host's.
SLACK: Final = 2_000

Side: TypeAlias = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class Points:
    """Bounds on an offset over time, as floats: times from ``origin``, offsets from ``base``.

    ``middle`` is the estimate, and ``begun`` the time of the host's own clock that ``low`` was
    computed from, less ``origin`` and ``base``; NaN if there is none.
    """

    origin: int
    base: int
    time: Reals
    low: Reals
    high: Reals
    middle: Reals
    begun: Reals

    def cut(self, first: int, last: int) -> Points:
        """Return the points of these rows."""
        part = slice(first, last)
        columns = (c[part] for c in (self.time, self.low, self.high, self.middle, self.begun))
        return Points(self.origin, self.base, *columns)


def two_sided(points: Points) -> bool:
    """Say whether there is any upper bound, and any lower one."""
    return bool(np.isfinite(points.low).any() and np.isfinite(points.high).any())


def points_between(both: pl.DataFrame, sent: pl.DataFrame, host: str, other: str) -> Points | None:
    """Return the bounds on how far ``host`` is ahead of ``other``, by the time of ``other``.

    Args:
        both: the meetings of the two, one row per meeting: columns of
            :data:`~haiprof.views.clock.together.MEETINGS` of ``other``, and with ``_host`` those
            of ``host``.
        sent: the messages of all hosts.
        host: the host whose clock is compared.
        other: the host that it is compared with.
    """
    both = both.sort("end")
    time = both["end"].to_numpy()
    low = (both["begun_host"] - both["ended"] - SLACK).to_numpy()
    high = (both["ended_host"] - both["begun"] + SLACK).to_numpy()
    middle = (both["end_host"] - both["end"]).to_numpy()
    to = sent.filter(pl.col("sender") == other, pl.col("receiver") == host)
    back = sent.filter(pl.col("sender") == host, pl.col("receiver") == other)
    sides = [
        (time, low, high, middle, both["begun_host"].to_numpy()),
        _one_way(to["sent"], to["received"] - to["sent"] + SLACK, high=True),
        _one_way(back["received"], back["sent"] - back["received"] - SLACK, high=False),
    ]
    return _points(sides)


def _one_way(time: pl.Series, bound: pl.Series, *, high: bool) -> Side:
    """Return the bounds from messages of one direction, as :func:`_points` takes them."""
    known = bound.to_numpy()
    low, most = (
        (np.full(len(known), -np.inf), known) if high else (known, np.full(len(known), np.inf))
    )
    none = np.full(len(known), np.nan)
    return time.to_numpy(), low, most, none, none


def _points(sides: list[Side]) -> Points | None:
    """Combine points by time: for each time, low, high, middle and begun (int64 or float)."""
    time = np.concatenate([side[0] for side in sides])
    if not len(time):
        return None
    origin = int(time.min())
    times = [values for side in sides for values in side[1:3] if values.dtype.kind == "i"]
    base = int(np.median(np.concatenate(times)))
    order = np.argsort(time, kind="stable")
    # Subtract as integers first: an epoch in ns exceeds a float's precision.
    columns = []
    for column, less in ((0, origin), (1, base), (2, base), (3, base), (4, base + origin)):
        parts = [side[column] for side in sides]
        columns.append(np.concatenate([(part - less).astype(np.float64) for part in parts])[order])
    return Points(origin, base, *columns)
