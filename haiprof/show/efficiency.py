"""MFU, throughput and energy of the ranks, and how the job's whole life was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from haiprof.findings import efficiency as efficiency_findings
from haiprof.show.grid import Grid, frame_grid

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

_ROWS = 64
#: Columns of interest only beside one of these.
_KNOWN = ("mfu", "hfu", "tokens_per_s", "samples_per_s", "gpu_joules_per_step")


def show(analyzer: Analyzer) -> tuple[list[str], list[Grid]]:
    """Return sentences and tables; none for traces, which lack these figures."""
    if analyzer.traced:
        return [], []
    found, whole = analyzer.efficiency(), analyzer.goodput()
    lines = [
        *efficiency_findings.efficiency(found.run),
        *efficiency_findings.life(whole.summary, whole.parts),
    ]
    return lines, _ranks(found.ranks)


def _ranks(ranks: pl.DataFrame) -> list[Grid]:
    known = [name for name in _KNOWN if ranks[name].null_count() < ranks.height]
    if not known:
        return []
    shown = ranks.head(_ROWS).with_columns(
        (pl.col("step_ns") / 1e6).alias("step_mean_ms"),
        pl.col("mfu").alias("mfu_share"),
        pl.col("hfu").alias("hfu_share"),
        pl.col("tensor_active").alias("tensor_active_ratio"),
        pl.col("gpu_joules_per_step").alias("gpu_step_joules"),
    )
    wanted = ["node", "rank", "steps", "step_mean_ms", "mfu_share", "hfu_share", "flops_how"]
    wanted += ["dtype", "tensor_active_ratio", "tokens_per_s", "samples_per_s", "gpu_step_joules"]
    columns = [name for name in wanted if shown[name].null_count() < shown.height]
    note = "; ".join(dict.fromkeys(why for why in ranks["why"].drop_nulls()))
    if ranks.height > _ROWS:
        note = f"{_ROWS} of {ranks.height} ranks. {note}"
    return [frame_grid("Efficiency", shown.select(columns), note.strip())]
