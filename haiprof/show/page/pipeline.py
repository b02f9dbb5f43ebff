"""The pipeline of a job: one step in lanes of its ranks, bubbles, and the critical stage.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from haiprof.findings import pipeline as pipeline_findings
from haiprof.show import pipeline
from haiprof.show.grid import cut
from haiprof.show.page import document
from haiprof.show.page.context import Context, table

_LANES: Final = 64
_JOBS: Final = 8_000
_WHO: Final = ["node", "rank", "pid"]


def sections(found: Context) -> list[document.Section]:
    """Return the sections; none where no rank recorded microbatches."""
    pipelined = found.analyzer.pipeline()
    steps = pipeline_findings.described_steps(pipelined)
    if not steps.height:
        return []
    lines = [cut(line) for line in pipeline_findings.lines(pipelined)]
    made: list[document.Section] = [
        {"kind": "text", "id": "pipeline", "title": "Pipeline", "lines": lines}
    ]
    # Of all steps the one in the middle: the first ones are not like the others.
    middle = steps.sort("duration", "step").row(steps.height // 2, named=True)
    jobs = pipelined.jobs.filter(pl.col("step") == middle["step"])
    made.append(_lanes(found, jobs, middle))
    for position, grid in enumerate(pipeline.tables(pipelined, steps)):
        made.append(table(grid, f"pipeline-{position}"))
    return made


def _lanes(found: Context, jobs: pl.DataFrame, step: dict[str, int]) -> document.Lanes:
    ordered = (
        jobs.group_by(_WHO, maintain_order=True)
        .agg(pl.col("stage").min(), pl.col("stage").drop_nulls().unique().sort().alias("stages"))
        .sort("stage", "rank", "node", nulls_last=True)
    )
    shown = ordered.head(_LANES)
    found.columns.next_blob()
    lanes = []
    for node, rank, pid, _, stages in shown.iter_rows():
        who = zip(_WHO, (node, rank, pid), strict=True)
        whose = pl.all_horizontal(pl.col(name).eq_missing(pl.lit(value)) for name, value in who)
        mine = jobs.filter(whose).sort("start").head(_JOBS // shown.height)
        lanes.append(_lane(found, pipeline.lane_name(node, rank, stages), mine))
    end = step["start"] + step["duration"]
    section: document.Lanes = {
        "kind": "lanes",
        "id": "pipeline-step",
        "title": f"Step {step['step']} by rank, with the numbers of its microbatches",
        "axis": "run",
        "lanes": lanes,
        "steps": {
            "number": found.columns.integers(np.array([step["step"]])),
            "from": found.columns.times(np.array([found.second(step["start"])]), 1e-6),
            "to": found.columns.times(np.array([found.second(end)]), 1e-6),
        },
    }
    if shown.height < ordered.height:
        section["note"] = f"{shown.height} of {ordered.height} ranks"
    return section


def _lane(found: Context, name: str, jobs: pl.DataFrame) -> document.Lane:
    texts = [cut(pipeline.job_name(*row)) for row in jobs.select(*pipeline.NAMED).iter_rows()]
    names = list(dict.fromkeys(texts))
    number = {text: position for position, text in enumerate(names)}
    return {
        "name": cut(name),
        "group": "Ranks",
        "from": found.columns.times(found.seconds(jobs["start"].to_numpy()), 1e-6),
        "length": found.columns.numbers(jobs["duration"].to_numpy() / 1e9),
        "name_of": found.columns.integers(np.array([number[text] for text in texts], np.int64)),
        "names": names,
        "colour": "phase",
    }
