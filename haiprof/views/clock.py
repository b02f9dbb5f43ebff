"""One clock for all hosts: by how much each host's clock is off, from what the hosts did together.

A collective that gives every rank something of every other cannot end on any rank before it has
begun on all. With local times and the offset ``o`` of a host's clock to the reference host's:

    start(host) - end(reference)  <=  o  <=  end(host) - start(reference)

for each of them, which is always so, however late a rank came or however long the data took. A
message tells one side: it is not received before it is sent. What all of these leave of the lines
``o = a + b * t`` is a polygon of (a, b) (the convex hulls of both sides bound it, as in Duda,
Harrus, Haddad and Bernard, "Estimating Global Time in Distributed Systems", 1987), and its reach
at a time is the **error bound**. Within it the estimate is where the ends of the collectives say:
the ranks leave one nearly together, so that the median of the differences of their ends is far
better than the bound. Where no line is left, or where the ends jump, the clock was set: each side
of that is a piece of its own, and between the two the bound covers both.

A host that shares collectives with others only goes by theirs, and the bounds add up. Nothing to
go by, or what contradicts itself: no correction, and it is said. Processes of one host share its
clock and are not corrected; whether their collectives agree with that is looked at all the same.

Times are int64 ns; clocks are those of the hosts as recorded.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times
from haiprof.views.words import milliseconds

Reals = npt.NDArray[np.float64]

#: Collectives that no rank can leave before all have come. An all-to-all may move nothing between
#: two ranks, a broadcast or a reduction has one root: those tell less, and are not used.
TOGETHER: Final = ("all_reduce", "all_gather", "reduce_scatter", "barrier")
#: What is read of matched communications.
WANTED: Final = (
    "step", "group", "ranks", "op", "alike", "nth", "size", "transfer", "rank", "start", "end",
)  # fmt: skip
#: What the two times of an interval may be off by together: traces in whole microseconds, and
#: device times that were mapped to the host's.
SLACK: Final = 2_000
#: No computer's clock gains or loses more; the kernel slews one by no more than this.
DRIFT: Final = 500e-6
#: Fewer collectives tell no drift from noise.
_FEWEST: Final = 8
#: A clock that was set by less than this is taken for noise of the ends.
_JUMP: Final = 5_000.0
#: A clock that seems to be set more often is none that lines describe.
_MOST_PARTS: Final = 32
#: In front of and behind a jump so many collectives each are compared.
_WINDOW: Final = 8
#: Of collectives whose group is not told, ends may disagree by this part of what they leave open.
_DISAGREE: Final = 0.25

SCHEMA: Final = {
    "node": pl.String(),
    "since": pl.Int64(),
    "until": pl.Int64(),
    "offset": pl.Int64(),
    "drift": pl.Float64(),
    "bound": pl.Int64(),
    "residual": pl.Int64(),
    "residual_p99": pl.Int64(),
    "pairs": pl.UInt32(),
    "corrected": pl.Boolean(),
    "how": pl.String(),
}
MEETINGS: Final = {
    "meeting": pl.Int64(),
    "host": pl.String(),
    "begun": pl.Int64(),
    "ended": pl.Int64(),
    "end": pl.Int64(),
    "sure": pl.Boolean(),
}
MESSAGES: Final = {
    "sender": pl.String(),
    "receiver": pl.String(),
    "sent": pl.Int64(),
    "received": pl.Int64(),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time in which a clock went evenly.

    ``base + a + b * (time - origin)`` (ns, of the reference's time) is how much it was ahead;
    ``corners`` are all (a, b) that what was seen leaves possible; ``unseen`` (ns) is what the clock
    may have been set by meanwhile without showing.
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
        """Return how much the clock is ahead of the reference at its times, in ns."""
        made: Times = self.base + np.rint(self.a + self.b * (time - self.origin)).astype(np.int64)
        return made

    def reference_time(self, local: Times) -> Times:
        """Return what the reference's clock showed at times of this one, in ns."""
        # local = t + base + a + b * (t - origin), solved for t.
        since = local - self.base - self.origin
        made: Times = self.origin + np.rint((since - self.a) / (1 + self.b)).astype(np.int64)
        return made

    def bound(self, time: Times) -> Times:
        """Return how far the truth can be from :meth:`ahead`, in ns."""
        at = (time - self.origin).astype(np.float64)
        reach = self.corners[:, :1] + self.corners[:, 1:] * at
        mine = self.a + self.b * at
        off = np.maximum(reach.max(0) - mine, mine - reach.min(0))
        made: Times = np.ceil(off + self.unseen).astype(np.int64) + 1
        return made


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of all hosts of a run against one of them.

    ``frame`` has a row per host and piece: ``node``, ``since`` and ``until`` (time of the
    reference), ``offset`` (ns that it is ahead at ``since``), ``drift`` (ppm that it gains),
    ``bound`` (ns: the most that the correction can be off between the two; null where not known),
    ``residual`` and ``residual_p99`` (ns: median and 99th percentile of how far the ends of
    collectives are apart once corrected), ``pairs`` (collectives and messages used), ``corrected``
    and ``how`` (words).
    """

    reference: str | None
    frame: pl.DataFrame
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict)

    def corrected(self, host: str, times: Times) -> Times:
        """Return times of a host's clock as the reference's would have told them, in ns.

        Of the reference, and of a host that nothing is known of, they are returned as they are. A
        clock that was set back told some times twice: they are taken for the first.
        """
        pieces = self.pieces.get(host, ())
        if not pieces or not len(times):
            return times
        ends = [piece.until + int(piece.ahead(np.array([piece.until]))[0]) for piece in pieces]
        which = np.searchsorted(np.maximum.accumulate(ends[:-1]), times)
        made = np.empty(len(times), np.int64)
        for number, piece in enumerate(pieces):
            mine = which == number
            made[mine] = piece.reference_time(times[mine])
        return made

    def applied(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame with the times in its columns ``start``, ``end`` and ``time`` corrected.

        ``node`` says whose clock each row is of. A duration beside them stays as it was measured.
        """
        columns = [name for name in ("start", "end", "time") if name in frame.columns]
        if not self.pieces or not frame.height or not columns:
            return frame
        nodes = frame["node"].cast(pl.String)
        made = {name: frame[name].to_numpy().copy() for name in columns}
        for node in set(nodes.to_list()) & set(self.pieces):
            mine = (nodes == node).to_numpy()
            for values in made.values():
                values[mine] = self.corrected(node, values[mine])
        return frame.with_columns(pl.Series(name, values) for name, values in made.items())

    def bound(self, host: str, times: Times) -> Times | None:
        """Return how far :meth:`corrected` can be off, in ns; None where that is not known.

        The farther away from all that the hosts did together, the more.
        """
        if host == self.reference:
            return np.zeros(len(times), np.int64)
        pieces = self.pieces.get(host, ())
        if not pieces:
            return None
        taken = self.corrected(host, times)
        made = np.zeros(len(times), np.int64)
        for piece in pieces:
            # Any piece that a time can be of.
            at = piece.reference_time(times)
            off = piece.bound(at)
            low = -np.inf if piece is pieces[0] else piece.since
            high = np.inf if piece is pieces[-1] else piece.until
            can = (at + off >= low) & (at - off <= high)
            made = np.where(can, np.maximum(made, np.abs(at - taken) + off), made)
        return made


