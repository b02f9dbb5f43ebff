"""The operations of a trace: which are on which rank, and when.

Times count from the beginning of each step, and nothing says how long it is from one step to the
next: steps are placed one after the other.

Tests: tests/sources/straggler/test_find.py.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources import peek
from haiprof.sources.straggler import meta as sizes

#: The columns of a trace; more are not read.
COLUMNS: Final = (
    "dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mc", "mb_id",
)  # fmt: skip
_WHOLE: Final = ("dp_rank", "stage", "rank", "step", "mc", "mb_id")
_TIMES: Final = ("start_ts", "duration")
_PARQUET: Final = b"PAR1"
_MOST_ROWS: Final = 100_000_000
_MOST_RANKS: Final = 1 << 17
_U32: Final = (1 << 32) - 1
#: Longer steps are none, s.
_LONGEST: Final = 1e7
_NS: Final = 1e9
_reading = threading.Lock()


class Operations(NamedTuple):
    """What the ranks did: ``frame`` has a row for each operation, in ns, sorted by rank.

    Columns: ``rank``, ``start``, ``duration``, ``name``, ``step``, ``microbatch``, ``stage``,
    ``chunk``. ``steps`` has ``step``, ``start`` and ``duration`` of each step.
    """

    frame: pl.DataFrame
    steps: pl.DataFrame
    world_size: int | None
    problems: tuple[str, ...]


def is_trace(path: Path) -> bool:
    """Say whether a file is a Parquet file with the columns of such a trace."""
    if not peek.head(path).startswith(_PARQUET):
        return False
    try:
        with _whole(path):
            return set(COLUMNS) <= set(pl.read_parquet_schema(path))
    except (OSError, HaiprofError):
        return False


def read(path: str, mtime_ns: int) -> Operations:
    """Read a trace. The last one is cached, since each of its ranks is imported separately.

    Raises:
        HaiprofError: columns are of other types, no row can be used, or ``meta-NAME.yaml`` beside
            it says something else than the trace.
        OSError: it cannot be read.
    """
    with _reading, _whole(path):
        return _read(path, mtime_ns)


@functools.lru_cache(maxsize=1)
def _read(path: str, mtime_ns: int) -> Operations:
    rows, left_out = _rows(path)
    problems = []
    if left_out:
        problems.append(
            f"{path}: {left_out} operations have no rank, stage, step, name or time, or one that "
            "cannot be: left out; see how the trace was written"
        )
    meta, more = _meta(Path(path), rows)
    lengths = (
        rows.group_by("step")
        .agg((pl.col("start") + pl.col("duration")).max().alias("duration"))
        .sort("step")
        .with_columns((pl.col("duration").cum_sum() - pl.col("duration")).alias("begin"))
    )
    frame = (
        rows.join(lengths.select("step", "begin"), on="step")
        .with_columns(pl.col("start") + pl.col("begin"))
        .drop("begin", "dp_rank")
        .sort("rank", "start", maintain_order=True)
    )
    steps = lengths.select("step", pl.col("begin").alias("start"), "duration")
    return Operations(frame, steps, meta and meta.world_size, (*problems, *more))


@contextlib.contextmanager
def _whole(path: str | Path) -> Iterator[None]:
    """Raise a HaiprofError where polars says that a file is damaged, or panics."""
    try:
        yield
    except BaseException as error:
        damaged = isinstance(error, pl.exceptions.PolarsError)
        if not damaged and type(error).__name__ != "PanicException":
            raise
        why = printable(str(error))[:200]
        raise HaiprofError(f"{path}: is cut off or damaged ({why}): copy it again") from None


def _rows(path: str) -> tuple[pl.DataFrame, int]:
    scan = pl.scan_parquet(path)
    schema = scan.collect_schema()
    for name in COLUMNS:
        kind = schema[name]
        fits = (
            kind.is_integer()
            if name in _WHOLE
            else kind.is_numeric()
            if name in _TIMES
            else kind in (pl.String, pl.Categorical)
        )
        if not fits:
            wanted = "integers" if name in _WHOLE else "s" if name in _TIMES else "text"
            raise HaiprofError(f"{path}: column {name} is {kind}: write {wanted}")
    count = scan.select(pl.len()).collect().item()
    if count > _MOST_ROWS:
        raise HaiprofError(
            f"{path}: has {count} operations, more than {_MOST_ROWS}: write fewer steps"
        )
    ns = {name: (pl.col(name).cast(pl.Float64) * _NS).round() for name in _TIMES}
    limit = _LONGEST * _NS
    good = pl.all_horizontal(
        pl.col("dp_rank", "stage", "rank").is_between(0, _MOST_RANKS),
        pl.col("step").is_between(0, _U32),
        pl.col("optype").is_not_null() & (pl.col("optype").cast(pl.String) != ""),
        # Comparisons leave out what is no number, too.
        *(ns[name].is_between(0, limit) for name in _TIMES),
    )
    rows = (
        scan.filter(good.fill_null(False))
        .select(
            pl.col("dp_rank", "rank").cast(pl.Int64),
            pl.col("step").cast(pl.UInt32),
            pl.col("optype").cast(pl.String).alias("name"),
            ns["start_ts"].cast(pl.Int64).alias("start"),
            ns["duration"].cast(pl.Int64).alias("duration"),
            *(
                pl.when(pl.col(name).is_between(0, _MOST_RANKS))
                .then(name)
                .cast(pl.UInt32)
                .alias(to)
                for name, to in (("mb_id", "microbatch"), ("mc", "chunk"), ("stage", "stage"))
            ),
        )
        .collect()
    )
    if not rows.height:
        raise HaiprofError(
            f"{path}: has no operation with a rank, a step and a time: write it again"
        )
    return rows, count - rows.height


def _meta(path: Path, rows: pl.DataFrame) -> tuple[sizes.Meta | None, list[str]]:
    """Return the sizes of the groups, and a line if nothing says them.

    Raises:
        HaiprofError: they are not those of the trace.
    """
    place = sizes.place_of(path)
    # The order of the replicas of a stage is that of their ranks everywhere else.
    places = rows.select("rank", "stage", "dp_rank").unique()
    order = pl.col("rank").rank("dense").over("stage") - 1
    if (
        places["rank"].n_unique() < places.height
        or places.select((order != pl.col("dp_rank")).any()).item()
    ):
        raise HaiprofError(
            f"{path}: columns rank, stage and dp_rank contradict each other: give each rank one "
            "stage and one dp_rank, ascending with it in each stage"
        )
    if not place.is_file():
        return None, [
            f"{path}: has no {place.name} beside it: the sizes of its groups are not checked; copy "
            "that file, too"
        ]
    meta = sizes.read(place)
    there = {
        "dp_size": places["dp_rank"].n_unique(),
        "pp_size": places["stage"].n_unique(),
        "vpp_size": 1 + rows.select(pl.col("chunk").max().fill_null(0)).item(),
    }
    for name, size in there.items():
        said = getattr(meta, name)
        # Replicas within the data-parallel group count as its ranks.
        if said != size and not (name == "dp_size" and said * meta.dsp_size == size):
            raise HaiprofError(
                f"{place}: {name}: {said}, but {path.name} has {size}: give the trace's own file, "
                "or all of the trace"
            )
    return meta, []
