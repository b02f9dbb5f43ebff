"""The communication of all ranks matched, in memory that does not grow with their number.

A rank's communications come packed (a few bytes each) and wait in a temporary file, while totals
over all ranks are computed. Then they are matched with these, a few ranks at a time, and only the
results of the views are kept.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import polars as pl

from haiprof.answers import one_trace
from haiprof.answers.packed import unpacked
from haiprof.answers.rank_columns import named, session_of, stacked
from haiprof.answers.ranks import Ranks
from haiprof.errors import HaiprofError
from haiprof.runs import Process
from haiprof.views.intervals import Times, covered, intersect
from haiprof.views.trace import distributed, stragglers

Intervals: TypeAlias = tuple[Times, Times]
#: Number of communications matched together.
_BATCH_ROWS: Final = 50_000
#: This many bytes of packed communications stay in memory.
_KEPT_BYTES: Final = 16 << 20


class Matched(NamedTuple):
    """Result of matching all ranks; of ``steps`` only ``waiting`` needs the others."""

    steps: pl.DataFrame
    transfers: pl.DataFrame
    collectives: pl.DataFrame
    stragglers: pl.DataFrame
    sessions: tuple[Session, ...]

    def waits(self, process: Process) -> Intervals | None:
        """Return when a rank waited for others in collectives, ns; None if nobody can know."""
        for each in self.sessions:
            if each.by_label.get(process.label) is process:
                return each.waits.get(process.label)
        return None


def matched(ranks: Ranks) -> Matched:
    """Match the communication of all ranks, session by session, once: several views use it."""
    return ranks.once("matched", lambda: _matched(ranks))


def sessions(ranks: Ranks) -> tuple[Session, ...]:
    """Return the communication of all ranks by session, without what the views make of it."""
    found: dict[int | None, Session] = {}
    work = functools.partial(one_trace.packed_communications, links=ranks.links)
    for process, packed in ranks.map(work, ranks.jobs(None)):
        found.setdefault(session_of(process), Session()).add(process, packed)
    return tuple(found.values()) or (Session(),)


def _matched(ranks: Ranks) -> Matched:
    sessions: dict[int | None, Session] = {}
    steps = []
    work = functools.partial(one_trace.communicated, links=ranks.links)
    for process, found in ranks.map(work, ranks.jobs(None)):
        steps.append((process, found._replace(packed=b"")))
        sessions.setdefault(session_of(process), Session()).add(process, found.packed)
    sessions = sessions or {None: Session()}
    views = [each.views(span) for span, each in sessions.items()]
    transfers, collectives, caused = (
        pl.concat(each, how="diagonal_relaxed") for each in zip(*views, strict=True)
    )
    broken_down = stacked(
        (process, _with_waiting(found, sessions[session_of(process)].waits.get(process.label)))
        for process, found in steps
    )
    return Matched(broken_down, transfers, collectives, caused, tuple(sessions.values()))


def _with_waiting(found: one_trace.Communicated, waits: Intervals | None) -> pl.DataFrame:
    """Add how long of its communication alone a rank waited for others; null if not known."""
    waiting = pl.lit(None, pl.Int64())
    if waits is not None:
        alone = intersect(*found.alone, *waits)
        waiting = pl.lit(pl.Series(covered(*alone, found.low, found.high)))
    return found.steps.with_columns(waiting.alias("waiting"))


class Session:
    """The communications of the ranks that were profiled at the same time."""

    def __init__(self) -> None:
        """Start without any rank."""
        #: The process of each label.
        self.by_label: dict[str, Process] = {}
        #: When each rank waited for others, by label: 16 bytes for each time.
        self.waits: dict[str, Intervals] = {}
        self._processes: list[Process] = []
        self._at = [0]  # offset of each, and the end of the last one
        # Closed with this object.
        self._waiting = tempfile.SpooledTemporaryFile(_KEPT_BYTES)  # noqa: SIM115
        self._meetings = distributed.Meetings()

    def add(self, process: Process, packed: bytes) -> None:
        """Add a rank with the result of :func:`haiprof.answers.packed.pack`.

        Raises:
            HaiprofError: there is no room for it.
        """
        self.by_label[process.label] = process
        found = unpacked(packed)
        if not found.height:
            return
        self._meetings.add(found)
        try:
            self._waiting.write(packed)
        except OSError as error:
            raise HaiprofError(
                f"{tempfile.gettempdir()}: cannot be written ({error.strerror}): make room, "
                "or name another folder in TMPDIR"
            ) from None
        self._processes.append(process)
        self._at.append(self._at[-1] + len(packed))

    def views(self, session: int | None) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Return transfers, collectives and stragglers."""
        nothing = distributed.match({})
        views = distributed.transfer, distributed.statistics, stragglers.caused
        results = [[view(nothing)] for view in views]
        for batch in self.batches():
            for frames, view in zip(results, views, strict=True):
                frames.append(view(batch))
            self.waits |= distributed.waits(batch)
        transfers, collectives, caused = (
            pl.concat(frames, how="vertical_relaxed") for frames in results
        )
        return (
            named(distributed.by_rank_and_step(transfers), self._processes, session),
            named(distributed.by_rank_and_time(collectives), self._processes, session),
            named(stragglers.ranked(caused), self._processes, session),
        )

    def batches(self) -> Iterator[pl.DataFrame]:
        """Yield the matched communications of the ranks of some hosts at a time."""
        by_host = sorted(
            range(len(self._processes)), key=lambda number: self._processes[number].node
        )
        ranks: list[pl.DataFrame] = []
        rows = 0
        for before, number in zip([None, *by_host], by_host, strict=False):
            process = self._processes[number]
            another = before is None or self._processes[before].node != process.node
            if another and rows >= _BATCH_ROWS:
                yield self._together(ranks)
                rows = 0
            self._waiting.seek(self._at[number])
            frame = unpacked(self._waiting.read(self._at[number + 1] - self._at[number]))
            ranks.append(frame.with_columns(pl.lit(process.label).alias("rank")))
            rows += frame.height
        if ranks:
            yield self._together(ranks)

    def _together(self, ranks: list[pl.DataFrame]) -> pl.DataFrame:
        whole = pl.concat(ranks, how="vertical_relaxed")
        ranks.clear()
        return self._meetings.matched(whole)
