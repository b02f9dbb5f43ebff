"""What bounds how far one host's clock is ahead of another's, at each time that something tells.

Tests: tests/views/clock/test_hosts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

Reals = npt.NDArray[np.float64]

#: What the two times of an interval may be off by together: traces in whole microseconds, and
#: device times that were mapped to the host's.
SLACK: Final = 2_000

Side: TypeAlias = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class Points:
    """What bounds an offset at a time, as floats: times from ``origin``, offsets from ``base``.

    ``middle`` is the estimate, and ``begun`` the time of the host's own clock that ``low`` is made
    of, less ``origin`` and ``base``; NaN where there is none.
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
    """Say whether anything tells an upper bound, and anything a lower one."""
    return bool(np.isfinite(points.low).any() and np.isfinite(points.high).any())


def points_between(both: pl.DataFrame, sent: pl.DataFrame, host: str, other: str) -> Points | None:
    """Return what bounds how far ``host`` is ahead of ``other``, by the time of ``other``.

    Args:
        both: the meetings of the two, one row for each: columns of
            :data:`~haiprof.views.clock.together.MEETINGS` of ``other``, and with ``_host`` those
            of ``host``.
        sent: the messages of all hosts.
        host: whose clock is asked for.
        other: whose clock it is held against.
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
    """Return what messages of one direction tell, as :func:`_points` takes it."""
    known = bound.to_numpy()
    low, most = (
        (np.full(len(known), -np.inf), known) if high else (known, np.full(len(known), np.inf))
    )
    none = np.full(len(known), np.nan)
    return time.to_numpy(), low, most, none, none


def _points(sides: list[Side]) -> Points | None:
    """Put points together by time: of each time, low, high, middle and begun (int64 or float)."""
    time = np.concatenate([side[0] for side in sides])
    if not len(time):
        return None
    origin = int(time.min())
    times = [values for side in sides for values in side[1:3] if values.dtype.kind == "i"]
    base = int(np.median(np.concatenate(times)))
    order = np.argsort(time, kind="stable")
    # Whole numbers first: an epoch in ns is more than a float holds.
    columns = []
    for column, less in ((0, origin), (1, base), (2, base), (3, base), (4, base + origin)):
        parts = [side[column] for side in sides]
        columns.append(np.concatenate([(part - less).astype(np.float64) for part in parts])[order])
    return Points(origin, base, *columns)
