"""Arrows between rows of a process's tables: launch to kernels, forward to backward, critical path.

An arrow is a number that both ends have, from 1; 0 is none. Numbers of one process are dense.

Tests: tests/export/test_perfetto.py.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

Arrows: TypeAlias = npt.NDArray[np.uint64]


def launches(spans: pl.DataFrame, kernels: pl.DataFrame) -> tuple[Arrows, Arrows, int]:
    """Return the arrow of each span and of each activity, and how many there are.

    Calls of the runtime lead to the activities of the same correlation; several of them, as of a
    graph, share one arrow.
    """
    calls = (spans["category"].cast(pl.String) == "runtime").fill_null(False).to_numpy()
    begun = np.where(calls, spans["correlation"].fill_null(0).to_numpy(), 0)
    ended = kernels["correlation"].fill_null(0).to_numpy()
    known = _distinct(begun)
    both = known[np.isin(known, _distinct(ended), assume_unique=True, kind="sort")]
    return _placed(both, begun), _placed(both, ended), len(both)


def forward_backward(spans: pl.DataFrame, flows: pl.DataFrame, first: int) -> tuple[Arrows, int]:
    """Return the arrow of each span, counted from ``first`` on, and how many there are.

    An end of an arrow is bound to the operator that begins at its time, on its thread. A forward
    operator may have several backward ones, and the other way round; then the first arrow counts.
    """
    arrows = np.zeros(spans.height, np.uint64)
    ends_of_pairs = flows.filter(pl.col("kind").cast(pl.String) == "fwdbwd").select(
        "id", pl.col("side").cast(pl.String), "thread", pl.col("time").alias("start")
    )
    if not ends_of_pairs.height:
        return arrows, 0
    ops = (
        spans.lazy()
        .select("thread", "start", "category")
        .with_row_index("row")
        .filter(pl.col("category").cast(pl.String) == "op")
        .select("thread", "start", "row")
        .unique(["thread", "start"], keep="first")
        .collect()
    )
    bound = ends_of_pairs.join(ops, on=["thread", "start"], maintain_order="left")
    starts = bound.filter(pl.col("side") == "start").unique("id", keep="first")
    ends = bound.filter(pl.col("side") == "end").unique("id", keep="first")
    pairs = starts.join(ends, on="id", suffix="_end").sort("row", "row_end")
    pairs = pairs.unique("row", keep="first", maintain_order=True)
    pairs = pairs.unique("row_end", keep="first", maintain_order=True)
    number = np.arange(first + 1, first + 1 + pairs.height, dtype=np.uint64)
    arrows[pairs["row"].to_numpy()] = number
    arrows[pairs["row_end"].to_numpy()] = number
    return arrows, pairs.height


def along(
    arrows: pl.DataFrame, spans: pl.DataFrame, kernels: int, first: int
) -> tuple[tuple[Arrows, Arrows], tuple[Arrows, Arrows], int]:
    """Return the arrows along a critical path, counted from ``first`` on, and how many there are.

    A row that the path leaves or reaches several times has the first arrow of each kind.

    Args:
        arrows: :class:`haiprof.export.critical_path.Overlay` has them.
        spans: the table.
        kernels: number of its rows.
        first: how many arrows there are already.

    Returns:
        Of each span the arrow that leaves it and the one that reaches it, and of each kernel.
    """
    on_spans, on_kernels = (
        (np.zeros(height, np.uint64), np.zeros(height, np.uint64))
        for height in (spans.height, kernels)
    )
    if not arrows.height:
        return on_spans, on_kernels, 0
    keys = ["thread", "start", "duration"]
    rows = spans.select(keys).with_row_index("span").unique(keys, keep="first")
    found = arrows
    for suffix in ("", "_to"):
        on = [f"{name}{suffix}" for name in ("thread", "begun", "lasts")]
        found = found.join(
            rows.rename({"span": f"span{suffix}"}), left_on=on, right_on=keys, how="left",
            maintain_order="left",
        )  # fmt: skip
        of = [f"span{suffix}", f"activity{suffix}"]
        found = found.unique(of, keep="first", maintain_order=True)
    number = np.arange(first + 1, first + 1 + found.height, dtype=np.uint64)
    for at, suffix in enumerate(("", "_to")):
        for name, ends in (("span", on_spans), ("activity", on_kernels)):
            known = found[f"{name}{suffix}"]
            some = known.is_not_null().to_numpy()
            ends[at][known.drop_nulls().to_numpy()] = number[some]
    return on_spans, on_kernels, found.height


def _distinct(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    # They mostly rise, so that sorting costs little; numpy.unique would hash them.
    ordered = np.sort(values[values != 0], kind="stable")
    distinct: npt.NDArray[np.uint64] = ordered[
        np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    ]
    return distinct


def _placed(both: npt.NDArray[np.uint64], values: npt.NDArray[np.uint64]) -> Arrows:
    if not len(both):
        return np.zeros(len(values), np.uint64)
    place = np.searchsorted(both, values)
    found = both[np.minimum(place, len(both) - 1)] == values
    arrows: Arrows = np.where(found, place + 1, 0).astype(np.uint64)
    return arrows
