"""Communication of the ranks: how much of it nothing hides, who waits for whom, how fast it is.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from haiprof.show.colours import WORK_COLOURS
from haiprof.show.deep.figure import Bars, Part
from haiprof.show.deep.section import (
    NS_PER_S,
    ROWS,
    TRACES,
    Columns,
    OneTrace,
    Section,
    durations,
    labels,
    lacking,
    spread,
    table,
    who,
)
from haiprof.show.grid import Grid

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

_WHO = ("node", "rank", "pid", "session")
#: Columns of the parts of a step, and their titles.
_STEP = {
    "compute": ("computing alone", WORK_COLOURS["kernel"]),
    "overlap": ("both", WORK_COLOURS["overlap"]),
    "communication": ("communication alone", WORK_COLOURS["communication"]),
    "waiting": ("waiting for other ranks alone", WORK_COLOURS["waiting"]),
    "other": ("neither", WORK_COLOURS["other"]),
}
_MOVED = {
    "transfer": ("moving data", WORK_COLOURS["communication"]),
    "waiting": ("waiting for other ranks", WORK_COLOURS["waiting"]),
}


def section(analyzer: Analyzer, one: OneTrace) -> Section:
    """Describe the communication of all ranks, and the collectives of one."""
    found = analyzer.distributed()
    if not (found.steps["overlap"].sum() or found.steps["communication"].sum()):
        lacks = "communication between ranks, and so its overlap, transfer and stragglers"
        return Section("", [], missing=[lacks])
    moved = _transfers(found.transfers)
    matched = moved.filter((pl.col("transfer") + pl.col("waiting")) > 0)
    overlap = analyzer.overlap().filter(pl.col("communication") > 0)
    return Section(
        "Communication",
        [
            *_bars(_mean_steps(found.steps), matched),
            *_transfer_grid(matched),
            *_stragglers(analyzer.stragglers() if matched.height else pl.DataFrame()),
            *_overlap(overlap),
            *_collectives(one.of(found.collectives), one),
        ],
        missing=lacking(
            {
                "collectives of several ranks, and so transfer and stragglers": matched,
                "overlap on a GPU": overlap,
            }
        ),
    )


def _mean_steps(steps: pl.DataFrame) -> pl.DataFrame:
    parts = [pl.col(part).mean() for part in ("duration", *_STEP)]
    waiting = pl.col("waiting").fill_null(0)
    apart = steps.with_columns(pl.col("communication") - waiting, waiting)
    return apart.group_by(_WHO, maintain_order=True).agg(*parts)


def _transfers(transfers: pl.DataFrame) -> pl.DataFrame:
    parts = ("communication", "transfer", "waiting", "unmatched")
    return transfers.group_by(_WHO, maintain_order=True).agg(pl.col(parts).sum())


def _bars(steps: pl.DataFrame, moved: pl.DataFrame) -> list[Bars]:
    """Return a bar for each rank: its average step; and moving data against waiting."""
    shown = spread(steps, "communication", TRACES)
    waited = spread(moved, "waiting", TRACES)
    of_ranks = f" ({shown.height} of {steps.height} ranks)" if shown.height < steps.height else ""
    figures = [
        (f"Computing and communicating in an average step{of_ranks}", shown, _STEP),
        (f"Moving data and waiting, all steps together{of_ranks}", waited, _MOVED),
    ]
    return [
        Bars(
            title,
            "s",
            labels(frame),
            [
                Part(name, (frame[part] / NS_PER_S).to_list(), colour)
                for part, (name, colour) in parts.items()
                if part != "waiting" or frame[part].sum()
            ],
        )
        for title, frame, parts in figures
        if frame.height
    ]


def _transfer_grid(moved: pl.DataFrame) -> list[Grid]:
    if not moved.height:
        return []
    chosen = spread(moved, "waiting", TRACES)
    columns: Columns = [
        *who(moved),
        *durations("communication", "transfer", "waiting", "unmatched"),
    ]
    note = (
        "Transfer: as long as the rank took that came last; the rest is waiting for that rank. "
        "Unmatched: collectives that the other ranks' traces do not have."
    )
    if chosen.height < moved.height:
        note += f" Of {moved.height}, {chosen.height} from the longest waiting to the shortest."
    return table("Transfer and waiting", chosen, columns, note, TRACES)


def _stragglers(late: pl.DataFrame) -> list[Grid]:
    if not late.height or not late["caused"].sum():
        return []
    columns: Columns = [
        *who(late),
        "collectives",
        "last",
        *durations("caused"),
        pl.col("ratio").alias("of all waiting_ratio"),
        *durations("waited"),
    ]
    note = "Who comes last, and how long the others waited for it; the worst first."
    return table("Stragglers", late, columns, note)


def _overlap(some: pl.DataFrame) -> list[Grid]:
    if not some.height:
        return []
    chosen = spread(some, "ratio", ROWS)
    columns: Columns = [
        *who(some),
        "device",
        *durations("communication", "computation", "overlap"),
        pl.col("ratio").alias("hidden_ratio"),
    ]
    note = "How much of the communication is hidden, because the GPU computes at the same time."
    if chosen.height < some.height:
        note += f" Of {some.height}, {chosen.height} from the most hidden to the least."
    return table("Overlap", chosen, columns, note)


def _collectives(collectives: pl.DataFrame, one: OneTrace) -> list[Grid]:
    if not collectives.height:
        return []
    speeds = ("algorithm", "bus", "transfer_bus")
    longest = collectives.sort("total", descending=True, maintain_order=True)
    columns: Columns = [
        "op",
        "group",
        "group_size",
        "type",
        "calls",
        "kernels",
        "bytes",
        pl.col("bytes_mean").alias("a_call_bytes"),
        *durations("total", "mean", "min", "max", "transfer", "waiting"),
        *(pl.col(f"{speed}_bandwidth").alias(f"{speed}_bandwidth_gb_per_s") for speed in speeds),
    ]
    note = (
        "What was communicated, the longest first. Bus bandwidth as nccl-tests have it, to "
        "be compared with the links' peak; transfer bus bandwidth excludes the waiting."
    )
    return table(f"Collectives{one.label}", longest, columns, note)
