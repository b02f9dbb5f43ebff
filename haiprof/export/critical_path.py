"""The critical path of a trace, to be drawn over its rows: what is on it, and arrows along it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from haiprof.answers.linked_traces import link_of
from haiprof.export.chosen import Chosen
from haiprof.views.trace.critical_path.path import PATH_SCHEMA

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Name and category of arrows, and of the track.
NAME: Final = "critical_path"
_RUNS: Final = ("kernel", "communication", "memcpy", "memset")
#: What identifies a span.
SPAN: Final = ("thread", "start", "duration")


class Overlay(NamedTuple):
    """What is on the critical path of a process.

    Attributes:
        elements: of the path, in the order of time.
        spans: :data:`SPAN` of the spans on it, and ``critical``, which is 1.
        kernels: ``row`` of the kernels on it, and ``critical``.
        arrows: one row per place where the path goes on on another thread or stream: ``id`` from 1;
            ``time``, ``thread``, ``begun``, ``lasts`` (of the span), ``activity``, ``device`` and
            ``stream`` of the earlier element, and the same with the suffix ``_to`` of the later.
    """

    elements: pl.DataFrame
    spans: pl.DataFrame
    kernels: pl.DataFrame
    arrows: pl.DataFrame

    def on_spans(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return spans with ``critical``."""
        if not self.elements.height:
            return frame.with_columns(pl.lit(None, pl.UInt8()).alias("critical"))
        return frame.join(self.spans, on=SPAN, how="left", maintain_order="left")

    def on_kernels(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return kernels, which have ``row``, with ``critical``."""
        if not self.elements.height:
            return frame.with_columns(pl.lit(None, pl.UInt8()).alias("critical"))
        return frame.join(self.kernels, on="row", how="left", maintain_order="left")


def paths(analyzer: Analyzer, rank: int | None, step: int | None) -> dict[str, pl.DataFrame]:
    """Return the elements of each trace's path by its label, of this step or of the longest one.

    Raises:
        HaiprofError: no trace has this step.
    """
    found = analyzer.critical_path(rank, step=step)
    return {label: path.path for label, path in found.items()}


def overlay(each: Chosen, path: pl.DataFrame | None) -> Overlay:
    """Return what to draw over a process; nothing without a path."""
    if path is None or not path.height:
        nothing = pl.DataFrame(schema={**PATH_SCHEMA, "begun": pl.Int64(), "lasts": pl.Int64()})
        return _of(nothing)
    ops = link_of(each.process, None).ops
    start = ops["start"].gather(path["op"])
    end = ops["end"].gather(path["op"])
    return _of(path.with_columns(start.alias("begun"), (end - start).alias("lasts")))


def _of(elements: pl.DataFrame) -> Overlay:
    one = pl.lit(1, pl.UInt8()).alias("critical")
    called = elements.drop_nulls("op")
    runs = pl.col("kind").cast(pl.String).is_in(_RUNS)
    return Overlay(
        elements,
        called.select("thread", pl.col("begun").alias("start"), pl.col("lasts").alias("duration"))
        .unique(maintain_order=True)
        .with_columns(one),
        elements.filter(runs).select(pl.col("activity").alias("row"), one).unique("row"),
        _arrows(elements, runs),
    )


def _arrows(elements: pl.DataFrame, runs: pl.Expr) -> pl.DataFrame:
    calls = pl.col("kind").cast(pl.String) == "host"
    placed = elements.filter(runs | (calls & pl.col("op").is_not_null()))
    ends = placed.select(
        time=pl.col("start"),
        last=pl.max_horizontal("start", pl.col("start") + pl.col("duration") - 1),
        thread="thread",
        begun="begun",
        lasts="lasts",
        activity=pl.when(runs).then("activity"),
        device="device",
        stream="stream",
    )
    columns = [name for name in ends.columns if name != "last"]
    later = ends.select(pl.col(name).shift(-1).alias(f"{name}_to") for name in columns)
    track = ("thread", "device", "stream")
    moved = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_to")) for name in track)
    both = pl.concat([ends.with_columns(time="last").drop("last"), later], how="horizontal")
    return both.filter(pl.col("time_to").is_not_null() & moved).with_row_index("id", offset=1)