def lines(told: pl.DataFrame) -> list[str]:
    """Say in a sentence how far the clocks of hosts were apart, and in another which is not known.

    Args:
        told: :attr:`Clock.frame`.
    """
    made = []
    known = told.filter(pl.col("corrected"))
    if known.height:
        most, bound = known["offset"].abs().max(), known["bound"].max()
        made.append(
            f"The clocks of {known['node'].n_unique() + 1} hosts were up to "
            f"{milliseconds(float(most))} apart and are corrected, to "  # type: ignore[arg-type]
            f"{milliseconds(float(bound))} at the worst"  # type: ignore[arg-type]
        )
    unknown = told.filter(pl.col("offset").is_null())
    if unknown.height:
        some = ", ".join(unknown["node"].head(3).to_list()) + (
            f" and {unknown.height - 3} more" if unknown.height > 3 else ""
        )
        made.append(
            f"Nothing tells how far the clock of {some} is from that of {told['node'][0]}: times "
            "of their ranks side by side are as far apart as these clocks"
        )
    return made


def wanted(matched: pl.DataFrame) -> pl.DataFrame:
    """Return those rows of matched communications that can tell of clocks."""
    in_step = matched.filter(pl.col("step").is_not_null())
    together = pl.col("op").is_in(TOGETHER) & pl.col("transfer").is_not_null()
    return in_step.filter(together | pl.col("op").is_in(["send", "recv"]))


