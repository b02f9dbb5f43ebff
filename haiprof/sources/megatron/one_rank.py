"""Imports what one rank did, from a timeline of Megatron's tracer.

Tests: tests/sources/megatron/test_megatron.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl

from haiprof.errors import HaiprofError
from haiprof.sources.found import Source
from haiprof.sources.imports.imported import Imported, gpu
from haiprof.sources.imports.segments import Segments
from haiprof.sources.megatron import merged, timeline
from haiprof.sources.megatron.find import is_of_rank, is_sized

_NO_KERNELS: Final = "the tracer records only the schedule: trace with torch.profiler, too"
LACKS: Final = {
    "kernels": _NO_KERNELS,
    "collectives": _NO_KERNELS,
    "allocations": _NO_KERNELS,
    "device_spans.start": "the tracer counts from the first iteration, and records no time of day",
}


def read(imported: Imported, segments: Segments, on_bytes: Callable[[int], None]) -> None:
    """Read what one rank did; see :data:`haiprof.sources.imports.formats.Read`.

    Raises:
        HaiprofError: the timeline cannot be read, or has no interval of this rank.
    """
    source = imported.source
    did = _timeline(source)
    if not did.spans.height:
        raise HaiprofError(
            f"{_name(source)}: has no interval that begins and ends: "
            "see whether tracing was on, and the job came to the end of an iteration"
        )
    imported.rank = did.rank
    imported.lacks = dict(LACKS)
    device = did.device or 0
    imported.gpus = [gpu(device)]
    segments.write_frame(
        "device_spans",
        did.spans.with_columns(
            pl.lit("pipeline").alias("category"), pl.lit(device, pl.UInt16()).alias("device")
        ),
    )
    segments.write_frame(
        "spans",
        did.steps.with_columns(
            pl.lit("step").alias("category"),
            pl.format("iteration {}", "step").alias("name"),
            pl.lit(0, pl.UInt32()).alias("thread"),
        ),
    )
    segments.write_frame("events", did.marks.with_columns(pl.lit("mark").alias("kind")))
    imported.problems = [
        f"{_name(source)}: {count} events {why}: left out; "
        "see whether the job came to its end, or was traced in evaluation"
        for why, count in did.left_out.items()
    ]
    if source.part is None:
        on_bytes(source.bytes)


def _timeline(source: Source) -> timeline.Timeline:
    if source.part is not None and is_sized(Path(source.path).name):
        ranks = timeline.of_all(source.path, source.mtime_ns)
        if source.part not in ranks:
            raise HaiprofError(
                f"{_name(source)}: its name is of this rank, but none of its events is of it: "
                "see whether the name has the sizes of the groups"
            )
        return ranks[source.part]
    if source.part is not None:
        return timeline.of_part(merged.parts(source.path, source.mtime_ns)[source.part])
    if source.rank is None:
        return timeline.of_rank(source.path)
    beside = sorted(each for each in Path(source.path).parent.iterdir() if is_of_rank(each.name))
    files = tuple((str(each), each.stat().st_mtime_ns) for each in beside)
    return timeline.of_rank(source.path, timeline.begins(files))


def _name(source: Source) -> str:
    return source.path if source.part is None else f"{source.path} ({source.part})"
