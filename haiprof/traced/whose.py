"""Whose rows they are: views of single traces put together into frames of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import TypeAlias

import polars as pl

from haiprof.sources.own import Process

#: Columns in front of every frame: whose rows they are.
WHO = {"node": pl.Categorical(), "rank": pl.Int64(), "pid": pl.Int64(), "session": pl.UInt32()}
#: Of each session the matched communications, and whose traces the labels in them are.
Matched: TypeAlias = dict[int | None, tuple[pl.DataFrame, dict[str, Process]]]


def session_of(process: Process) -> int | None:
    """Return which of the times that its worker was profiled a trace is of, from 1."""
    return process.trace.span if process.trace else None


def placed(processes: list[Process]) -> dict[tuple[object, ...], Process]:
    """Name each by what is the same in another run: rank, session, and without a rank the worker.

    A worker alone need not have the same name. Of a rank that was started again the last counts.
    Traces of one host without a rank go by their GPUs, then by their order.
    """
    unranked = {process.node for process in processes if process.rank is None}
    made: dict[tuple[object, ...], Process] = {}
    for process in processes:
        node = process.node if process.rank is None and len(unranked) > 1 else None
        place: tuple[object, ...] = (process.rank, node, session_of(process))
        if process.rank is None and process.trace is not None:
            gpus = tuple(sorted(gpu.device for gpu in process.gpus if gpu.device is not None))
            place = next(p for n in count() if (p := (*place, gpus, n)) not in made)
        made[place] = process
    return made


def stacked(made: Iterable[tuple[Process, pl.DataFrame]]) -> pl.DataFrame:
    """Put the frames of processes below each other, each row with whose it is in front."""
    frames = [
        # As literals: what is the same of millions of rows takes no room.
        frame.select(
            *(
                pl.lit(value, WHO[name]).alias(name)
                for name, value in zip(
                    WHO,
                    (process.node, process.rank, process.pid, session_of(process)),
                    strict=True,
                )
            ),
            *(pl.col(name) for name in frame.columns if name not in WHO),
        )
        for process, frame in made
    ]
    if not frames:
        return pl.DataFrame(schema=WHO)
    same = all(frame.schema == frames[0].schema for frame in frames)
    return pl.concat(frames, how="vertical" if same else "diagonal_relaxed")


def by_label(
    matched: Matched,
    view: Callable[[pl.DataFrame], pl.DataFrame],
) -> pl.DataFrame:
    """Apply a view of matched ranks to each session; a rank's label becomes who it is."""
    frames = []
    for span, (frame, whose) in matched.items():
        made = view(frame)
        labels = made["rank"].cast(pl.String).to_list()
        who = [whose[label] for label in labels]
        frames.append(
            made.select(
                pl.Series("node", [p.node for p in who], pl.Categorical()),
                pl.Series("rank", [p.rank for p in who], pl.Int64()),
                pl.Series("pid", [p.pid for p in who], pl.Int64()),
                pl.lit(span, pl.UInt32()).alias("session"),
                pl.all().exclude("rank"),
            )
        )
    return pl.concat(frames, how="diagonal_relaxed")
