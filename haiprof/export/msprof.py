"""Summaries and timelines with the files and columns that users of msprof and torch_npu know.

What msprof only knows of its own chips is left out. ``Rank`` leads each row, and is the process's
label where it has no rank. Times are µs: durations as fractions, points in time as texts with three
decimals, since a 64-bit fraction would lose their ns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal, TypeAlias

import polars as pl

from haiprof import schema
from haiprof.answers import one_trace
from haiprof.export import chrome, target
from haiprof.export.chosen import Chosen, done, traced
from haiprof.export.csv import without_formulas
from haiprof.export.json_members import microseconds
from haiprof.views.trace.as_other_tools.msprof_op_statistics import op_statistics
from haiprof.views.trace.as_other_tools.msprof_step_trace import step_trace
from haiprof.views.trace.communication import communications
from haiprof.views.trace.kernels import launching_operator
from haiprof.views.trace.linking.linked import Linked

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

Format: TypeAlias = Literal["csv", "json"]
#: Rows that are made into text at once.
_AT_ONCE: Final = 1 << 16


def write_summary(
    analyzer: Analyzer,
    folder: Path,
    rank: int | None = None,
    form: Format = "csv",
    on_process: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write a table of steps, two of operators, of calls and of communication; return the files.

    Args:
        analyzer: the run; of one with deep traces in its folders these are summed up.
        folder: must not be there.
        rank: this one only.
        form: of the files.
        on_process: called with each process's label before it is read.

    Raises:
        HaiprofError: ``folder`` is there or cannot be written, or there is no such rank.
    """
    processes = traced(analyzer, rank)
    with target.whole(folder) as partial:
        partial.mkdir()
        with contextlib.ExitStack() as stack:
            sheets: dict[str, _Sheet] = {}
            for each, frames in done(
                analyzer, _summaries, [(each,) for each in processes], on_process
            ):
                for name, frame in frames:
                    if not frame.height:
                        continue
                    if name not in sheets:
                        file = partial / f"{name}.{form}"
                        sheets[name] = stack.enter_context(_Sheet(file, form))
                    sheets[name].write(_with_rank(each, frame))
    return [folder / f"{name}.{form}" for name in sheets]


