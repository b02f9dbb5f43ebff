"""All runs of a log directory side by side, by the GPU hours that each lost.

A run is summed up once: its row is kept in an index until something of the run changes. The row of
one that goes on is made anew once a minute at most.
"""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import polars as pl

from haiprof.answers import run_index
from haiprof.answers.listed import Lives, look_at
from haiprof.answers.run_row import CAUSES, SCHEMA, Row, empty_row, row_of
from haiprof.common.cores import occupied
from haiprof.common.printable import readable
from haiprof.errors import HaiprofError
from haiprof.sources.found import is_url
from haiprof.sources.log_dirs import LogDir, Seen
from haiprof.sources.log_urls import LogUrl

#: What a row of a run that goes on may be old, ns.
FRESH_NS: Final = 60 * 10**9
#: Runs at a time, where no executor is given: each reads its ranks in threads of its own.
_THREADS: Final = 4
#: Runs that are given to an executor before the first row is taken.
_AHEAD: Final = 256
#: How often rows are kept while many are made, s.
_KEEP_SECONDS: Final = 30.0
_LOCAL: Final = "file://"

#: Columns of the frame.
COLUMNS: Final = {
    "folder": pl.String(),
    "run": pl.String(),
    "user": pl.String(),
    "owner": pl.String(),
    **{name: kind for name, kind in SCHEMA.items() if name not in ("run", "user")},
    "lost_to": pl.Struct(dict.fromkeys(CAUSES, pl.Float64())),
}

#: Called with how many rows are made, and of how many.
OnRow = Callable[[int, int], None]


def all_runs(
    where: str | Path,
    executor: Executor | None = None,
    *,
    since_ns: int | None = None,
    lives: Lives | None = None,
    on_row: OnRow | None = None,
    note: Callable[[str], None] | None = None,
) -> pl.DataFrame:
    """Return one row per run below a folder, those that lost most GPU hours first.

    Then come those of which GPU hours are not known, by the hours of their ranks that they lost.

    Args:
        where: a log directory, a folder with such folders, a run, or a URL of fsspec.
        executor: sums up the runs; a few threads of this process when None.
        since_ns: only runs that went on at this time, ns UTC, or began later.
        lives: see :func:`haiprof.answers.listed.look_at`.
        on_row: called while rows are made.
        note: called with one line where the index cannot be kept.

    Raises:
        HaiprofError: there is no such folder, or it cannot be read.
    """
    place = _place(where)
    seen = place.runs()
    rows = _Rows(place, seen)
    recent = [one for one in seen if since_ns is None or not _before(one, since_ns)]
    due = rows.due([one for one in recent if not one.closed])
    rows.make(due, executor, on_row or (lambda done, of: None))
    if note is not None and rows.not_kept:
        note(rows.not_kept)
    closed = [(one, empty_row(_name(where, one), one.closed)) for one in recent if one.closed]
    frame = pl.concat([rows.frame, _frame(closed)])
    frame = _with_places(frame, recent)
    if isinstance(place, LogDir):
        frame = _with_states(frame, place.folder, lives)
    if since_ns is not None:
        frame = frame.filter(pl.col("ended").fill_null(since_ns) >= since_ns)
    return _ordered(frame)


def _place(where: str | Path) -> LogDir | LogUrl:
    text = str(where)
    if is_url(text) and not text.startswith(_LOCAL):
        return LogUrl(text.rstrip("/"))
    return LogDir(Path(text.removeprefix(_LOCAL)).absolute())


def _before(one: Seen, since_ns: int) -> bool:
    """Say whether a run cannot have gone on at that time: nothing of it was written since."""
    return one.newest_ns is not None and one.newest_ns < since_ns


class _Rows:
    """The rows of the runs that there are: those that are kept, and those that are made."""

    def __init__(self, place: LogDir | LogUrl, seen: Sequence[Seen]) -> None:
        """Read the index."""
        self._place = place
        # Nothing is kept within a run.
        self._keeps = all(one.path for one in seen)
        kept = run_index.decode(place.read_index() if self._keeps else None)
        there = [readable(one.path) for one in seen]
        self.frame = kept.filter(pl.col("path").is_in(there))
        #: Why the index could not be kept; empty: it could.
        self.not_kept = ""

    def due(self, seen: Sequence[Seen]) -> list[Seen]:
        """Return the runs of which there is no row that still holds.

        A fingerprint comes from before its row was made, so what changed meanwhile counts.
        """
        now = time.time_ns()
        columns = (*run_index.KEYS, "running", "problem")
        known = {row[0]: row[1:] for row in self.frame.select(columns).iter_rows()}
        due = []
        for one in seen:
            fingerprint, written, looked, running, problem = known.get(
                readable(one.path), ("", "", 0, None, None)
            )
            if fingerprint and fingerprint == one.fingerprint:
                if running and 0 <= now - looked < FRESH_NS:
                    continue
                unsettled = running or problem is not None
                if one.written is None and not unsettled:
                    continue
                one = self._with_written(one)
                if written and written == one.written:
                    continue
            due.append(self._with_written(one))
        return due

    def _with_written(self, one: Seen) -> Seen:
        if one.written is not None or isinstance(self._place, LogUrl):
            return one
        return one._replace(written=self._place.written(one.path))

    def make(self, due: Sequence[Seen], executor: Executor | None, on_row: OnRow) -> None:
        """Make the rows of some runs, and keep all; those that are made when it is interrupted."""
        made: list[tuple[Seen, Row]] = []
        kept_at = time.monotonic()
        try:
            for row in _made(self._place, due, executor):
                made.append(row)
                on_row(len(made), len(due))
                if time.monotonic() - kept_at > _KEEP_SECONDS:
                    self._keep(made)
                    kept_at = time.monotonic()
        finally:
            if made:
                self._keep(made)

    def _keep(self, made: Sequence[tuple[Seen, Row]]) -> None:
        new = _frame(made)
        others = self.frame.filter(pl.col("path").is_in(new["path"].implode()).not_())
        self.frame = pl.concat([others, new])
        if self._keeps:
            self.not_kept = self._place.write_index(run_index.encode(self.frame))


