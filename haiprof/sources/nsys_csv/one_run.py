"""Imports the tables of ``nsys stats`` of one report: traces as rows, summaries as metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import polars as pl

from haiprof.errors import HaiprofError
from haiprof.sources.imports import marked_steps
from haiprof.sources.imports.imported import Imported, gpu
from haiprof.sources.imports.segments import Segments
from haiprof.sources.kineto.columns import FAR
from haiprof.sources.nsys import meanings
from haiprof.sources.nsys_csv import reports
from haiprof.sources.nsys_csv.find import files_of
from haiprof.sources.nsys_csv.reports import Report

_U32: Final = (1 << 32) - 1
#: Ends of a copy as nsys prints them -> ``kernels.copy_kind``; older versions print the latter.
_WAYS: Final = {
    "Host-to-Device": "HtoD",
    "Device-to-Host": "DtoH",
    "Device-to-Device": "DtoD",
    "Host-to-Host": "HtoH",
    "Peer-to-Peer": "PtoP",
}
_COPY: Final = r"^\[CUDA memcpy (.+)\]$"
_SET: Final = r"^\[CUDA memset\]"
#: Columns of a summary -> the end of the metric's name.
_SUMMED: Final = {
    "total time": "time.ns",
    "avg": "mean.ns",
    "med": "median.ns",
    "min": "min.ns",
    "max": "max.ns",
}
_COUNTS: Final = ("instances", "num calls", "count", "operations")
_NAMES: Final = ("name", "operation", "range")
_NOT_THERE: Final = "there is no table {0}: nsys stats --report {0} --format csv --output P REPORT"
_GPU: Final = _NOT_THERE.format("cuda_gpu_trace")
_API: Final = _NOT_THERE.format("cuda_api_trace")
_NVTX: Final = _NOT_THERE.format("nvtx_pushpop_trace")
_EXPORT: Final = "the CSV tables do not have it: nsys export --type sqlite has more"
_NEVER: Final = {
    "kernels.start": "nsys stats counts from the profile's beginning, and prints no time of day",
    "kernels.blocks_per_sm": _EXPORT,
    "kernels.occupancy": "Nsight Systems records none",
    "collectives.group": _EXPORT,
    "collectives.bytes": _EXPORT,
    "allocations": "Nsight Systems does not record torch's allocator: trace with torch.profiler",
    "spans.stack": "Nsight Systems does not record it: trace with torch.profiler",
    "spans.shapes": "no range has sizes: emit_nvtx(record_shapes=True) writes them",
    "spans[python]": "no range is a module's call",
    "spans.module": "no range is a module's call",
    "spans[counters]": "Nsight Systems does not record CUPTI's counters of kernels",
    "spans[step]": "no ranges are steps: mark them with torch.cuda.nvtx.range_push('step 7')",
    "flows": "the tables have numbers of launches, and no arrows",
}


def read(imported: Imported, segments: Segments, on_bytes: Callable[[int], None]) -> None:
    """Read one report; see :data:`haiprof.sources.imports.formats.Read`.

    Raises:
        HaiprofError: a file is damaged or too large, or no table has a row.
        OSError: a file cannot be read.
    """
    source = imported.source
    found: dict[reports.Kind, list[Report]] = {"gpu": [], "api": [], "nvtx": [], "sum": []}
    for file in files_of(source):
        for report in reports.read(file):
            found[report.kind].append(report)
    processes = _processes(found["api"] + found["nvtx"])
    imported.pid = processes[0] if len(processes) == 1 else None
    alone = len(processes) < 2
    if not alone:
        imported.problems.append(
            f"{source.path}: has {len(processes)} processes, and the table of kernels does not say "
            "whose they are: no launch is known; nsys export --type sqlite has them apart"
        )
    # Two tables may list the same: one of each kind is read.
    lost = 0
    for report in found["gpu"][:1]:
        lost += _kernels(imported, segments, report, alone=alone)
    for report in found["api"][:1]:
        lost += _calls(segments, report, alone=alone)
    for report in found["nvtx"][:1]:
        lost += _ranges(segments, report)
    if lost:
        imported.problems.append(
            f"{source.path}: {lost} rows without a start or a duration: left out; "
            "copy the files again"
        )
    if not found["gpu"] and not found["api"] and not found["nvtx"]:
        for report in found["sum"]:
            _summary(segments, report)
    if imported.begin is None:
        raise HaiprofError(f"{source.path}: no table of nsys stats has a row: {_GPU}")
    imported.lacks = dict(_NEVER)
    if not found["gpu"]:
        imported.lacks["kernels"] = f"a summary has only totals; {_GPU}" if found["sum"] else _GPU
    if not found["api"]:
        imported.lacks["spans[runtime]"] = _API
    if not found["nvtx"]:
        imported.lacks |= {"spans[op]": _NVTX, "spans[step]": _NVTX, "collectives": _NVTX}
    on_bytes(source.bytes)


def _processes(tables: list[Report]) -> list[int]:
    numbers = [each.rows.select(each.number("pid", pl.Int64)).to_series() for each in tables]
    every = pl.concat(numbers) if numbers else pl.Series([], dtype=pl.Int64)
    return [number for number in every.drop_nulls().unique().sort().to_list() if number >= 0]


def _kernels(imported: Imported, segments: Segments, report: Report, *, alone: bool) -> int:
    name, device = pl.col("name"), pl.col("device")
    ends = [pl.col(end).fill_null("Unknown") for end in ("srcmemkd", "dstmemkd")]
    way = name.str.extract(_COPY)
    which = pl.coalesce(
        way.replace_strict(_WAYS, default=None, return_dtype=pl.String()),
        way.str.extract(r"^([HDAP]to[HDAP])$"),
    )
    is_copy, is_set = name.str.contains(_COPY), name.str.contains(_SET)
    rows = report.rows.select(
        report.ns("start"),
        report.ns("duration"),
        *(report.text(each) for each in ("name", "device", "srcmemkd", "dstmemkd")),
        report.number("corrid", pl.UInt64).alias("correlation"),
        report.number("strm", pl.UInt32).alias("stream"),
        *(report.number(f"grd{axis}", pl.UInt32).alias(f"grid_{axis}") for axis in "xyz"),
        *(report.number(f"blk{axis}", pl.UInt16).alias(f"block_{axis}") for axis in "xyz"),
        report.number("reg/trd", pl.UInt16).alias("registers"),
        pl.sum_horizontal(report.bytes("stcsmem"), report.bytes("dymsmem")).alias("shared"),
        report.bytes("bytes"),
    )
    sound = _sound(rows)
    ran = sound.with_columns(
        device.str.extract(r"\((\d{1,4})\)$").cast(pl.UInt16).alias("ordinal"),
        pl.when(is_copy | is_set).then(None).otherwise(pl.lit("kernel")).alias("kind"),
    ).with_columns(
        pl.coalesce("kind", pl.when(is_copy).then(pl.lit("memcpy")).otherwise(pl.lit("memset")))
    )
    kernel = pl.col("kind") == "kernel"
    segments.write_frame(
        "kernels",
        ran.select(
            "start",
            "duration",
            "kind",
            pl.when(is_copy)
            .then(pl.format("Memcpy {} ({} -> {})", which.fill_null("Unknown"), *ends))
            .when(is_set)
            .then(pl.format("Memset ({})", ends[1]))
            .otherwise(name.fill_null(""))
            .alias("name"),
            pl.col("ordinal").alias("device"),
            "stream",
            pl.when(pl.lit(alone)).then("correlation").alias("correlation"),
            *(pl.when(kernel).then(f"{size}_{axis}").alias(f"{size}_{axis}")
              for size in ("grid", "block") for axis in "xyz"),
            pl.when(kernel).then("registers").alias("registers"),
            pl.when(kernel).then(pl.col("shared").cast(pl.UInt32, strict=False))
            .alias("shared_memory"),
            pl.when(~kernel).then("bytes").alias("bytes"),
            pl.when(is_copy).then(which).alias("copy_kind"),
        ),
    )  # fmt: skip
    used = ran.select("ordinal", "device").drop_nulls().unique("ordinal", keep="first")
    imported.gpus = [
        gpu(number, text.rpartition("(")[0].strip()) for number, text in used.sort("ordinal").rows()
    ]
    return rows.height - sound.height


def _calls(segments: Segments, report: Report, *, alone: bool) -> int:
    rows = report.rows.select(
        report.ns("start"),
        report.ns("duration"),
        report.text("name"),
        report.number("corrid", pl.UInt64).alias("correlation"),
        _thread(report),
    )
    sound = _sound(rows)
    segments.write_frame(
        "spans",
        sound.with_columns(
            pl.col("name").str.replace(r"_v\d{4,5}$", "").fill_null(""),
            pl.lit("runtime").alias("category"),
            pl.when(pl.lit(alone)).then("correlation").alias("correlation"),
        ),
    )
    return rows.height - sound.height


def _ranges(segments: Segments, report: Report) -> int:
    rows = report.rows.select(
        report.ns("start"),
        report.ns("duration"),
        report.text("name").fill_null("").alias("text"),
        _thread(report),
    )
    # A domain and a colon come before the text, of the default domain the colon alone; versions
    # that print no domain have no text that begins with a colon.
    text, domain = pl.col("text"), pl.lit("")
    if rows["text"].str.starts_with(":").any():
        text, domain = text.str.replace("^[^:]*:", ""), text.str.extract("^([^:]*):")
    rows = rows.with_columns(text, domain.fill_null("").alias("named"))
    names = ["", *rows["named"].unique().sort().to_list()]
    rows = rows.with_columns(
        pl.col("named")
        .replace_strict(
            names[1:], [names.index(each) for each in names[1:]], default=0, return_dtype=pl.Int64()
        )
        .alias("domain")
    )
    sound = _sound(rows)
    ranges = sound.with_columns((pl.col("start") + pl.col("duration")).alias("end"))
    marks = ranges.filter(pl.col("text").str.contains(marked_steps.MAY_BE))
    steps = marked_steps.marked(marks.select("start", "end", "text").iter_rows())
    spans = meanings.spans(
        ranges, steps, {}, lambda each: json.dumps({"domain": names[each]}) if each else None
    )
    duration = (pl.col("end") - pl.col("start")).alias("duration")
    segments.write_frame("spans", spans.with_columns(duration))
    known = {name: meanings.op(name) for name in spans["name"].unique().to_list()}
    ops = pl.col("name").replace_strict(known, return_dtype=pl.String()).alias("op")
    segments.write_frame(
        "collectives",
        spans.select("start", duration, ops, "thread", "external", pl.lit("host").alias("side"))
        .drop_nulls("op"),
    )  # fmt: skip
    return rows.height - sound.height


def _summary(segments: Segments, report: Report) -> None:
    """Write totals by name as metrics, at the beginning of the profile."""
    columns = report.rows.columns
    name = next((each for each in _NAMES if each in columns), None)
    if name is None:
        return
    what = "runtime" if "num calls" in columns else "nvtx" if name == "range" else "gpu"
    count = next((each for each in _COUNTS if each in columns), None)
    values = [report.ns(each).cast(pl.Float64).alias(f"{what}.{metric}")
              for each, metric in _SUMMED.items() if each in columns]  # fmt: skip
    if count is not None:
        values.append(report.number(count, pl.Float64).alias(f"{what}.calls.count"))
    rows = report.rows.select(report.text(name).alias("instance"), *values).drop_nulls("instance")
    segments.write_frame(
        "samples",
        rows.unpivot(index="instance", variable_name="metric")
        .drop_nulls("value")
        .with_columns(pl.lit(0, pl.Int64()).alias("time"), pl.lit(0, pl.UInt32()).alias("flags")),
    )


def _sound(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("start").is_between(0, FAR), pl.col("duration").is_between(0, FAR))


def _thread(report: Report) -> pl.Expr:
    number = report.number("tid", pl.Int64)
    return (number.fill_null(0).clip(0) & _U32).cast(pl.UInt32).alias("thread")
