"""What HTA makes of the traces with known answers, and the traces as HTA sees them.

HTA rounds times with fractions of a microsecond up to whole ones at their begin and down at their
end, and leaves out device work that no call launched that it knows. On traces that are cut down to
that, our formulas must give its numbers, run by run; what is right on the whole trace, tests derive
from its events.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
import traces

from haiprof.views.trace.linking.linked import Linked, link


@dataclasses.dataclass(frozen=True)
class Worker:
    """One rank of a run: its trace, linked as it is, and as HTA sees it."""

    name: str
    rank: int
    trace: traces.Trace
    whole: Linked
    #: Without the last step, which HTA drops unless told otherwise; and with it.
    without_last: Linked
    with_last: Linked
    #: Whether what HTA sees, last step included, is all there is.
    as_it_is: bool

    def seen(self, last: bool) -> Linked:
        return self.with_last if last else self.without_last


@functools.cache
def workers(run: str) -> tuple[Worker, ...]:
    """The ranks of a run; of several spans of one rank the first: HTA reads no other."""
    by_rank: dict[int, Worker] = {}
    for file in traces.files(run):
        trace = traces.load(file)
        rank = trace.rank or 0
        if rank not in by_rank:
            name = re.sub(r"(\.\d{13})?\.pt\.trace\.json\.gz$", "", file.name)
            by_rank[rank] = _worker(name, rank, trace)
    return tuple(by_rank.values())


def result(run: str, analysis: str, last: bool) -> Any:
    """HTA's result; None if it failed."""
    path = f"{analysis}{'.with_last_step' if last else ''}"
    return traces.expected_at(run, "hta_061", path)


def cases(analysis: str) -> list[Any]:
    """Every run, once without and once with its last step where HTA was asked for both."""
    names = [run for run in traces.runs() if isinstance(run, str)]
    if not names:
        return [pytest.param("none", False, marks=each.marks) for each in traces.runs()]
    return [
        (run, last)
        for run in names
        for last in (False, True)
        if not last or result(run, "temporal_breakdown", last=True) is not None
    ]


def _worker(name: str, rank: int, trace: traces.Trace) -> Worker:
    whole = _linked(trace.spans, trace.kernels, trace)
    spans, kernels, ranges = (
        rounded(f, trace) for f in (trace.spans, trace.kernels, trace.device_spans)
    )
    seen = [_seen(spans, kernels, ranges, last) for last in (False, True)]
    return Worker(
        name, rank, trace, whole,
        without_last=_linked(spans, seen[0], trace),
        with_last=_linked(spans, seen[1], trace),
        as_it_is=seen[1].equals(trace.kernels) and spans.equals(trace.spans),
    )  # fmt: skip


def _linked(spans: pl.DataFrame, kernels: pl.DataFrame, trace: traces.Trace) -> Linked:
    return link(spans, kernels, trace.collectives, trace.flows, trace.device_spans)


def rounded(frame: pl.DataFrame, trace: traces.Trace) -> pl.DataFrame:
    """The times as HTA rounds them, computed in doubles of microseconds as HTA does."""
    base = int(trace.header.get("baseTimeNanoseconds") or 0)
    begin = _microseconds(frame["start"].to_numpy() - base)
    end = np.floor(begin + frame["duration"].to_numpy() / 1000).astype(np.int64)
    start = np.ceil(begin).astype(np.int64)
    return frame.with_columns(
        pl.Series("start", start * 1000 + base), pl.Series("duration", (end - start) * 1000)
    )


def _microseconds(nanoseconds: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The double that is nearest; in two parts, as the nanoseconds themselves fit in none."""
    values: npt.NDArray[np.float64] = nanoseconds // 1000 + (nanoseconds % 1000) / 1000
    return values


def last_step(spans: pl.DataFrame, ranges: pl.DataFrame) -> tuple[int | None, int | None]:
    """When the last step begins and the last one ends, to HTA; none with fewer than two steps.

    It takes the device's copies of steps for steps.
    """
    is_step = pl.col("name").cast(pl.String).str.starts_with("ProfilerStep")
    steps = pl.concat(
        [table.filter(is_step).select("name", "start", "duration") for table in (spans, ranges)]
    )
    if steps["name"].n_unique() < 2:
        return None, None
    end = steps.select(pl.col("start") + pl.col("duration")).max().item()
    return int(steps["start"].to_numpy().max()), int(end)


def _seen(
    spans: pl.DataFrame, kernels: pl.DataFrame, ranges: pl.DataFrame, last: bool
) -> pl.DataFrame:
    known = kernels.filter(pl.col("stream").is_not_null(), pl.col("correlation").is_not_null())
    begin, end = last_step(spans, ranges)
    if begin is None:
        return known
    calls = spans.filter(pl.col("correlation").is_not_null())
    calls = calls.filter(pl.col("start") <= end if last else pl.col("start") < begin)
    return known.join(calls.select("correlation").unique(), on="correlation", maintain_order="left")


def close(mine: float | None, theirs: float | None, tolerance: float = 1e-6) -> bool:
    """Whether two numbers agree; none agrees with none."""
    if mine is None or theirs is None:
        return mine is None and theirs is None
    return abs(mine - theirs) <= tolerance * max(1.0, abs(theirs))


def union(intervals: Iterable[tuple[int, int]]) -> int:
    """How much time intervals cover, counted one by one."""
    total, reached = 0, -(1 << 62)
    for start, end in sorted(intervals):
        if end > max(start, reached):
            total += end - max(start, reached)
            reached = end
    return total


def activities(worker: Worker, *kinds: str) -> list[tuple[int, int, str]]:
    """Begin, end and name of the file's own activities of these kinds."""
    rows = worker.trace.kernels.select("start", "duration", "name", "kind")
    return [
        (start, start + max(duration, 0), str(name))
        for start, duration, name, kind in rows.iter_rows()
        if kind in kinds
    ]


def communicates(name: str) -> bool:
    """What communicates in these traces, by what stands in its name."""
    return bool(
        re.search(r"nccl|cross_device_reduce|multimem|all_?reduce|ep::", name, re.IGNORECASE)
    )
