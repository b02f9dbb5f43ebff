"""Tables of a process as arrays of numpy: of a rank with few rows, calls of polars take the time.

What is closed and sound is read without a frame. All else - a live run, a part of one, a damaged
file, inference - is read as :mod:`haiprof.sources.tables` reads it, and then taken apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from haiprof import schema
from haiprof.common.arrow_columns import dtype_of
from haiprof.common.arrow_damage import same_memory
from haiprof.errors import HaiprofError
from haiprof.runs import Process
from haiprof.sources import table_cache, tables
from haiprof.sources.arrow_memory import from_system
from haiprof.sources.own import LATEST_NS
from haiprof.sources.segment_file import Opened, segments
from haiprof.sources.segment_schema import TIMES, check_schema

Mask = npt.NDArray[np.bool_]
#: The value of a number that is null, and the code of a text that is.
NONE: Final = -1
#: Of each column of texts, those of the last batch: most batches of a file share them.
_Known: TypeAlias = dict[str, tuple[pa.Array, list[str]]]


class Texts(NamedTuple):
    """A column of texts: of each row the place of its text in ``words``, or :data:`NONE`."""

    codes: npt.NDArray[np.int64]
    words: list[str]

    def among(self, *texts: str) -> Mask:
        """Return which rows have one of these texts."""
        codes = [code for code, word in enumerate(self.words) if word in texts]
        rows = np.zeros(len(self.codes), np.bool_)
        for code in codes:
            rows |= self.codes == code
        return rows

    def where(self, rows: Any) -> Texts:
        """Return the texts of some rows."""
        return Texts(self.codes[rows], self.words)


@dataclass(slots=True)
class Arrays:
    """A table of one process: its columns, files that end within a batch, and what was left out.

    ``numbers`` has integers as int64, null as :data:`NONE`, and others as float64, null as NaN.
    """

    rows: int = 0
    numbers: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    texts: dict[str, Texts] = field(default_factory=dict)
    cut: int = 0
    problems: list[str] = field(default_factory=list)

    def where(self, rows: Any) -> Arrays:
        """Return some of the rows, by a mask or by their places."""
        numbers = {name: values[rows] for name, values in self.numbers.items()}
        texts = {name: each.where(rows) for name, each in self.texts.items()}
        height = len(next(iter(numbers.values()))) if numbers else 0
        return Arrays(height, numbers, texts, self.cut, self.problems)


def read(
    process: Process,
    table: schema.Table,
    columns: Sequence[str],
    keep: Mapping[str, Collection[str]] | None = None,
) -> Arrays:
    """Read some columns of one table of a process, of text columns the values to ``keep``.

    Args:
        process: the process.
        table: which table.
        columns: names of columns, at least one of numbers; as :func:`haiprof.sources.tables.read`
            has them.
        keep: of text columns among them, the values of which rows are wanted.
    """
    keep = keep or {}
    whole = process.window is None and process.summed_up_until(table.name) is None
    if whole and table_cache.current() is None:
        # Inference is known by the steps.
        with_steps = (*columns, "step") if "step" in {c.name for c in table.columns} else columns
        with from_system():
            found = _sound(process, table, with_steps, keep)
        if found is not None:
            if "step" not in columns:
                found.numbers.pop("step", None)
            return found
    read = tables.read(process, table, columns, keep)
    arrays = of_frame(read.frame)
    arrays.cut, arrays.problems = read.cut, list(read.problems)
    return arrays


def of_frame(frame: pl.DataFrame) -> Arrays:
    """Take the columns of a frame apart."""
    arrays = Arrays(frame.height)
    for name, column in zip(frame.columns, frame.get_columns(), strict=True):
        if isinstance(column.dtype, (pl.Categorical, pl.String, pl.Enum)):
            texts = column.cast(pl.String)
            words = texts.unique(maintain_order=True).drop_nulls()
            codes = texts.replace_strict(
                words, np.arange(len(words)), default=NONE, return_dtype=pl.Int64
            )
            arrays.texts[name] = Texts(codes.to_numpy(), words.to_list())
        elif column.dtype.is_float():
            arrays.numbers[name] = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
        else:
            arrays.numbers[name] = column.cast(pl.Int64).fill_null(NONE).to_numpy()
    return arrays


def _sound(
    process: Process,
    table: schema.Table,
    columns: Sequence[str],
    keep: Mapping[str, Collection[str]],
) -> Arrays | None:
    """Read closed files; None where that is not what they are, or is not all that there is."""
    problems: list[str] = []
    found = segments(process.folder, table.name, problems)
    wanted = [column for column in table.columns if column.name in columns]
    pieces: list[Arrays] = []
    known: _Known = {}
    try:
        for segment in found:
            if segment.closed is None or segment.live is not None:
                return None
            with Opened(segment, columns, threads=False) as opened:
                check_schema(opened.schema, table, wanted, opened.file)
                for batch in opened.batches():
                    piece = _of_batch(batch, wanted, keep, known)
                    if piece is None:
                        return None
                    pieces.append(piece)
                if opened.live or opened.damage:
                    return None
    except (HaiprofError, OSError, pa.ArrowException):
        return None
    return None if problems else _joined(pieces, wanted)


def _of_batch(
    batch: pa.RecordBatch,
    columns: Sequence[schema.Column],
    keep: Mapping[str, Collection[str]],
    known: _Known,
) -> Arrays | None:
    """Take a batch apart; None where it has what a frame would be needed for."""
    arrays = Arrays(batch.num_rows)
    names = batch.schema.names
    for column in columns:
        given = batch.column(names.index(column.name)) if column.name in names else None
        needed = not column.nullable and column.name not in tables.MAY_LACK
        if given is not None and given.null_count and needed:
            return None
        if column.kind == "text":
            arrays.texts[column.name] = _texts(column.name, given, batch.num_rows, known)
            continue
        values = _numbers(given, column, batch.num_rows)
        if values.size and not _possible(column.name, values):
            return None
        arrays.numbers[column.name] = values
    for name, wanted in keep.items():
        if arrays.rows:
            mine = arrays.texts[name].among(*wanted)
            if not mine.all():
                arrays = arrays.where(mine)
    return arrays


def _possible(name: str, values: npt.NDArray[Any]) -> bool:
    if name in TIMES:
        return bool(-LATEST_NS < values.min() <= values.max() < LATEST_NS)
    return name != "step" or bool(values.max() < schema.INFERENCE)


def _numbers(given: pa.Array | None, column: schema.Column, rows: int) -> npt.NDArray[Any]:
    floats = column.kind == "float64"
    if given is None:
        return np.full(rows, np.nan) if floats else np.full(rows, NONE)
    dtype = dtype_of(given.type)
    values: npt.NDArray[Any] = np.zeros(0, dtype)
    if rows:
        data = given.buffers()[1]
        values = np.frombuffer(data, dtype, rows, given.offset * dtype.itemsize)
    values = values.astype(np.float64 if floats else np.int64, copy=False)
    if given.null_count:
        valid = given.is_valid().to_numpy(zero_copy_only=False)
        values = np.where(valid, values, np.nan if floats else NONE)
    return values


def _texts(name: str, given: pa.Array | None, rows: int, known: _Known) -> Texts:
    if given is None:
        return Texts(np.full(rows, NONE), [])
    if not pa.types.is_dictionary(given.type):
        given = given.dictionary_encode()
    codes = given.indices
    dtype = dtype_of(codes.type)
    numbers = np.zeros(0, np.int64)
    if rows:
        data = codes.buffers()[1]
        numbers = np.frombuffer(data, dtype, rows, codes.offset * dtype.itemsize).astype(np.int64)
    if codes.null_count:
        numbers = np.where(codes.is_valid().to_numpy(zero_copy_only=False), numbers, NONE)
    before = known.get(name)
    if before is not None and same_memory(given.dictionary, before[0]):
        words = before[1]
    else:
        words = given.dictionary.to_pylist()
        known[name] = given.dictionary, words
    if None in words:
        none = [code for code, word in enumerate(words) if word is None]
        numbers = np.where(np.isin(numbers, none), NONE, numbers)
        words = ["" if word is None else word for word in words]
    return Texts(numbers, words)


def _joined(pieces: Sequence[Arrays], columns: Sequence[schema.Column]) -> Arrays:
    """Put the batches of a table one behind the other."""
    if len(pieces) == 1 and all(len({*t.words}) == len(t.words) for t in pieces[0].texts.values()):
        return pieces[0]
    whole = Arrays(sum(piece.rows for piece in pieces))
    for column in columns:
        name = column.name
        if column.kind == "text":
            whole.texts[name] = _of_one_list([piece.texts[name] for piece in pieces])
        elif pieces:
            whole.numbers[name] = np.concatenate([piece.numbers[name] for piece in pieces])
        else:
            whole.numbers[name] = np.zeros(0, np.float64 if column.kind == "float64" else np.int64)
    return whole


def _of_one_list(pieces: Sequence[Texts]) -> Texts:
    places: dict[str, int] = {}
    codes = [np.zeros(0, np.int64)]
    words: list[str] | None = None
    for piece in pieces:
        if piece.words is not words:
            words = piece.words
            mine = np.array([*(places.setdefault(word, len(places)) for word in words), NONE])
        codes.append(mine[piece.codes])
    return Texts(np.concatenate(codes), list(places))