def meetings(matched: pl.DataFrame, hosts: Mapping[str, str], session: int = 0) -> pl.DataFrame:
    """Return the collectives that bound clocks, one row for each and each host that took part.

    Args:
        matched: what :func:`haiprof.views.trace.distributed.match` returned, ranks by label.
        hosts: the host of each label.
        session: told apart from meetings of other sessions by it.

    Returns:
        ``meeting``, ``host``, ``begun`` (when the last rank of the host came), ``ended`` (when its
        first one left), ``end`` (of the middle one), ``sure`` (whether the trace tells the group).
        Only collectives of a step: which is the same on another rank is not certain outside.
    """
    same = ["step", "group", "ranks", "op", "alike", "nth"]
    # An operation of nccl on the host ends when it is queued, not when it is done.
    kept = matched.filter(
        pl.col("transfer").is_not_null(), pl.col("op").is_in(TOGETHER), pl.col("step").is_not_null()
    )
    if not kept.height:
        return pl.DataFrame(schema=MEETINGS)
    host = pl.col("rank").replace_strict(dict(hosts), return_dtype=pl.String())
    told = pl.col("group").is_not_null() | pl.col("ranks").is_not_null()
    numbered = kept.join(
        kept.select(same).unique(maintain_order=True).with_row_index("meeting"),
        on=same,
        nulls_equal=True,
    )
    return (
        numbered.with_columns(host.alias("host"))
        .group_by("meeting", "host")
        .agg(
            pl.col("start").max().alias("begun"),
            pl.col("end").min().alias("ended"),
            pl.col("end").sort().get(pl.len() // 2).alias("end"),
            told.all().alias("sure"),
        )
        .with_columns(pl.col("meeting").cast(pl.Int64) + (session << 40))
        .select(pl.col(name).cast(kind) for name, kind in MEETINGS.items())
        .sort("meeting", "host")
    )


def messages(matched: pl.DataFrame, hosts: Mapping[str, str], ranks: Mapping[str, int | None]) -> (
    pl.DataFrame
):  # fmt: skip
    """Return what one host sent to another, where the trace tells both: in groups of two ranks.

    Args:
        matched: as of :func:`meetings`.
        hosts: the host of each label.
        ranks: the rank of each label.

    Returns:
        ``sender``, ``receiver`` (hosts), ``sent`` (when sending began, by the sender's clock),
        ``received`` (when receiving ended, by the receiver's).
    """
    found = matched.filter(
        pl.col("op").is_in(["send", "recv"]),
        pl.col("step").is_not_null(),
        pl.col("ranks").is_not_null(),
    )
    if not found.height:
        return pl.DataFrame(schema=MESSAGES)
    two = {text for text in found["ranks"].unique().to_list() if len(_ranks(text)) == 2}
    who = pl.col("rank").replace_strict(dict(ranks), return_dtype=pl.Int64())
    host = pl.col("rank").replace_strict(dict(hosts), return_dtype=pl.String())
    found = found.filter(pl.col("ranks").is_in(two)).with_columns(
        who.alias("who"), host.alias("host")
    )
    keys = ["step", "group", "ranks", "size"]
    nth = pl.int_range(pl.len()).over("who", "op", *keys).alias("turn")
    many = pl.len().over("who", "op", *keys).alias("many")
    found = found.sort("start").with_columns(nth, many)
    keys = [*keys, "turn", "many"]
    sent = found.filter(pl.col("op") == "send").select(
        *keys, "who", pl.col("host").alias("sender"), pl.col("start").alias("sent")
    )
    received = found.filter(pl.col("op") == "recv").select(
        *keys, "who", pl.col("host").alias("receiver"), pl.col("end").alias("received")
    )
    pairs = sent.join(received, on=keys, nulls_equal=True).filter(
        pl.col("who") != pl.col("who_right")
    )
    return pairs.filter(pl.col("sender") != pl.col("receiver")).select(*MESSAGES)


def _ranks(text: str) -> list[int]:
    try:
        made = json.loads(text)
    except ValueError:
        return []
    return made if isinstance(made, list) else []


def clock(
    met: pl.DataFrame,
    sent: pl.DataFrame,
    hosts: Sequence[str],
    errors: Mapping[str, int] | None = None,
) -> Clock:
    """Return the clocks of hosts against that of the first.

    Args:
        met: as of :func:`meetings`.
        sent: as of :func:`messages`.
        hosts: the hosts of the run, the reference first.
        errors: how far the clocks of hosts can be from UTC by what NTP or PTP told them, in ns.
            Not all daemons tell the truth of it, so that it corrects and bounds nothing; it is
            said where there is nothing else, or where it is not so.
    """
    errors = errors or {}
    reference = hosts[0] if hosts else None
    rows: list[tuple[object, ...]] = []
    pieces: dict[str, list[Piece]] = {}
    own = {str(host): frame for (host,), frame in met.partition_by("host", as_dict=True).items()}
    none = met.clear()
    if reference is not None:
        check = _own_check(own.get(reference, none))
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
                made = _pair(own.get(host, none), own.get(through, none), sent, host, through)
                if isinstance(made, str):
                    contradictory.setdefault(host, made)
                    continue
                if through != reference:
                    made = _chained(made, pieces[through])
                if made and (host not in found or _worst(made) < _worst(found[host])):
                    found[host] = made
        pieces.update(found)
        front = list(found)
        reached.update(front)
    for host in hosts[1:]:
        mine = own.get(host, none)
        apart = None
        if reference is not None and reference in errors and host in errors:
            apart = errors[reference] + errors[host]
        rows += _rows(host, pieces.get(host, []), contradictory.get(host), mine, apart)
    frame = pl.DataFrame(rows, SCHEMA, orient="row")
    return Clock(reference, frame, pieces)


def _partners(met: pl.DataFrame, sent: pl.DataFrame) -> dict[str, set[str]]:
    """Return which hosts each host did something together with."""
    groups = met.group_by("meeting").agg(pl.col("host").unique().sort())["host"].unique()
    pairs = sent.select("sender", "receiver").unique().rows()
    made: dict[str, set[str]] = {}
    for group in (*groups.to_list(), *pairs):
        for host in group:
            made.setdefault(host, set()).update(group)
    return made


def _worst(pieces: list[Piece]) -> int:
    return max(int(p.bound(np.array([p.since, p.until])).max()) for p in pieces)


def _own_check(mine: pl.DataFrame) -> str:
    """Say where the processes of one host contradict that they have one clock."""
    apart = int((mine["begun"] - mine["ended"]).max() or 0) if mine.height else 0
    if apart <= SLACK:
        return ""
    return (
        f"; its own processes' clocks disagree by {milliseconds(apart)} or more: "
        "the wall clock was set between their starts"
    )


def _rows(
    host: str,
    pieces: list[Piece],
    why: str | None,
    mine: pl.DataFrame,
    apart: int | None,
) -> list[tuple[object, ...]]:
    check = _own_check(mine)
    if not pieces:
        if apart is not None:
            check += (
                f"; by what NTP or PTP told the two hosts, their clocks were {milliseconds(apart)} "
                "apart at most"
            )
        how = why or "nothing that this host did together with another tells its clock"
        none = (None, None, None, None, None, None, None, 0, False, f"not corrected: {how}{check}")
        return [(host, *none)]
    rows: list[tuple[object, ...]] = []
    sure = bool(mine["sure"].all())
    for piece in pieces:
        ends = np.array([piece.since, piece.until])
        off = piece.residual
        how = _counted(piece)
        if not piece.pairs:
            how = "the clock was set in between"
        elif len(pieces) > 1:
            how += "; the clock was set"
        off_by = int((np.abs(piece.ahead(ends)) - piece.bound(ends)).min())
        if apart is not None and off_by > apart:
            how += f"; more than the {milliseconds(apart)} that NTP or PTP told the two hosts"
        if not sure:
            how += "; the traces do not tell their groups: taken to be of all ranks"
        rows.append(
            (
                host,
                piece.since,
                piece.until,
                int(piece.ahead(ends)[0]),
                piece.b * 1e6,
                int(piece.bound(ends).max()),
                int(np.median(off)) if len(off) else None,
                int(np.percentile(off, 99)) if len(off) else None,
                piece.pairs,
                True,
                how + check,
            )
        )
    return rows


def _counted(piece: Piece) -> str:
    counts = ((len(piece.residual), "collective"), (piece.pairs - len(piece.residual), "message"))
    return " and ".join(f"{n} {what}{'s' if n > 1 else ''}" for n, what in counts if n > 0)


def _pair(
    mine: pl.DataFrame, its: pl.DataFrame, sent: pl.DataFrame, host: str, other: str
) -> list[Piece] | str:
    """Return how much ``host`` is ahead of ``other``, by the time of ``other``; or why not."""
    both = its.join(mine, on="meeting", suffix="_host").sort("end")
    time = both["end"].to_numpy()
    low = (both["begun_host"] - both["ended"] - SLACK).to_numpy()
    high = (both["ended_host"] - both["begun"] + SLACK).to_numpy()
    middle = (both["end_host"] - both["end"]).to_numpy()
    to = sent.filter(pl.col("sender") == other, pl.col("receiver") == host)
    back = sent.filter(pl.col("sender") == host, pl.col("receiver") == other)
    sides = [
        (time, low, high, middle, both["begun_host"].to_numpy()),
        _side(to["sent"], to["received"] - to["sent"] + SLACK, high=True),
        _side(back["received"], back["sent"] - back["received"] - SLACK, high=False),
    ]
    points = _points(sides)
    if points is None:
        return []
    if not _two_sided(points):
        return "messages went one way only, which does not bound how far its clock is off"
    count = len(points.time)
    made = _pieces(points)
    if not made:
        return f"its {count} collectives and messages contradict each other"
    if both.height and not bool(both["sure"].all()) and not _credible(made, points):
        return (
            f"the ends of {count} collectives do not agree on one offset; their groups are not "
            "told, so they may be of different ones"
        )
    return made


def _credible(pieces: list[Piece], points: _Points) -> bool:
    apart = np.concatenate([piece.residual for piece in pieces])
    open_ = (points.high - points.low)[np.isfinite(points.high) & np.isfinite(points.low)]
    return bool(len(open_)) and float(np.percentile(apart, 90)) <= _DISAGREE * float(
        np.median(open_)
    )


_Side: TypeAlias = tuple[npt.NDArray[Any], ...]


def _side(time: pl.Series, bound: pl.Series, *, high: bool) -> _Side:
    """Return what messages of one direction tell, as :func:`_points` takes it."""
    known = bound.to_numpy()
    low, most = (
        (np.full(len(known), -np.inf), known) if high else (known, np.full(len(known), np.inf))
    )
    none = np.full(len(known), np.nan)
    return time.to_numpy(), low, most, none, none


def _points(sides: list[_Side]) -> _Points | None:
    """Put points together by time: of each time, low, high, middle and begun (int64 or float)."""
    time = np.concatenate([side[0] for side in sides])
    if not len(time):
        return None
    origin = int(time.min())
    told = [values for side in sides for values in side[1:3] if values.dtype.kind == "i"]
    base = int(np.median(np.concatenate(told)))
    order = np.argsort(time, kind="stable")
    # Whole numbers first: an epoch in ns is more than a float holds.
    columns = []
    for column, less in ((0, origin), (1, base), (2, base), (3, base), (4, base + origin)):
        parts = [side[column] for side in sides]
        columns.append(np.concatenate([(part - less).astype(np.float64) for part in parts])[order])
    return _Points(origin, base, *columns)


@dataclass(frozen=True, slots=True)
class _Points:
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

    def cut(self, first: int, last: int) -> _Points:
        part = slice(first, last)
        columns = (c[part] for c in (self.time, self.low, self.high, self.middle, self.begun))
        return _Points(self.origin, self.base, *columns)

    def after(self, where: int) -> _Points:
        """Return the points from a row on, before which the clock was set.

        Of a collective that had begun by then the host's beginning is of the clock as it was.
        """
        before = self.middle[max(0, where - _WINDOW) : where]
        after = self.middle[where : where + _WINDOW]
        if not (np.isfinite(before).any() and np.isfinite(after).any()):
            return self.cut(where, len(self.time))
        level = float(np.nanmedian(before))
        jump = float(np.nanmedian(after)) - level
        rest = self.cut(where, len(self.time))
        # By how much it was set is known from the ends only: with room for their noise.
        room = -min(jump, 0.0) + abs(jump) / 10 + _JUMP
        old = rest.begun - level <= self.time[where]
        return replace(rest, low=np.where(old, rest.low - room, rest.low))


def _pieces(points: _Points) -> list[Piece]:
    """Divide time into as few pieces as the points allow, each with its line."""
    made = [piece for part in _parts(points) if (piece := _piece(part)) is not None]
    if len(made) < 2:
        return made
    bridged = [made[0]]
    for before, after in itertools.pairwise(made):
        bridged += [_bridge(before, after), after]
    return bridged


def _parts(points: _Points) -> list[_Points]:
    """Divide points where the clock was set; nothing where they contradict each other too often."""
    most = min(_MOST_PARTS, max(2, len(points.time) // 8))
    pending, made = [points], []
    while pending:
        part = pending.pop()
        where = _divided(part)
        if where is None:
            made.append(part)
        else:
            pending += [part.after(where), part.cut(0, where)]
        if len(pending) + len(made) > most:
            return []
    return made


def _divided(points: _Points) -> int | None:
    """Return the row before which the clock was set; None where one line fits, or none can."""
    where = _jump(points)
    if where is None and (_corners(points) is not None or not _two_sided(points)):
        return None
    if where is None:
        where = _contradiction(points)
    return where if 0 < where < len(points.time) else None


def _two_sided(points: _Points) -> bool:
    return bool(np.isfinite(points.low).any() and np.isfinite(points.high).any())


def _contradiction(points: _Points) -> int:
    """Return where to divide points that no line fits: the longest that one does, from the left."""
    good, bad = 1, len(points.time)
    while bad - good > 1:
        half = (good + bad) // 2
        part = points.cut(0, half)
        if _corners(part) is not None or not _two_sided(part):
            good = half
        else:
            bad = half
    return good


def _level(points: _Points) -> tuple[npt.NDArray[np.intp], Reals, int, float]:
    """Return what the ends tell without drift: rows, values, and what of a jump in them shows.

    That is between the medians of so many values on either side, from so many ns on.
    """
    known = np.flatnonzero(np.isfinite(points.middle))
    count = len(known)
    wide = min(_WINDOW, count // 3)
    time, middle = points.time[known], points.middle[known]
    # One jump is in an eighth of these slopes only.
    slope = _slopes(time, middle, max(1, count // 8))[0] if count > 1 else 0.0
    level = middle - float(np.clip(slope, -DRIFT, DRIFT)) * time
    if wide < 2:
        # Too few to tell a jump from noise: it may be any of what they differ by.
        return known, level, wide, float(np.ptp(level)) if count else 0.0
    noise = 1.4826 * float(np.median(np.abs(np.diff(level)))) / float(np.sqrt(2))
    return known, level, wide, max(_JUMP, (4 if wide == _WINDOW else 6) * noise)


def _jump(points: _Points) -> int | None:
    """Return the first row after the clock was set, as the ends tell it; None where it was not."""
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


def _corners(points: _Points) -> Reals | None:
    """Return the corners (a, b) of all lines between the points; None where there is none.

    For a slope ``b`` the line may begin between ``g(b) = max(low - b t)`` and
    ``f(b) = min(high - b t)``; the one is convex, the other concave, and their corners are at the
    slopes of the hulls of the points.
    """
    upper, lower = np.isfinite(points.high), np.isfinite(points.low)
    if not upper.any() or not lower.any():
        return None
    above = _hull(points.time[upper], points.high[upper])
    below = _hull(points.time[lower], -points.low[lower])
    breaks = np.concatenate((_edges(above), -_edges(below), np.array([-DRIFT, DRIFT])))
    slopes = np.unique(breaks[np.abs(breaks) <= DRIFT])

    def most(b: Reals) -> Reals:
        made: Reals = (above[:, 1:] - above[:, :1] * b).min(0)
        return made

    def least(b: Reals) -> Reals:
        made: Reals = (-below[:, 1:] - below[:, :1] * b).max(0)
        return made

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


def _hull(time: Reals, value: Reals) -> Reals:
    """Return the lower convex hull of points, by time."""
    order = np.lexsort((value, time))
    made: list[tuple[float, float]] = []
    for x, y in zip(time[order].tolist(), value[order].tolist(), strict=True):
        if made and made[-1][0] == x:
            continue
        while len(made) > 1 and (made[-1][1] - made[-2][1]) * (x - made[-2][0]) >= (
            y - made[-2][1]
        ) * (made[-1][0] - made[-2][0]):
            made.pop()
        made.append((x, y))
    return np.array(made)


def _edges(hull: Reals) -> Reals:
    made: Reals = np.diff(hull[:, 1]) / np.diff(hull[:, 0])
    return made


def _piece(points: _Points) -> Piece | None:
    """Return the line of points that belong together; None where they do not bound one."""
    corners = _corners(points)
    if corners is None:
        low, high = (c[np.isfinite(c)] for c in (points.low, points.high))
        if not len(low) or not len(high):
            return None
        # No line fits: anything that any of them allows.
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
        # Halfway between the farthest lines, at both ends.
        reach = corners[:, :1] + corners[:, 1:] * np.array([since, until])
        halfway = (reach.max(0) + reach.min(0)) / 2
        b = float((halfway[1] - halfway[0]) / (until - since)) if until > since else 0.0
        a = float(halfway[0]) - b * since
    ahead = corners[:, 0] + (corners[:, 1] - b) * (since + until) / 2
    a = float(np.clip(a, ahead.min(), ahead.max()))
    residual = np.abs(middle - a - b * time)
    return Piece(
        points.origin + int(since),
        points.origin + int(until),
        points.origin,
        points.base,
        a,
        b,
        corners,
        _level(points)[3],
        residual,
        len(points.time),
    )


def _bridge(before: Piece, after: Piece) -> Piece:
    """Return what is known of the time in which a clock was set: it was as before, or as after."""
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


def _chained(pieces: list[Piece], through: list[Piece]) -> list[Piece]:
    """Add how much a host is ahead of another to how much that one is ahead of the reference."""
    made = []
    for piece in pieces:
        for part in through:
            # The other host's clock is that of its piece; both are near enough to the reference's.
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
            made.append(
                Piece(
                    low,
                    high,
                    part.origin,
                    piece.base + part.base,
                    piece.a + moved + part.a,
                    piece.b + part.b,
                    _outermost(sums),
                    piece.unseen + part.unseen,
                    piece.residual,
                    piece.pairs,
                )
            )
    return made


def _outermost(corners: Reals) -> Reals:
    """Keep the corners that no others lie around."""
    a, b = corners[:, 0], corners[:, 1]
    low, high = _hull(b, a), _hull(b, -a)
    return np.concatenate((low[:, ::-1], high[:, ::-1] * np.array([-1.0, 1.0])))
