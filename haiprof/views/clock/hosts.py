"""The clocks of all hosts of a run against that of one, directly or through others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from haiprof.views.clock.bounds import Points, points_between, two_sided
from haiprof.views.clock.fit import pieces_of
from haiprof.views.clock.piece import Piece, chained
from haiprof.views.clock.rows import SCHEMA, own_check, rows_of
from haiprof.views.intervals import Times

#: For collectives of an unknown group, the ends may disagree by this share of their slack.
_DISAGREE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of all hosts of a run against one of them.

    ``frame`` has a row per host and piece: ``node``, ``since`` and ``until`` (time of the
    reference), ``offset`` (ns that it is ahead at ``since``), ``drift`` (ppm that it gains),
    ``bound`` (ns: the maximum error of the correction between the two; null if unknown),
    ``residual`` and ``residual_p99`` (ns: median and 99th percentile of the distance between the
    ends of collectives after correction), ``pairs`` (collectives and messages used), ``corrected``
    and ``how`` (words).
    """

    reference: str | None
    frame: pl.DataFrame
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict)

    def corrected(self, host: str, times: Times) -> Times:
        """Convert times of a host's clock to the reference's clock, in ns.

        Times of the reference, and of a host of unknown offset, are returned unchanged. A clock
        that was set back showed some times twice: they are taken for the first.
        """
        pieces = self.pieces.get(host, ())
        if not pieces or not len(times):
            return times
        ends = [piece.until + int(piece.ahead(np.array([piece.until]))[0]) for piece in pieces]
        which = np.searchsorted(np.maximum.accumulate(ends[:-1]), times)
        result = np.empty(len(times), np.int64)
        for number, piece in enumerate(pieces):
            mine = which == number
            result[mine] = piece.reference_time(times[mine])
        return result

    def applied(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame with the times in its columns ``start``, ``end`` and ``time`` corrected.

        ``node`` names the clock of each row. A duration beside the times stays as measured.
        """
        columns = [name for name in ("start", "end", "time") if name in frame.columns]
        if not self.pieces or not frame.height or not columns:
            return frame
        nodes = frame["node"].cast(pl.String)
        # A null would turn them into floats, which cannot represent a time to the ns.
        times = {name: frame[name].fill_null(0).to_numpy().copy() for name in columns}
        for node in set(nodes.to_list()) & set(self.pieces):
            mine = (nodes == node).to_numpy()
            for values in times.values():
                values[mine] = self.corrected(node, values[mine])
        return frame.with_columns(
            pl.when(pl.col(name).is_not_null()).then(pl.Series(name, values)).alias(name)
            for name, values in times.items()
        )

    def bound(self, host: str, times: Times) -> Times | None:
        """Return the maximum error of :meth:`corrected`, in ns; None if it is not known.

        It grows with the distance in time from everything that the hosts did together.
        """
        if host == self.reference:
            return np.zeros(len(times), np.int64)
        pieces = self.pieces.get(host, ())
        if not pieces:
            return None
        taken = self.corrected(host, times)
        bounds = np.zeros(len(times), np.int64)
        for piece in pieces:
            # Any piece that the time may belong to.
            at = piece.reference_time(times)
            off = piece.bound(at)
            low = -np.inf if piece is pieces[0] else piece.since
            high = np.inf if piece is pieces[-1] else piece.until
            can = (at + off >= low) & (at - off <= high)
            bounds = np.where(can, np.maximum(bounds, np.abs(at - taken) + off), bounds)
        return bounds


def clock(
    met: pl.DataFrame,
    sent: pl.DataFrame,
    hosts: Sequence[str],
    errors: Mapping[str, int] | None = None,
) -> Clock:
    """Return the clocks of hosts against that of the first.

    Args:
        met: result of :func:`meetings`.
        sent: result of :func:`messages`.
        hosts: the hosts of the run, the reference first.
        errors: how far the clocks of hosts can be from UTC according to NTP or PTP, in ns. Not all
            daemons report this truthfully, so it corrects and bounds nothing; it is only reported
            if there is nothing else, or if it proves wrong.
    """
    errors = errors or {}
    reference = hosts[0] if hosts else None
    rows: list[tuple[object, ...]] = []
    pieces: dict[str, list[Piece]] = {}
    own = {str(host): frame for (host,), frame in met.partition_by("host", as_dict=True).items()}
    none = met.clear()
    if reference is not None:
        check = own_check(own.get(reference, none))
        rows.append(
            (reference, None, None, 0, 0.0, 0, None, None, 0, False, f"the reference{check}")
        )
    reached, front = {reference}, [reference]
    contradictory: dict[str, str] = {}
    partners = _partners(met, sent)
    while front:
        found: dict[str, list[Piece]] = {}
        for through in front:
            if through is None:
                continue
            for host in hosts:
                if host in reached or host not in partners.get(through, ()):
                    continue
                result = _ahead(own.get(host, none), own.get(through, none), sent, host, through)
                if isinstance(result, str):
                    contradictory.setdefault(host, result)
                    continue
                if through != reference:
                    result = chained(result, pieces[through])
                if result and (host not in found or _worst(result) < _worst(found[host])):
                    found[host] = result
        pieces.update(found)
        front = list(found)
        reached.update(front)
    for host in hosts[1:]:
        mine = own.get(host, none)
        apart = None
        if reference is not None and reference in errors and host in errors:
            apart = errors[reference] + errors[host]
        rows += rows_of(host, pieces.get(host, []), contradictory.get(host), mine, apart)
    frame = pl.DataFrame(rows, SCHEMA, orient="row")
    return Clock(reference, frame, pieces)


def _partners(met: pl.DataFrame, sent: pl.DataFrame) -> dict[str, set[str]]:
    """Return for each host the hosts that it did something together with."""
    groups = met.group_by("meeting").agg(pl.col("host").unique().sort())["host"].unique()
    pairs = sent.select("sender", "receiver").unique().rows()
    partners: dict[str, set[str]] = {}
    for group in (*groups.to_list(), *pairs):
        for host in group:
            partners.setdefault(host, set()).update(group)
    return partners


def _worst(pieces: list[Piece]) -> int:
    return max(int(p.bound(np.array([p.since, p.until])).max()) for p in pieces)


def _ahead(
    mine: pl.DataFrame, its: pl.DataFrame, sent: pl.DataFrame, host: str, other: str
) -> list[Piece] | str:
    """Return how far ``host`` is ahead of ``other``, by the time of ``other``; or why not."""
    both = its.join(mine, on="meeting", suffix="_host")
    points = points_between(both, sent, host, other)
    if points is None:
        return []
    if not two_sided(points):
        return "messages went one way only, which does not bound how far its clock is off"
    pieces = pieces_of(points)
    if isinstance(pieces, str):
        return pieces
    if both.height and not bool(both["sure"].all()) and not _credible(pieces, points):
        return (
            f"the ends of {len(points.time)} collectives do not agree on one offset; their groups "
            "are unknown, so they may be of different ones"
        )
    return pieces


def _credible(pieces: list[Piece], points: Points) -> bool:
    apart = np.concatenate([piece.residual for piece in pieces])
    open_ = (points.high - points.low)[np.isfinite(points.high) & np.isfinite(points.low)]
    return bool(len(open_)) and float(np.percentile(apart, 90)) <= _DISAGREE * float(
        np.median(open_)
    )
