"""A stretch of time in which a clock ran evenly, and sequences of such stretches.

Tests: tests/views/clock/test_hosts.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from haiprof.views.clock.bounds import Reals
from haiprof.views.clock.polygon import outermost
from haiprof.views.intervals import Times


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time in which a clock ran evenly.

    ``base + a + b * (time - origin)`` (ns, of the reference's time) is how far it was ahead;
    ``corners`` are the extreme (a, b) that the evidence allows; ``unseen`` (ns) is how far the
    clock may have been set meanwhile without showing.
    """

    since: int
    until: int
    origin: int
    base: int
    a: float
    b: float
    corners: Reals
    unseen: float = 0.0
    residual: Reals = field(default_factory=lambda: np.zeros(0))
    pairs: int = 0

    def ahead(self, time: Times) -> Times:
        """Return how far the clock is ahead of the reference at its times, in ns."""
        lead: Times = self.base + np.rint(self.a + self.b * (time - self.origin)).astype(np.int64)
        return lead

    def reference_time(self, local: Times) -> Times:
        """Return what the reference's clock showed at times of this one, in ns."""
        # local = t + base + a + b * (t - origin), solved for t.
        since = local - self.base - self.origin
        times: Times = self.origin + np.rint((since - self.a) / (1 + self.b)).astype(np.int64)
        return times

    def bound(self, time: Times) -> Times:
        """Return the maximum error of :meth:`ahead`, in ns."""
        at = (time - self.origin).astype(np.float64)
        reach = self.corners[:, :1] + self.corners[:, 1:] * at
        mine = self.a + self.b * at
        off = np.maximum(reach.max(0) - mine, mine - reach.min(0))
        error: Times = np.ceil(off + self.unseen).astype(np.int64) + 1
        return error


def chained(pieces: list[Piece], through: list[Piece]) -> list[Piece]:
    """Add a host's lead over another to that one's lead over the reference."""
    chain = []
    for piece in pieces:
        for part in through:
            # The other host's clock is that of its piece; both are close enough to the reference's.
            shift = int(part.ahead(np.array([part.since]))[0])
            since, until = piece.since - shift, piece.until - shift
            first = part is through[0]
            last = part is through[-1]
            low = since if first else max(since, part.since)
            high = until if last else min(until, part.until)
            if low > high:
                continue
            moved = piece.b * (part.origin + shift - piece.origin)
            mine = piece.corners + np.array([1.0, 0.0]) * piece.corners[:, 1:] * (
                part.origin + shift - piece.origin
            )
            sums = (mine[:, None, :] + part.corners[None, :, :]).reshape(-1, 2)
            chain.append(
                Piece(
                    low,
                    high,
                    part.origin,
                    piece.base + part.base,
                    piece.a + moved + part.a,
                    piece.b + part.b,
                    outermost(sums),
                    piece.unseen + part.unseen,
                    piece.residual,
                    piece.pairs,
                )
            )
    return chain
