"""Ledgers of lives that are written down by hand, in ms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from haiprof.sources.arrays import of_frame
from haiprof.views.run import goodput
from haiprof.views.run import ledger as views

MS = 1_000_000
SPANS = {
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "category": pl.String(),
    "name": pl.String(),
    "thread": pl.UInt32(),
    "step": pl.UInt32(),
}
SAMPLES = {
    "time": pl.Int64(),
    "metric": pl.String(),
    "instance": pl.String(),
    "value": pl.Float64(),
    "flags": pl.UInt32(),
}
PENDING = {"start": pl.Int64(), "last": pl.Int64(), "end": pl.Int64(), "late_rank": pl.UInt32()}


def span(start: float, duration: float, category: str, name: str, step: int | None = None) -> Any:
    return (round(start * MS), round(duration * MS), category, name, 7, step)


def charged(
    rows: Sequence[Any],
    end: float,
    waits: Sequence[tuple[float, float]] = (),
    pending: Sequence[tuple[float, float | None, float | None, int | None]] = (),
    queue: Sequence[tuple[float, float]] = (),
    **life: Any,
) -> views.Ledger:
    """Charge a life from 0 to ``end`` ms; ``queue``: time in ms and percent."""
    spans = pl.DataFrame(list(rows), SPANS, orient="row")
    pieces = goodput.pieces(of_frame(spans), goodput.Life(0, round(end * MS), **life))
    blocked = [(round(low * MS), round(high * MS)) for low, high in waits]
    asked = [
        (round(start * MS), *(None if t is None else round(t * MS) for t in (last, done)), rank)
        for start, last, done, rank in pending
    ]
    samples = [(round(at * MS), views.CPU_WAIT, None, value, 0) for at, value in queue]
    found = views.ledger(
        pieces,
        spans,
        pl.DataFrame(blocked, {"start": pl.Int64(), "end": pl.Int64()}, orient="row"),
        pl.DataFrame(asked, PENDING, orient="row"),
        pl.DataFrame(samples, SAMPLES, orient="row"),
    )
    assert found.total.sum() == found.end - found.begin
    assert (found.causes.sum(1) == found.duration).all()
    return found
