"""Columns that identify processes: combines views of single traces into frames of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Final, TypeVar

import polars as pl

from haiprof.runs import Process

#: Columns in front of every frame of answers: the process of each row.
WHO = {"node": pl.Categorical(), "rank": pl.Int64(), "pid": pl.Int64(), "session": pl.UInt32()}


#: How they begin, and which of them only identify the process.
_LEADING: Final = ["node", "rank", "pid"]
_IDENTIFYING: Final = ("node", "pid", "session")
_Answer = TypeVar("_Answer")


def rank_first(answer: _Answer) -> _Answer:
    """Return an answer, a frame or a named tuple of some, with the columns in a user's order.

    ``rank`` comes first, then the columns of the question, and last those that only identify the
    process: terminals and notebooks show only the first and last few columns of a wide frame.
    """
    changed: Any = answer
    if isinstance(answer, pl.DataFrame):
        if answer.columns[:3] == _LEADING:
            last = [name for name in _IDENTIFYING if name in answer.columns]
            changed = answer.select("rank", pl.exclude("rank", *last), *last)
    elif isinstance(answer, tuple) and hasattr(answer, "_make"):
        changed = answer._make(map(rank_first, answer))
    return changed  # type: ignore[no-any-return]


def session_of(process: Process) -> int | None:
    """Return which profiling session of its worker a trace is of, from 1."""
    return process.trace.span if process.trace else None


def placed(processes: list[Process]) -> dict[tuple[object, ...], Process]:
    """Name each process by what is the same in another run: rank, session, or else the worker.

    A worker's name alone may differ. If a rank was restarted, the last process counts. Traces of
    one host without a rank are named by their GPUs, then by their order.
    """
    unranked = {process.node for process in processes if process.rank is None}
    by_key: dict[tuple[object, ...], Process] = {}
    for process in processes:
        node = process.node if process.rank is None and len(unranked) > 1 else None
        place: tuple[object, ...] = (process.rank, node, session_of(process))
        if process.rank is None and process.trace is not None:
            gpus = tuple(sorted(gpu.device for gpu in process.gpus if gpu.device is not None))
            place = next(p for n in count() if (p := (*place, gpus, n)) not in by_key)
        by_key[place] = process
    return by_key


def stacked(pairs: Iterable[tuple[Process, pl.DataFrame]]) -> pl.DataFrame:
    """Concatenate the frames of processes, with the columns of the process in front of each row."""
    frames = [
        # As literals: constant columns of millions of rows take no memory.
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
        for process, frame in pairs
    ]
    if not frames:
        return pl.DataFrame(schema=WHO)
    same = all(frame.schema == frames[0].schema for frame in frames)
    return pl.concat(frames, how="vertical" if same else "diagonal_relaxed")


def named(rows: pl.DataFrame, processes: Sequence[Process], session: int | None) -> pl.DataFrame:
    """Put the columns of its process in front of each row, replacing the label in ``rank``."""
    who = pl.DataFrame(
        {
            "label": [process.label for process in processes],
            "node": [process.node for process in processes],
            "of": [process.rank for process in processes],
            "pid": [process.pid for process in processes],
        },
        {"label": pl.String(), "node": WHO["node"], "of": WHO["rank"], "pid": WHO["pid"]},
    )
    label = rows.select(pl.col("rank").cast(pl.String).alias("label"))
    found = label.join(who, on="label", how="left", maintain_order="left")
    return found.select("node", pl.col("of").alias("rank"), "pid").with_columns(
        pl.lit(session, WHO["session"]).alias("session"), *rows.drop("rank").get_columns()
    )
