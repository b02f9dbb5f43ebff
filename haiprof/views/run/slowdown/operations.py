"""What a replay needs of the operations of a run.

Tests: tests/views/run/slowdown/test_schedule.py.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from haiprof.views.run.slowdown.graph import Graph, Reals


class CannotReplay(Exception):
    """Why the operations of a run do not form a graph, in words."""


class Operations(NamedTuple):
    """Operations that can be replayed.

    ``frame``: for each operation ``step``, ``rank``, ``stage``, ``replica`` (the number of its
    pipeline, among those that work on the same model) and ``name``; ``own``: what each takes by
    itself, without waiting, ns; ``ideal``: what it would take if it were repaired. ``measured``:
    how long each step took, ns, in their order; operations are sorted by their steps.
    """

    frame: pl.DataFrame
    graph: Graph
    own: Reals
    ideal: Reals
    measured: Reals


def measured(ops: pl.DataFrame) -> Reals:
    """Return how long each step took, ns, from its first ``start`` to its last ``end``."""
    return (
        ops.group_by("step", maintain_order=True)
        .agg((pl.col("end").max() - pl.col("start").min()).cast(pl.Float64).alias("took"))["took"]
        .to_numpy()
    )
