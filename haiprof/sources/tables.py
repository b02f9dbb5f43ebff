"""Reads the tables of one process folder into polars frames."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from haiprof import schema
from haiprof.common.arrow_damage import as_invalid, same_memory
from haiprof.errors import HaiprofError
from haiprof.runs import Process
from haiprof.sources import summed_up, table_cache
from haiprof.sources.arrow_memory import from_system
from haiprof.sources.inference import Inference
from haiprof.sources.own import LATEST_NS
from haiprof.sources.segment_file import (
    Cut,
    Opened,
    Segment,
    bytes_of,
    damaged,
    ends_within_batch,
    from_time,
    segments,
)
from haiprof.sources.segment_schema import TIMES, check_schema
from haiprof.sources.whole import Columns

#: Text columns whose values hardly repeat: interning them would only cost.
_PLAIN_TEXT = frozenset({"attributes", "text"})
#: Files of fewer bytes together are read by the thread that asks: to start others takes longer.
_SMALL_BYTES = 1 << 20
#: Of a column with more texts, rows are compared.
_FEW_TEXTS = 1 << 10
#: Non-null columns whose rows are kept even if they are null: nothing is computed from these.
MAY_LACK = frozenset({"name", "value"})


@dataclass(slots=True)
class Read:
    """A table of one process: its rows, files that end within a batch, and what was left out."""

    frame: pl.DataFrame
    cut: int = 0
    problems: list[str] = field(default_factory=list)


def read(
    process: Process,
    table: schema.Table,
    columns: Sequence[str] | None = None,
    keep: Mapping[str, Collection[str]] | None = None,
) -> Read:
    """Read one table of a process as :func:`read_table` does, of its window if it has one.

    Anything that crosses an edge of the window is cut there. Events are included, too, that began
    before it and still apply in it (:data:`haiprof.schema.LASTING`). Inference steps are shown as
    :mod:`haiprof.sources.inference` says.
    """
    inference = Inference(table, columns, keep)
    found = _read_window(process, table, inference.columns, inference.keep)

    def trained() -> bool:
        steps = {"category": ("step",)}
        return read_table(process.folder, schema.SPANS, ("category",), steps).frame.height > 0

    found.frame = inference.shown(found.frame, trained)
    return found


def _read_window(
    process: Process,
    table: schema.Table,
    columns: Sequence[str] | None,
    keep: Mapping[str, Collection[str]] | None,
) -> Read:
    if process.window is None:
        return _read_whole_life(process, table, columns, keep)
    every = [column.name for column in table.columns]
    wanted = every if columns is None else [name for name in every if name in columns]
    needed = {"start", "duration", "time", "kind"}.intersection(every)
    # Of events some apply for long.
    since = None if table is schema.EVENTS else process.window[0]
    inside = _read_whole_life(process, table, [*needed, *wanted], keep, since)
    inside.frame = _within(inside.frame, table, *process.window).select(wanted)
    return inside


def _read_whole_life(
    process: Process,
    table: schema.Table,
    columns: Sequence[str] | None,
    keep: Mapping[str, Collection[str]] | None,
    since: int | None = None,
) -> Read:
    """Read as :func:`read_table` does; rows that were removed, as what was summed up shows them."""
    until = process.summed_up_until(table.name)
    if until is None or (since or 0) > until:
        return read_table(process.folder, table, columns, keep, since)
    wanted = [c for c in table.columns if columns is None or c.name in columns]
    needed = {"start", "time", "category"}.intersection(c.name for c in table.columns)
    names = [c.name for c in table.columns if c in wanted or c.name in {*needed, *(keep or {})}]
    found = read_table(process.folder, table, names, keep, since)
    shown = _summed_up(process, table, until)
    found.problems += shown.problems
    if shown.frame.height:
        older = shown.frame.with_columns(
            pl.lit(None, polars_type(c)).alias(c.name)
            for c in table.columns
            if c.name not in shown.frame.columns
        )
        newer = summed_up.newer(found.frame, shown.boundary)
        found.frame = pl.concat([_with_values(older, keep).select(names), newer.select(names)])
    found.frame = found.frame.select(c.name for c in wanted)
    return found


class _SummedUp(NamedTuple):
    frame: pl.DataFrame
    boundary: int
    problems: list[str]


def _summed_up(process: Process, table: schema.Table, until: int) -> _SummedUp:
    if table is schema.SAMPLES:
        minutes = read_table(process.folder, schema.MINUTES, summed_up.MINUTE_COLUMNS)
        return _SummedUp(*summed_up.samples(minutes.frame, until), minutes.problems)
    parts = read_table(process.folder, schema.STEP_PARTS, summed_up.PART_COLUMNS)
    steps = {"category": ("step", "inference_step")}
    threads = read_table(process.folder, schema.SPANS, ("thread",), steps).frame["thread"]
    thread = int(threads[0]) if len(threads) else process.pid or 0
    return _SummedUp(*summed_up.spans(parts.frame, until, thread), parts.problems)


def _within(frame: pl.DataFrame, table: schema.Table, begin: int, end: int) -> pl.DataFrame:
    if "time" in frame.columns:
        inside = pl.col("time") >= begin
        if table is schema.EVENTS:
            inside |= pl.col("kind").is_in(list(schema.LASTING))
        return frame.filter(inside, pl.col("time") < end)
    if "start" not in frame.columns:
        return frame
    last = pl.col("start") + pl.col("duration")
    inside = (pl.col("start") >= begin) | (last > begin)
    cut = frame.filter(inside, pl.col("start") < end)
    first = pl.col("start").clip(lower_bound=begin)
    # A negative duration stays negative.
    return cut.with_columns(
        first.alias("start"),
        pl.when(pl.col("duration") < 0)
        .then("duration")
        .otherwise(last.clip(upper_bound=end) - first)
        .alias("duration"),
    )


def read_table(
    folder: Path,
    table: schema.Table,
    columns: Sequence[str] | None = None,
    keep: Mapping[str, Collection[str]] | None = None,
    since: int | None = None,
) -> Read:
    """Read one table of a process folder; a file that cannot be read is left out and named.

    Args:
        folder: the process folder.
        table: which table.
        columns: names of the columns wanted; None for all. A nullable one that is absent is null.
        keep: for text columns, the values whose rows are wanted.
        since: files that were closed before this time, ns UTC, need not be read; None: all are.
    """
    with from_system():
        cache = table_cache.current()
        if cache is None:
            return _read_table(folder, table, columns, keep, since)

        def load() -> tuple[Read, int]:
            whole = _read_table(folder, table, None, None, None)
            return whole, int(whole.frame.estimated_size())

        whole: Read | None = cache.get(folder, table.name, lambda: _size(folder, table), load)
        if whole is None:
            return _read_table(folder, table, columns, keep, since)
        names = [c.name for c in table.columns if columns is None or c.name in columns]
        frame = _with_values(whole.frame, keep)[names]
        return Read(frame, whole.cut, list(whole.problems))


def _size(folder: Path, table: schema.Table) -> int:
    """Return the size of a table's files, bytes."""
    return bytes_of(segments(folder, table.name, []))