def _made(
    place: LogDir | LogUrl, due: Sequence[Seen], executor: Executor | None
) -> Iterator[tuple[Seen, Row]]:
    """Yield the runs with their rows, in their order.

    Raises:
        HaiprofError: the executor itself is broken.
    """
    work = functools.partial(_row, place)
    if executor is not None:
        yield from _taken(executor, work, due)
    elif due:
        threads = min(_THREADS, os.cpu_count() or 1, len(due))
        with ThreadPoolExecutor(threads) as pool, occupied(threads):
            yield from _taken(pool, work, due)


def _taken(
    executor: Executor, work: Callable[[Seen], Row], due: Sequence[Seen]
) -> Iterator[tuple[Seen, Row]]:
    waiting: deque[tuple[Seen, Future[Row]]] = deque()
    rest = iter(due)
    try:
        while True:
            while len(waiting) < _AHEAD and (one := next(rest, None)) is not None:
                waiting.append((one, executor.submit(work, one)))
            if not waiting:
                return
            one, future = waiting[0]
            yield one, future.result()
            waiting.popleft()
    except BrokenExecutor as error:
        raise HaiprofError(
            f"the executor is broken ({error}): see whether its processes had memory enough"
        ) from error
    finally:
        for _, future in waiting:
            future.cancel()


def _row(place: LogDir | LogUrl, one: Seen) -> Row:
    try:
        with place.opened(one) as folder:
            return {**row_of(folder), "looked": time.time_ns()}
    except HaiprofError as error:
        where = place.folder if isinstance(place, LogDir) else place.url
        return {**empty_row(_name(where, one), str(error)), "looked": time.time_ns()}


def _name(where: str | Path, one: Seen) -> str:
    return one.path.rpartition("/")[2] or Path(where).name


def _frame(made: Sequence[tuple[Seen, Row]]) -> pl.DataFrame:
    """Return rows as the index has them."""
    return pl.DataFrame(
        [
            {
                **row,
                "path": readable(one.path),
                "fingerprint": one.fingerprint,
                "written": one.written or "",
                "looked": row.get("looked", 0),
            }
            for one, row in made
        ],
        schema=run_index.COLUMNS,
    )


def _with_places(frame: pl.DataFrame, seen: Sequence[Seen]) -> pl.DataFrame:
    """Return the rows of these runs, with the owner of each folder and the hours of its GPUs."""
    places = pl.DataFrame(
        {
            "path": [readable(one.path) for one in seen],
            "owner": pl.Series([one.owner for one in seen], dtype=pl.String()),
        },
        schema={"path": pl.String(), "owner": pl.String()},
    ).unique("path", keep="first")
    hours = pl.struct(
        (pl.col("lost_shares").struct.field(cause) * pl.col("gpu_hours")).alias(cause)
        for cause in CAUSES
    )
    known = pl.col("gpu_hours").is_not_null() & pl.col("lost_shares").is_not_null()
    return (
        frame.join(places, on="path", how="inner")
        .with_columns(
            pl.col("path").alias("folder"),
            pl.coalesce("user", "owner").alias("user"),
            pl.when(known).then(hours).alias("lost_to"),
        )
        .select(list(COLUMNS))
    )


def _with_states(frame: pl.DataFrame, folder: Path, lives: Lives | None) -> pl.DataFrame:
    """Return the rows with how those runs are now that go on: a recorder may have ended since."""
    going_on = frame.filter(pl.col("running"))["folder"].to_list()
    if not going_on:
        return frame
    states = {path: look_at(folder / path, lives).state for path in going_on}
    now = pl.col("folder").replace_strict(states, default=None, return_dtype=pl.String())
    return frame.with_columns(pl.coalesce(now, "state").alias("state"))


def _ordered(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort(
        "gpu_hours_lost",
        "rank_hours_lost",
        "started",
        "folder",
        descending=[True, True, True, False],
        nulls_last=True,
    )
