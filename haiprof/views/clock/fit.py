"""Divides bounds into as few stretches as possible, each with its line: offset and drift.

Tests: tests/views/clock/test_hosts.py.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from haiprof.views.clock.bounds import Points, Reals, two_sided
from haiprof.views.clock.piece import Piece
from haiprof.views.clock.polygon import DRIFT, corners_of

#: With fewer collectives, drift cannot be told from noise.
_FEWEST: Final = 8
#: A smaller step of a clock counts as noise of the ends.
_JUMP: Final = 5_000.0
#: A clock that seems to be set more often cannot be described by lines.
_MOST_PARTS: Final = 32
#: This many collectives before a jump are compared with as many after it.
_WINDOW: Final = 8


def pieces_of(points: Points) -> list[Piece] | str:
    """Divide time into as few pieces as the points allow, each with its line; or say why not."""
    pieces = []
    for part in _parts(points):
        piece = _piece(part)
        if piece is None:
            return (
                f"of {len(points.time)} collectives and messages some went one way only before or "
                "after its clock was set"
            )
        pieces.append(piece)
    if not pieces:
        return f"its {len(points.time)} collectives and messages contradict each other"
    bridged = [pieces[0]]
    for before, after in itertools.pairwise(pieces):
        bridged += [_bridge(before, after), after]
    return bridged


def _parts(points: Points) -> list[Points]:
    """Divide points where the clock was set; nothing if they contradict each other too often."""
    most = min(_MOST_PARTS, max(2, len(points.time) // 8))
    pending, parts = [points], []
    while pending:
        part = pending.pop()
        where = _divided(part)
        if where is None:
            parts.append(part)
        else:
            pending += [_after(part, where), part.cut(0, where)]
        if len(pending) + len(parts) > most:
            return []
    return parts


def _divided(points: Points) -> int | None:
    """Return the row before which the clock was set; None if one line fits, or none can."""
    where = _jump(points)
    if where is None and (corners_of(points) is not None or not two_sided(points)):
        return None
    if where is None:
        where = _contradiction(points)
    return where if 0 < where < len(points.time) else None


def _after(points: Points, where: int) -> Points:
    """Return the points from a row on, before which the clock was set.

    If a collective had begun by then, the host's beginning is on the old clock.
    """
    before = points.middle[max(0, where - _WINDOW) : where]
    after = points.middle[where : where + _WINDOW]
    if not (np.isfinite(before).any() and np.isfinite(after).any()):
        return points.cut(where, len(points.time))
    level = float(np.nanmedian(before))
    jump = float(np.nanmedian(after)) - level
    rest = points.cut(where, len(points.time))
    # The size of the step is known from the ends only: allow for their noise.
    room = -min(jump, 0.0) + abs(jump) / 10 + _JUMP
    old = rest.begun - level <= points.time[where]
    return replace(rest, low=np.where(old, rest.low - room, rest.low))


def _contradiction(points: Points) -> int:
    """Divide points that no single line fits: from the left, the longest run that one line fits."""
    good, bad = 1, len(points.time)
    while bad - good > 1:
        half = (good + bad) // 2
        part = points.cut(0, half)
        if corners_of(part) is not None or not two_sided(part):
            good = half
        else:
            bad = half
    return good


def _level(points: Points) -> tuple[npt.NDArray[np.intp], Reals, int, float]:
    """Return what the ends show without drift: rows, values, and when a jump in them shows.

    That is when the medians of this many values on either side differ by this many ns.
    """
    known = np.flatnonzero(np.isfinite(points.middle))
    count = len(known)
    wide = min(_WINDOW, count // 3)
    time, middle = points.time[known], points.middle[known]
    # One jump affects only an eighth of these slopes.
    slope = _slopes(time, middle, max(1, count // 8))[0] if count > 1 else 0.0
    level = middle - float(np.clip(slope, -DRIFT, DRIFT)) * time
    if wide < 2:
        # Too few to tell a jump from noise: the noise may be as large as their spread.
        return known, level, wide, float(np.ptp(level)) if count else 0.0
    noise = 1.4826 * float(np.median(np.abs(np.diff(level)))) / float(np.sqrt(2))
    return known, level, wide, max(_JUMP, (4 if wide == _WINDOW else 6) * noise)


def _jump(points: Points) -> int | None:
    """Return the first row after the clock was set, by the ends; None if it was not set."""
    known, level, wide, shows = _level(points)
    if wide < 2:
        return None
    windows = np.median(np.lib.stride_tricks.sliding_window_view(level, wide), 1)
    apart = np.abs(windows[wide:] - windows[:-wide])
    if float(apart.max()) <= shows:
        return None
    near = int(apart.argmax()) + wide
    low, high = max(0, near - wide), min(len(level), near + wide)
    window, before, after = level[low:high], windows[near - wide], windows[near]
    cost = [
        float(np.abs(window[:k] - before).sum() + np.abs(window[k:] - after).sum())
        for k in range(1, len(window))
    ]
    return int(known[low + 1 + int(np.argmin(cost))])


def _slopes(time: Reals, values: Reals, lag: int) -> tuple[float, float]:
    """Return the median slope between values ``lag`` apart, and its standard error."""
    run = time[lag:] - time[:-lag]
    rise = (values[lag:] - values[:-lag])[run > 0]
    run = run[run > 0]
    if not len(run):
        return 0.0, 0.0
    slope = rise / run
    middle = float(np.median(slope))
    return middle, 1.4826 * float(np.median(np.abs(slope - middle))) / float(np.sqrt(len(slope)))


def _piece(points: Points) -> Piece | None:
    """Return the line of points that belong together; None if they do not bound one."""
    corners = corners_of(points)
    if corners is None:
        low, high = (c[np.isfinite(c)] for c in (points.low, points.high))
        if not len(low) or not len(high):
            return None
        # No line fits: take the whole range that they allow.
        corners = np.array([[min(low.min(), high.min()), 0.0], [max(low.max(), high.max()), 0.0]])
    since, until = float(points.time[0]), float(points.time[-1])
    known = np.isfinite(points.middle)
    time, middle = points.time[known], points.middle[known]
    if len(middle):
        b, error = _slopes(time, middle, max(1, len(middle) // 2))
        if len(middle) < _FEWEST or abs(b) < 3 * error:
            b = 0.0
        b = float(np.clip(b, corners[:, 1].min(), corners[:, 1].max()))
        a = float(np.median(middle - b * time))
    else:
        # Halfway between the extreme lines, at both ends.
        reach = corners[:, :1] + corners[:, 1:] * np.array([since, until])
        halfway = (reach.max(0) + reach.min(0)) / 2
        b = float((halfway[1] - halfway[0]) / (until - since)) if until > since else 0.0
        a = float(halfway[0]) - b * since
    ahead = corners[:, 0] + (corners[:, 1] - b) * (since + until) / 2
    a = float(np.clip(a, ahead.min(), ahead.max()))
    off = middle - a - b * time
    unseen = _unseen_by_ends(points, off) if len(middle) else _unseen_by_messages(points, a, b)
    return Piece(
        points.origin + int(since),
        points.origin + int(until),
        points.origin,
        points.base,
        a,
        b,
        corners,
        unseen,
        np.abs(off),
        len(points.time),
    )


def _unseen_by_ends(points: Points, off: Reals) -> float:
    """Return how far a clock can have strayed from its line without a jump in the ends, in ns.

    Args:
        points: the line was fitted to these.
        off: distance of the ends from the line, by time.
    """
    _, _, wide, shows = _level(points)
    if wide < 2:
        return shows
    away = np.median(np.lib.stride_tricks.sliding_window_view(off, wide), 1)
    return max(shows, float(np.abs(away).max()))


def _unseen_by_messages(points: Points, a: float, b: float) -> float:
    """Return how far a clock can have strayed from its line unnoticed between messages, in ns.

    If a clock was set by less than the messages leave open, some lines fit both before and after.
    Only messages over a while show where it was.
    """
    line = a + b * points.time
    unseen = 0.0
    for room in (points.high - line, line - points.low):
        known = room[np.isfinite(room)]
        wide = max(1, min(2 * _WINDOW, len(known) // 4))
        windows = np.lib.stride_tricks.sliding_window_view(known, wide).min(1)
        unseen = max(unseen, float(windows.max()))
    return unseen


def _bridge(before: Piece, after: Piece) -> Piece:
    """Return the possible clock readings while it was being set: as before, or as after."""
    since, until = before.until, after.since
    ends = np.array([since, until])
    reach = []
    for piece in (before, after):
        ahead, bound = piece.ahead(ends), piece.bound(ends)
        reach += [ahead - bound, ahead + bound]
    base = int(reach[0][0])
    low = np.min([r - base for r in reach], 0).astype(np.float64)
    high = np.max([r - base for r in reach], 0).astype(np.float64)
    length = float(max(until - since, 1))
    lines = [
        (first, (last - first) / length)
        for first in (low[0], high[0])
        for last in (low[1], high[1])
    ]
    middle = (low + high) / 2
    return Piece(
        since,
        until,
        since,
        base,
        float(middle[0]),
        float(middle[1] - middle[0]) / length,
        np.array(lines),
    )