def _with_values(frame: pl.DataFrame, keep: Mapping[str, Collection[str]] | None) -> pl.DataFrame:
    for name, values in (keep or {}).items() if frame.height else ():
        frame = frame.filter(pl.col(name).is_in(list(values)))
    return frame


def _read_table(
    folder: Path,
    table: schema.Table,
    columns: Sequence[str] | None,
    keep: Mapping[str, Collection[str]] | None,
    since: int | None,
) -> Read:
    wanted = [c for c in table.columns if columns is None or c.name in columns]
    filtered = [c for c in table.columns if keep and c.name in keep and c not in wanted]
    read = Read(empty(wanted))
    found = segments(folder, table.name, read.problems)
    if not found:
        return read
    if since is not None:
        found = from_time(found, since)
    if not keep and (whole := _read_whole(found, table, wanted)) is not None:
        read.frame = whole
        return _possible(read, folder, table)
    # Several files are read in parallel, which serves better than the columns of each.
    alone, small = len(found) < 2, bytes_of(found) < _SMALL_BYTES

    def load(segment: Segment) -> Read:
        threads = alone and not small
        loaded = _read_segment(segment, table, [*wanted, *filtered], threads=threads, keep=keep)
        loaded.frame = _with_values(loaded.frame, keep)[[c.name for c in wanted]]
        return loaded

    if alone or small:
        parts = [load(segment) for segment in found]
    else:
        with ThreadPoolExecutor(min(len(found), os.cpu_count() or 1)) as pool:
            parts = list(pool.map(load, found))
    read.cut = sum(each.cut for each in parts)
    read.problems += [problem for each in parts for problem in each.problems]
    frames = [each.frame for each in parts if each.frame.height]
    del parts
    if frames:
        read.frame = _stacked(frames)
    return _possible(read, folder, table)


def _possible(read: Read, folder: Path, table: schema.Table) -> Read:
    """Drop unusable rows: those with an impossible time, or with an unexpected null."""
    rows = read.frame.height
    for name in TIMES.intersection(read.frame.columns):
        low, high = read.frame[name].min(), read.frame[name].max()
        if low is not None and (low <= -LATEST_NS or high >= LATEST_NS):  # type: ignore[operator]
            read.frame = read.frame.filter(pl.col(name).is_between(-LATEST_NS, LATEST_NS, "none"))
    whole = {c.name for c in table.columns if not c.nullable} - MAY_LACK
    needed = [name for name in read.frame.columns if name in whole]
    if any(read.frame[name].null_count() for name in needed):
        read.frame = read.frame.drop_nulls(needed)
    if read.frame.height < rows:
        read.problems.append(
            f"{folder}: {rows - read.frame.height} rows of {table.name} have no possible time, or "
            "lack a value, and are left out: copy its files again from the node that wrote them"
        )
    return read


