"""The lines that fit between bounds: the corners (a, b) of the polygon of all of them.

Tests: tests/views/clock/test_hosts.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from haiprof.views.clock.bounds import Points, Reals

#: No computer's clock gains or loses more; the kernel slews one by no more than this.
DRIFT: Final = 500e-6


def corners_of(points: Points) -> Reals | None:
    """Return the corners (a, b) of all lines between the points; None if there is no such line.

    For a slope ``b`` the line may begin between ``g(b) = max(low - b t)`` and
    ``f(b) = min(high - b t)``; the one is convex, the other concave, and their corners are at the
    slopes of the hulls of the points.
    """
    upper, lower = np.isfinite(points.high), np.isfinite(points.low)
    if not upper.any() or not lower.any():
        return None
    above = hull(points.time[upper], points.high[upper])
    below = hull(points.time[lower], -points.low[lower])
    breaks = np.concatenate((_edges(above), -_edges(below), np.array([-DRIFT, DRIFT])))
    slopes = np.unique(breaks[np.abs(breaks) <= DRIFT])

    def most(b: Reals) -> Reals:
        bound: Reals = (above[:, 1:] - above[:, :1] * b).min(0)
        return bound

    def least(b: Reals) -> Reals:
        bound: Reals = (-below[:, 1:] - below[:, :1] * b).max(0)
        return bound

    room = most(slopes) - least(slopes)
    if float(room.max()) < 0:
        return None
    inside = np.flatnonzero(room >= 0)
    found = [slopes[inside]]
    for at, beyond in ((inside[0], inside[0] - 1), (inside[-1], inside[-1] + 1)):
        if 0 <= beyond < len(slopes):
            part = room[at] / (room[at] - room[beyond])
            found.append(np.array([slopes[at] + part * (slopes[beyond] - slopes[at])]))
    b = np.concatenate(found)
    return np.column_stack((np.concatenate((most(b), least(b))), np.concatenate((b, b))))


def hull(time: Reals, value: Reals) -> Reals:
    """Return the lower convex hull of points, by time."""
    order = np.lexsort((value, time))
    x, y = time[order], value[order]
    lowest = np.append(True, x[1:] != x[:-1])[: len(x)]
    x, y = _without_most_inner(x[lowest], y[lowest])
    corners: list[tuple[float, float]] = []
    for at, low in zip(x.tolist(), y.tolist(), strict=True):
        while len(corners) > 1 and (corners[-1][1] - corners[-2][1]) * (at - corners[-2][0]) >= (
            low - corners[-2][1]
        ) * (corners[-1][0] - corners[-2][0]):
            corners.pop()
        corners.append((at, low))
    return np.array(corners)


def _without_most_inner(x: Reals, y: Reals) -> tuple[Reals, Reals]:
    """Leave out points that are no corners, as long as they are many: not below their neighbours.

    No corner is on or above the line between any two points around it.
    """
    while len(x) > 2:
        above = (y[1:-1] - y[:-2]) * (x[2:] - x[:-2]) >= (y[2:] - y[:-2]) * (x[1:-1] - x[:-2])
        kept = np.append(np.append(True, ~above), True)
        few = 4 * np.count_nonzero(above) < len(x)
        x, y = x[kept], y[kept]
        if few:
            break
    return x, y


def _edges(hull: Reals) -> Reals:
    slopes: Reals = np.diff(hull[:, 1]) / np.diff(hull[:, 0])
    return slopes


def outermost(corners: Reals) -> Reals:
    """Keep the corners that are not inside the polygon of the others."""
    a, b = corners[:, 0], corners[:, 1]
    low, high = hull(b, a), hull(b, -a)
    return np.concatenate((low[:, ::-1], high[:, ::-1] * np.array([-1.0, 1.0])))
