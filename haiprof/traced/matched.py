"""The communication of all ranks matched, in memory that does not grow with their number.

A rank's communications come packed (some bytes each) and wait in a temporary file, while what all
ranks had together is summed up. Then they are matched with that, a few ranks at a time, and only
what the views make of them is kept.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import polars as pl

from haiprof.errors import HaiprofError
from haiprof.sources.own import Process
from haiprof.traced.whose import named
from haiprof.views.trace import distributed, stragglers

#: Communications that are matched together.
_BATCH_ROWS: Final = 50_000
#: Packed communications of so many bytes stay in memory.
_KEPT_BYTES: Final = 64 << 20
_TEXTS: Final = ("op", "group", "ranks", "type")


class Matched(NamedTuple):
    """What matching told of all ranks; ``steps`` needs none."""

    steps: pl.DataFrame
    transfers: pl.DataFrame
    collectives: pl.DataFrame
    stragglers: pl.DataFrame
    sessions: tuple[Session, ...]


def pack(found: pl.DataFrame) -> bytes:
    """Pack the communications of one rank, so that they travel and wait in little room."""
    packed = io.BytesIO()
    told = distributed.numbered(found).cast(dict.fromkeys(_TEXTS, pl.Categorical()))
    told.write_ipc(packed, compression="zstd")
    return packed.getvalue()


class Session:
    """The communications of the ranks that were profiled at the same time."""

    def __init__(self) -> None:
        """Know no rank yet."""
        #: The process of each label.
        self.whose: dict[str, Process] = {}
        self._whose: list[Process] = []
        self._bytes: list[int] = []
        # Closed with this object.
        self._waiting = tempfile.SpooledTemporaryFile(_KEPT_BYTES)  # noqa: SIM115
        self._meetings = distributed.Meetings()

    def add(self, process: Process, packed: bytes) -> None:
        """Add a rank with what :func:`pack` returned of it.

        Raises:
            HaiprofError: there is no room for it.
        """
        self.whose[process.label] = process
        found = _unpacked(packed)
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
        self._whose.append(process)
        self._bytes.append(len(packed))

    def views(self, session: int | None) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Return transfers, collectives and stragglers."""
        nothing = distributed.match({})
        views = distributed.transfer, distributed.statistics, stragglers.caused
        made = [[view(nothing)] for view in views]
        for batch in self._batches():
            for frames, view in zip(made, views, strict=True):
                frames.append(view(batch))
        transfers, collectives, caused = (
            pl.concat(frames, how="vertical_relaxed") for frames in made
        )
        return (
            named(distributed.by_rank_and_step(transfers), self._whose, session),
            named(distributed.by_rank_and_time(collectives), self._whose, session),
            named(stragglers.ranked(caused), self._whose, session),
        )

    def rows(
        self, columns: Sequence[str], keep: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> pl.DataFrame:
        """Return some columns of those matched communications that are to be kept.

        Args:
            columns: which, of what :func:`haiprof.views.trace.distributed.match` returns.
            keep: returns the rows to keep of some ranks.
        """
        frames = [keep(distributed.match({})).select(columns)]
        frames += [keep(batch).select(columns) for batch in self._batches()]
        return pl.concat(frames, how="vertical_relaxed")

    def _batches(self) -> Iterator[pl.DataFrame]:
        """Yield the matched communications of some ranks at a time."""
        self._waiting.seek(0)
        ranks: list[pl.DataFrame] = []
        rows = 0
        for process, size in zip(self._whose, self._bytes, strict=True):
            frame = _unpacked(self._waiting.read(size))
            ranks.append(frame.with_columns(pl.lit(process.label).alias("rank")))
            rows += frame.height
            if rows >= _BATCH_ROWS:
                yield self._together(ranks)
                rows = 0
        if ranks:
            yield self._together(ranks)

    def _together(self, ranks: list[pl.DataFrame]) -> pl.DataFrame:
        whole = pl.concat(ranks, how="vertical_relaxed")
        ranks.clear()
        return self._meetings.matched(whole)


def _unpacked(packed: bytes) -> pl.DataFrame:
    return pl.read_ipc(io.BytesIO(packed))
