"""Imports one worker log of Paddle: its jobs as intervals of a pipeline, and the resulting steps.

The log is read line by line, so memory grows only with its jobs. The number of a job has a
different meaning in each version of Paddle (job, microbatch, counter per type) and is not kept.

Tests: tests/sources/paddle/test_paddle.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl

from haiprof.errors import HaiprofError
from haiprof.sources.found import Source
from haiprof.sources.imports.imported import Imported, gpu
from haiprof.sources.imports.segments import Segments
from haiprof.sources.paddle.find import device_of

# A locale may write a decimal comma, and a version may write integer milliseconds.
_TIME: Final = rb"(\d{1,16})(?:[.,](\d+))?"
_JOB: Final = re.compile(
    rb"Profiler Info: Job \(\d+\), type = (\w+), micro_batch_id = (\d{1,9}), "
    rb"job_start_time = " + _TIME + rb", job_end_time = " + _TIME
)
_MAY_BE_JOB: Final = b"Profiler Info: Job ("
_FIRST_STEP: Final = re.compile(rb"Schedule Profiler start at step (\d{1,9}) and end at step")
#: A job that is not part of the schedule.
_DEFAULT: Final = "default"
#: Name of a job in a model of several chunks: ``forward0``.
_OF_CHUNK: Final = re.compile(r"(.*?[a-z_])(\d{1,4})")
_REPORT_EVERY: Final = 1 << 20
#: No table can store a later time.
_LAST_NS: Final = 1 << 62

_NO_KERNELS: Final = "a worker log contains only the schedule's jobs: trace with torch.profiler"
LACKS: Final = {
    "kernels": _NO_KERNELS,
    "collectives": _NO_KERNELS,
    "allocations": _NO_KERNELS,
    "device_spans.stage": (
        "a worker log does not record the stage: the rank is used instead, which is right if "
        "every rank is a stage of its own"
    ),
}
_JOBS: Final = {
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "name": pl.String(),
    "microbatch": pl.UInt32(),
    "chunk": pl.UInt32(),
    "step": pl.UInt32(),
}


def read(imported: Imported, segments: Segments, on_bytes: Callable[[int], None]) -> None:
    """Read one worker log; see :data:`haiprof.sources.imports.formats.Read`.

    Raises:
        HaiprofError: it has no job.
        OSError: it cannot be read.
    """
    source = imported.source
    jobs, broken = _jobs(source, on_bytes)
    device = device_of(Path(source.path).name)
    imported.gpus = [gpu(device)]
    imported.lacks = dict(LACKS)
    segments.write_frame(
        "device_spans",
        jobs.with_columns(
            pl.lit("pipeline").alias("category"),
            pl.lit(device, pl.UInt16()).alias("device"),
            pl.lit(source.rank, pl.UInt32()).alias("stage"),
        ),
    )
    segments.write_frame("spans", _steps(jobs))
    if broken:
        imported.problems.append(
            f"{source.path}: a job that cannot be read (it is cut off, or ends before it "
            f"begins), in {broken} lines: left out; see whether other output got into them"
        )


def _jobs(source: Source, on_bytes: Callable[[int], None]) -> tuple[pl.DataFrame, int]:
    """Return the jobs in the order of the log, and the number of those that cannot be read."""
    rows: list[tuple[int, int, str, int, int | None, int | None]] = []
    first_step, begins_with, step = 0, "", -1
    broken = known = consumed = 0
    found_step = False
    with Path(source.path).open("rb") as log:
        for line in log:
            consumed += len(line)
            if consumed - known >= _REPORT_EVERY:
                on_bytes(consumed - known)
                known = consumed
            if _MAY_BE_JOB not in line:
                if not found_step and (started := _FIRST_STEP.search(line)):
                    first_step, found_step = int(started[1]), True
                continue
            job = _JOB.search(line)
            start = end = 0
            if job is not None:
                start, end = _ns(job[3], job[4]), _ns(job[5], job[6])
            if job is None or not start <= end <= _LAST_NS:
                broken += 1
                continue
            kind, microbatch = job[1].decode(), int(job[2])
            if not begins_with and kind != _DEFAULT:
                begins_with = kind
            if kind == begins_with and microbatch == 0:
                step += 1
            named = _OF_CHUNK.fullmatch(kind)
            name, chunk = (named[1], int(named[2])) if named else (kind, None)
            # Jobs before the first step belong to one that began before the log.
            rows.append((start, end - start, name, microbatch, chunk, step if step >= 0 else None))
    if not rows:
        raise HaiprofError(
            f"{source.path}: contains no job of a schedule: turn the job schedule profiler on "
            "(job_schedule_profiler_start and _end, and the new executor), or give another log"
        )
    on_bytes(consumed - known)
    frame = pl.DataFrame(rows, schema=_JOBS, orient="row")
    return frame.with_columns(pl.col("step") + first_step), broken


def _ns(milliseconds: bytes, decimals: bytes | None) -> int:
    """Return a time of the log, decimal ms since the epoch, exactly."""
    return int(milliseconds) * 1_000_000 + int(((decimals or b"") + b"000000")[:6])


def _steps(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the steps as this device saw them: from its first job to its last."""
    return (
        jobs.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(pl.col("start").min(), (pl.col("start") + pl.col("duration")).max().alias("end"))
        .sort("step")
        .select(
            "start",
            (pl.col("end") - pl.col("start")).alias("duration"),
            pl.lit("step").alias("category"),
            pl.format("step {}", "step").alias("name"),
            pl.lit(0, pl.UInt32()).alias("thread"),
            "step",
        )
    )
