"""What a rank did while the others waited for it: its phase, and the line of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.frame_texts import SEPARATOR

SCHEMA: Final = {"phase": pl.String(), "line": pl.String()}

Numbers = npt.NDArray[np.int64]


def place(
    intervals: Sequence[tuple[int, int]], spans: pl.DataFrame, samples: pl.DataFrame
) -> pl.DataFrame:
    """Return the phase and the line in which most of the intervals went: one row.

    The phase is the one that took most of them, the line the one that most samples in them are at.
    What has no more than half is null.

    Args:
        intervals: begin and end of each, ns.
        spans: steps and phases of the rank.
        samples: of its training thread, as :func:`haiprof.views.run.stacks.described` gives them.
    """
    phases = spans.filter(pl.col("category") == "phase").with_columns(
        pl.col("name").cast(pl.String)
    )
    start, end = phases["start"].to_numpy(), (phases["start"] + phases["duration"]).to_numpy()
    in_phases = [
        np.maximum(np.minimum(end, last) - np.maximum(start, first), 0) for first, last in intervals
    ]
    in_samples = [_samples_in(samples, first, last) for first, last in intervals]
    lines = [of_job(stack.split(SEPARATOR)) for stack in samples["stack"].to_list()]
    whole = sum(last - first for first, last in intervals)
    sampled = sum(int(counts.sum()) for counts in in_samples)
    return pl.DataFrame(
        {
            "phase": [_most(in_phases, phases["name"].to_list(), whole)],
            "line": [_most(in_samples, lines, sampled)],
        },
        SCHEMA,
    )


def _samples_in(samples: pl.DataFrame, first: int, last: int) -> Numbers:
    """Return of each row how many of its samples were taken in an interval."""
    start = samples["start"].to_numpy()
    count = np.maximum(samples["samples"].to_numpy().astype(np.int64), 1)
    period = np.maximum(samples["duration"].to_numpy() // count, 1)
    # Sample k was taken at start + k period.
    begin = np.clip(-((start - first) // period), 0, count)
    end = np.clip(-((start - last) // period), 0, count)
    taken: Numbers = end - begin
    return taken


def _most(weights: Sequence[Numbers], names: Sequence[str | None], total: int) -> str | None:
    shares: Counter[str | None] = Counter()
    for each in weights:
        for at in np.flatnonzero(each).tolist():
            shares[names[at]] += int(each[at])
    (name, most), *_ = shares.most_common(1) or [(None, 0)]
    return name if most * 2 > total else None


def of_job(frames: Sequence[str]) -> str | None:
    """Return the innermost frame of the job's own code: those of libraries are named in short."""
    return next((frame for frame in reversed(frames) if "(/" in frame), None)
