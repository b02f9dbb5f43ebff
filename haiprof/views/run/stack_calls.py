"""Sampled stacks as calls over time: what a viewer draws along a time line.

A call is seen only at the samples. Consecutive samples of a thread with the same path of functions
are one call of each of them, so two calls between which nothing was sampled are one, too.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.frame_texts import frame_text
from haiprof.views.run.stacks import Numbers, Tree, folded_by

CALLS_SCHEMA: Final = {
    "process": pl.UInt32(),
    "thread": pl.UInt32(),
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "name": pl.Categorical(),
    "depth": pl.UInt32(),
    "samples": pl.UInt32(),
}
#: Samples further apart than this many of their periods have nothing to do with each other.
_APART: Final = 1.5


def calls(samples: pl.DataFrame, tree: Tree) -> pl.DataFrame:
    """Return the calls that samples show: those of one thread nest, callers come first.

    Columns: ``process``, ``thread``, ``start`` and ``duration`` (ns: of the samples in it),
    ``name`` (``function (file)``), ``depth`` (0: outermost), ``samples``.

    Args:
        samples: as :func:`haiprof.views.run.stacks.rooted` gives them.
        tree: their nodes.
    """
    if not samples.height:
        return pl.DataFrame(schema=CALLS_SCHEMA)
    samples = samples.sort("process", "thread", "start", maintain_order=True)
    path, parent, frames, depth = folded_by(tree, "function")
    names = [frame_text(function, file, None) for function, file in frames.iter_rows()]
    follows = _follows(samples)
    start, end = _intervals(samples, follows)
    at = path[samples["row"].to_numpy()].astype(np.int64)
    count = samples["samples"].cast(pl.Int64).to_numpy()
    parts = []
    for level in range(int(depth[at].max()), -1, -1):
        # Of deeper samples, those that called them.
        here = np.flatnonzero(depth[at] == level)
        begins = np.ones(len(here), np.bool_)
        begins[1:] = (np.diff(here) != 1) | (at[here[1:]] != at[here[:-1]]) | ~follows[here[1:]]
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(here)) - 1
        parts.append(
            pl.DataFrame(
                {
                    "row": here[first],
                    "start": start[here[first]],
                    "duration": end[here[last]] - start[here[first]],
                    "path": at[here[first]],
                    "depth": np.full(len(first), level),
                    "samples": np.add.reduceat(count[here], first),
                }
            )
        )
        at[here] = np.maximum(parent[at[here]], 0)
    found = pl.concat(parts)
    who = samples.select("process", "thread")[found["row"]]
    named = pl.Series("name", [names[each] for each in found["path"].to_list()])
    return (
        pl.concat([found, who, named.to_frame()], how="horizontal")
        .select(pl.col(name).cast(kind) for name, kind in CALLS_SCHEMA.items())
        .sort("process", "thread", "start", "depth")
    )


def _follows(samples: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Say of each sample whether it comes right after the one before it, of the same thread."""
    start = samples["start"].to_numpy()
    period = samples["duration"].to_numpy() / np.maximum(samples["samples"].to_numpy(), 1)
    end = start + samples["duration"].to_numpy()
    follows = np.zeros(len(start), np.bool_)
    same = np.ones(len(start) - 1, np.bool_)
    for column in ("process", "thread"):
        values = samples[column].to_numpy()
        same &= values[1:] == values[:-1]
    follows[1:] = same & (start[1:] - end[:-1] <= (_APART - 1) * period[:-1])
    return follows


def _intervals(samples: pl.DataFrame, follows: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """Return when each sample begins and ends: at the latest where the next one begins."""
    start = samples["start"].to_numpy()
    end = start + np.maximum(samples["duration"].to_numpy(), 0)
    end[:-1] = np.where(follows[1:], start[1:], end[:-1])
    return start, end