def _read_whole(
    found: list[Segment], table: schema.Table, columns: Sequence[schema.Column]
) -> pl.DataFrame | None:
    """Read closed files into columns of one piece; None where one is not closed, or not sound."""
    if not found or any(segment.closed is None for segment in found):
        return None
    names = [c.name for c in columns]
    try:
        with contextlib.ExitStack() as stack:
            files = []
            for segment in found:
                opened = stack.enter_context(Opened(segment))
                if opened.live:
                    return None
                check_schema(opened.schema, table, columns, opened.file)
                files.append(opened)
            kinds = {c.name: polars_type(c) for c in columns}
            whole = Columns(kinds, [file.schema for file in files])
            heights = [file.height() for file in files]
            whole.make_room(heights)
            for file in files:
                file.pick(names, threads=len(files) < 2)

            def fill(part: int) -> None:
                row = 0
                for batch in files[part].batches():
                    if row + batch.num_rows > heights[part]:
                        raise pa.ArrowInvalid("more rows than there is room for")
                    whole.put(part, row, batch)
                    row += batch.num_rows
                if files[part].damage or row < heights[part]:
                    raise pa.ArrowInvalid(files[part].damage)

            # What is not compressed is only copied: threads gain little, and keep memory each.
            pairs = zip(files, heights, strict=True)
            small = bytes_of(found) < _SMALL_BYTES
            if small or not any(file.compressed(rows) for file, rows in pairs):
                for part in range(len(files)):
                    fill(part)
            else:
                with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1)) as pool:
                    list(pool.map(fill, range(len(files))))
            return whole.frame()
    except (HaiprofError, OSError, MemoryError, pa.ArrowException, pl.exceptions.PolarsError):
        return None  # read one by one, and named where they are left out