def write_timeline(
    analyzer: Analyzer,
    folder: Path,
    rank: int | None = None,
    form: Format = "json",
    on_process: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write what ran when, one file for each process: Chrome's JSON, or CSV; return the files.

    Args and errors are those of :func:`write_summary`.
    """
    if form == "json":
        return chrome.write(analyzer, folder, rank, on_process, ending=".json")
    processes = traced(analyzer, rank)
    names = [f"{name}.csv" for name in chrome.distinct_names(processes)]
    with target.whole(folder) as partial:
        partial.mkdir()
        jobs = [(each, partial / name) for each, name in zip(processes, names, strict=True)]
        written = [file for _, file in done(analyzer, _write_timeline, jobs, on_process)]
    return [folder / file.name for file in written]


def _write_timeline(each: Chosen, file: Path) -> Path:
    with _Sheet(file, "csv") as sheet:
        sheet.write(_timeline(each))
    return file


class _Sheet:
    """A table in a file, written part by part."""

    def __init__(self, file: Path, form: Format) -> None:
        self._file = file
        self._form = form
        self._first = True

    def __enter__(self) -> _Sheet:
        self._out: IO[bytes] = self._file.open("xb")
        return self

    def __exit__(self, *error: object) -> None:
        with self._out:
            if self._form == "json" and error[0] is None:
                self._out.write(b"[]" if self._first else b"\n]")

    def write(self, frame: pl.DataFrame) -> None:
        """Append rows; all parts have the same columns."""
        # Of a table without rows the names of its columns are written.
        for part in frame.iter_slices(_AT_ONCE) if frame.height else (frame,):
            if self._form == "csv":
                text = without_formulas(part).write_csv(
                    include_header=self._first, null_value="N/A"
                )
            else:
                rows = part.select(pl.struct(pl.all()).struct.json_encode()).to_series()
                text = ("[\n" if self._first else ",\n") + rows.str.join(",\n").item()
            self._out.write(text.encode())
            self._first = False


def _with_rank(each: Chosen, frame: pl.DataFrame) -> pl.DataFrame:
    rank = each.process.rank
    return frame.select(
        pl.lit(each.label if rank is None else str(rank)).alias("Rank"),
        pl.all(),
    )


def _summaries(each: Chosen) -> list[tuple[str, pl.DataFrame]]:
    sheets: list[tuple[str, pl.DataFrame]]
    sheets = one_trace.apply(each.process, _of_linked, None, None, False)
    apis = _apis(each.read(schema.SPANS, ("category", "name", "duration")))
    return [*sheets, ("api_statistic", apis)]


def _of_linked(linked: Linked) -> list[tuple[str, pl.DataFrame]]:
    steps = step_trace(linked)
    # Without any it is one step, of all that there is.
    stepped = steps if linked.stepped else steps.clear()
    return [
        ("step_trace", _iterations(stepped)),
        ("step_trace_time", _step_times(stepped)),
        ("op_statistic", _operators(op_statistics(linked))),
        ("op_summary", _tasks(linked)),
        ("communication_statistic", _communication(linked)),
    ]


def _iterations(steps: pl.DataFrame) -> pl.DataFrame:
    before = pl.col("device_end").shift()
    return steps.select(
        pl.col("step").alias("Iteration ID"),
        _at("forward_start").alias("FP Start(us)"),
        _at("backward_end").alias("BP End(us)"),
        _at("device_end").alias("Iteration End(us)"),
        _us(pl.col("device_end") - pl.coalesce(before, "forward_start")).alias(
            "Iteration Time(us)"
        ),
        _us("forward_backward").alias("FP to BP Time(us)"),
        _us("refresh").alias("Iteration Refresh(us)"),
        _us("interval").alias("Data Aug Bound(us)"),
    )


def _step_times(steps: pl.DataFrame) -> pl.DataFrame:
    return steps.select(
        pl.col("step").alias("Step"),
        _us("computing").alias("Computing"),
        _us("exposed").alias("Communication(Not Overlapped)"),
        _us("overlapped").alias("Overlapped"),
        _us("communication").alias("Communication"),
        # Neither computing nor communicating, as torch_npu has it: copies are in it.
        _us(pl.col("free") + pl.col("copying")).alias("Free"),
        _us("duration").alias("Stage"),
        _us("preparing").alias("Preparing"),
    )


def _operators(statistics: pl.DataFrame) -> pl.DataFrame:
    return statistics.select(
        pl.col("op").cast(pl.String).alias("OP Type"),
        pl.col("unit").cast(pl.String).alias("Core Type"),
        pl.col("count").alias("Count"),
        _us("total").alias("Total Time(us)"),
        _us("min").alias("Min Time(us)"),
        _us("mean").alias("Avg Time(us)"),
        _us("max").alias("Max Time(us)"),
        (pl.col("share") * 100).alias("Ratio(%)"),
    )


def _tasks(linked: Linked) -> pl.DataFrame:
    op, _ = launching_operator(linked)
    ended = pl.col("end").cum_max().shift().over("device", "stream")
    return (
        linked.activities.filter(pl.Series(linked.busy))
        .with_columns(op.filter(linked.busy).alias("operator"))
        .sort("start", maintain_order=True)
        .select(
            pl.col("device").alias("Device_id"),
            pl.col("stream").alias("Stream ID"),
            pl.col("correlation").alias("Task ID"),
            pl.col("name").cast(pl.String).alias("Op Name"),
            pl.coalesce(
                pl.col("op_type").cast(pl.String), pl.col("operator").cast(pl.String)
            ).alias("OP Type"),
            pl.coalesce(pl.col("unit").cast(pl.String), pl.col("kind").cast(pl.String)).alias(
                "Task Type"
            ),
            _at("start").alias("Task Start Time(us)"),
            _us(pl.col("end") - pl.col("start")).alias("Task Duration(us)"),
            _us((pl.col("start") - ended).clip(lower_bound=0).fill_null(0)).alias(
                "Task Wait Time(us)"
            ),
            (pl.col("grid_x").cast(pl.UInt64) * pl.col("grid_y") * pl.col("grid_z")).alias(
                "Block Dim"
            ),
        )
    )


def _apis(spans: pl.DataFrame) -> pl.DataFrame:
    us = pl.col("duration") / 1000
    return (
        spans.filter(pl.col("category").cast(pl.String) == "runtime")
        .group_by(pl.col("name").cast(pl.String).alias("API Name"))
        .agg(
            us.sum().alias("Time(us)"),
            pl.len().alias("Count"),
            us.mean().alias("Avg(us)"),
            us.min().alias("Min(us)"),
            us.max().alias("Max(us)"),
            us.var(ddof=0).alias("Variance"),
        )
        .select(pl.lit("runtime").alias("Level"), pl.all())
        .sort("Time(us)", "API Name", descending=[True, False])
    )


def _communication(linked: Linked) -> pl.DataFrame:
    us = (pl.col("end") - pl.col("start")) / 1000
    total = pl.col("Total Time(us)")
    return (
        communications(linked)
        .group_by(pl.col("op").alias("OP Type"))
        .agg(
            pl.len().alias("Count"),
            us.sum().alias("Total Time(us)"),
            us.min().alias("Min Time(us)"),
            us.mean().alias("Avg Time(us)"),
            us.max().alias("Max Time(us)"),
        )
        .with_columns(pl.when(total.sum() > 0).then(total / total.sum() * 100).alias("Ratio(%)"))
        .sort("Total Time(us)", "OP Type", descending=[True, False])
    )


def _timeline(each: Chosen) -> pl.DataFrame:
    lanes = {"device": "Device_id", "stream": "Stream ID", "thread": "Thread ID"}
    parts = []
    for table, category in (
        (schema.SPANS, "category"),
        (schema.KERNELS, "kind"),
        (schema.DEVICE_SPANS, "category"),
    ):
        there = [column.name for column in table.columns]
        columns = [name for name in lanes if name in there]
        frame = each.read(table, ("start", "duration", "name", category, *columns))
        parts.append(
            frame.sort("start", maintain_order=True).select(
                pl.col("name").cast(pl.String).alias("Name"),
                pl.col(category).cast(pl.String).alias("Category"),
                *(
                    (pl.col(name) if name in columns else pl.lit(None)).cast(pl.Int64).alias(title)
                    for name, title in lanes.items()
                ),
                _at("start").alias("Start Time(us)"),
                _us("duration").alias("Duration(us)"),
            )
        )
    return pl.concat(parts)


def _us(ns: str | pl.Expr) -> pl.Expr:
    return (pl.col(ns) if isinstance(ns, str) else ns) / 1000


def _at(column: str) -> pl.Expr:
    return microseconds(pl.col(column))