def _stacked(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Put frames of the same columns below each other, each column in one piece.

    What is in one piece is handed to numpy as it is. Numbers are copied by numpy, whose large
    arrays are made of large pages; each column's pieces are given up once they are copied.
    """
    height = sum(frame.height for frame in frames)
    names = frames[0].columns
    pieces = {name: [frame[name] for frame in frames] for name in names}
    frames.clear()
    stacked = []
    for name in names:
        column = pieces.pop(name)
        kind = column[0].dtype
        if len(column) == 1 and column[0].n_chunks() == 1:
            stacked.append(column[0])
        elif kind.is_numeric() and not any(piece.null_count() for piece in column):
            whole = np.empty(height, column[0].head(0).to_numpy().dtype)
            at = 0
            for piece in column:
                for chunk in piece.get_chunks():
                    whole[at : at + len(chunk)] = chunk.to_numpy()
                    at += len(chunk)
            stacked.append(pl.Series(name, whole))
        else:
            stacked.append(pl.concat(column, rechunk=True))
    return pl.DataFrame(stacked)


def filled(folder: Path, table: schema.Table, columns: Collection[str]) -> set[str]:
    """Return those of ``columns`` that any row of a table has a value in.

    Args:
        folder: the process folder.
        table: which table; without columns nothing is said of it.
        columns: names of columns.
    """
    found: set[str] = set()
    with from_system():
        for segment in segments(folder, table.name, []):
            wanted = [name for name in columns if name not in found]
            if not wanted:
                break
            with contextlib.suppress(OSError, pa.ArrowInvalid), Opened(segment) as opened:
                there = [name for name in wanted if name in opened.schema.names]
                if not there:
                    continue
                if not opened.live:
                    opened.pick(there, threads=False)
                for batch in opened.batches():
                    found.update(
                        name for name in there if batch.column(name).null_count < batch.num_rows
                    )
                    if found.issuperset(there):
                        break
    return found


def values(folder: Path, table: schema.Table, column: str) -> set[str]:
    """Return the texts that a text column of a table has."""
    read = read_table(folder, table, (column,)).frame[column]
    return set(read.drop_nulls().unique().cast(pl.String).to_list())


def count_cut(folder: Path) -> int:
    """Count the live streams of a process folder that end within a batch, without decoding them."""
    return sum(
        ends_within_batch(segment.live)
        for name in schema.TABLES
        for segment in segments(folder, name, [])
        if segment.closed is None and segment.live is not None
    )


def check(folder: Path) -> list[str]:
    """Name the files of a process folder that cannot be read, from their heads alone."""
    problems: list[str] = []
    for table in schema.TABLES.values():
        for segment in segments(folder, table.name, problems):
            try:
                with Opened(segment) as opened:
                    check_schema(opened.schema, table, table.columns, opened.file)
                    if opened.live and opened.file == segment.closed:
                        problems.append(
                            f"{opened.file}: ends too early, so that only its beginning is read: "
                            "copy it again from the node that wrote it"
                        )
            except HaiprofError as error:
                problems.append(str(error))
            except pa.ArrowInvalid as error:
                file = segment.closed or segment.live
                if file is not None and not (isinstance(error, Cut) and segment.closed is None):
                    problems.append(damaged(file, error))
            except OSError:
                pass  # said when its rows are read
    return problems


def polars_type(column: schema.Column) -> pl.DataType:
    """Return the polars type of a column of contract 2."""
    if column.kind == "text":
        return pl.String() if column.name in _PLAIN_TEXT else pl.Categorical()
    kind: pl.DataType = {
        "int64": pl.Int64,
        "uint64": pl.UInt64,
        "uint32": pl.UInt32,
        "uint16": pl.UInt16,
        "float64": pl.Float64,
    }[column.kind]()
    return kind


def empty(columns: Sequence[schema.Column]) -> pl.DataFrame:
    """Return a frame without rows that has the given columns."""
    return _empty(tuple(columns)).clone()


# Most tables of most processes have no rows, and to make a frame takes longer than to copy one.
@functools.cache
def _empty(columns: tuple[schema.Column, ...]) -> pl.DataFrame:
    return pl.DataFrame(schema={c.name: polars_type(c) for c in columns})


def _read_segment(
    segment: Segment,
    table: schema.Table,
    columns: Sequence[schema.Column],
    *,
    threads: bool,
    keep: Mapping[str, Collection[str]] | None,
) -> Read:
    names = [c.name for c in columns]
    file = segment.closed or segment.live
    assert file is not None
    try:
        with Opened(segment, names, threads=threads) as opened:
            check_schema(opened.schema, table, columns, opened.file)
            found = [name for name in names if name in opened.schema.names]
            picked = pa.schema([opened.schema.field(name) for name in found])
            batches = [batch.select(found) for batch in opened.batches()]
            if not opened.damage and not _may_have(batches, keep):
                return Read(empty(columns), int(opened.live and opened.cut))
            with as_invalid():
                frame = _to_frame(pa.Table.from_batches(batches, picked), columns)
            damage = pa.ArrowInvalid(opened.damage) if opened.damage else None
            problems = [] if damage is None else [damaged(opened.file, damage, frame.height)]
            return Read(frame, int(opened.live and (opened.cut or bool(damage))), problems)
    except HaiprofError as error:
        return Read(empty(columns), problems=[str(error)])
    except PermissionError as error:
        line = f"{file}: cannot be read ({error.strerror}): ask its owner for access"
        return Read(empty(columns), problems=[line])
    except pa.ArrowInvalid as error:
        if isinstance(error, Cut) and segment.closed is None:
            return Read(empty(columns), int(file.exists() and file.stat().st_size > 0))
        return Read(empty(columns), problems=[damaged(file, error)])
    except OSError as error:
        if not os.path.lexists(file):  # the recorder has thinned it since it was listed
            return Read(empty(columns))
        return Read(empty(columns), problems=[damaged(file, error)])


def _may_have(
    batches: Sequence[pa.RecordBatch], keep: Mapping[str, Collection[str]] | None
) -> bool:
    """Say whether any row may have these values, by the texts that the batches come with.

    Most processes have no event of most kinds, and a frame without rows takes as long as another.
    """
    for name, values in (keep or {}).items():
        known: pa.Array | None = None
        for batch in batches:
            column = batch.column(name) if name in batch.schema.names else None
            if column is None or not pa.types.is_dictionary(column.type):
                return True
            texts = column.dictionary
            if len(texts) > _FEW_TEXTS or (
                not same_memory(texts, known) and not set(values).isdisjoint(texts.to_pylist())
            ):
                return True
            known = texts
        if batches:
            return False
    return True


def _to_frame(table: pa.Table, columns: Sequence[schema.Column]) -> pl.DataFrame:
    if table.num_rows == 0:
        return empty(columns)
    read = pl.from_arrow(table)
    assert isinstance(read, pl.DataFrame)
    kinds = {c.name: polars_type(c) for c in columns}
    if list(read.schema.items()) == list(kinds.items()):
        return read
    return read.select(
        pl.col(name)
        if read.schema.get(name) == kind
        else (pl.col(name) if name in read.columns else pl.lit(None))
        .cast(kind, strict=False)
        .alias(name)
        for name, kind in kinds.items()
    )
