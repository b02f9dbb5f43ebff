"""The pipeline of a job: one step in lanes of its ranks, bubbles, and the critical stage."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from haiprof.findings import pipeline as pipeline_findings
from haiprof.show.deep.section import Columns, durations
from haiprof.show.deep.section import table as grids
from haiprof.show.grid import SENTENCE, Grid, cut
from haiprof.show.page import document
from haiprof.show.page.context import Context, table
from haiprof.views.run.pipeline import Pipeline

#: Maximum number of lanes and jobs drawn: the first ones.
_LANES: Final = 64
_JOBS: Final = 8_000
#: What costs a step less than this share of it is not said, nor more than so many causes.
_WORTH: Final = 0.01
_CAUSES: Final = 3
_WHO: Final = ["node", "rank", "pid"]
#: Columns that a job's name is made of.
_NAMED: Final = ("name", "microbatch", "chunk")


def sections(found: Context) -> list[document.Section]:
    """Return the sections; none where no rank recorded microbatches."""
    pipelined = found.analyzer.pipeline()
    steps = pipeline_findings.described_steps(pipelined)
    if not steps.height:
        return []
    said = [*pipeline_findings.lines(pipelined), *_without(found)]
    lines = [cut(line, SENTENCE) for line in said]
    made: list[document.Section] = [
        {"kind": "text", "id": "pipeline", "title": "Pipeline", "lines": lines}
    ]
    # Of all steps the one in the middle: the first ones are not like the others.
    middle = steps.sort("duration", "step").row(steps.height // 2, named=True)
    jobs = pipelined.jobs.filter(pl.col("step") == middle["step"])
    made.append(_lanes(found, jobs, middle))
    for position, grid in enumerate(_tables(pipelined, steps)):
        made.append(table(grid, f"pipeline-{position}"))
    return made


def _without(found: Context) -> list[str]:
    """Say how long a step would take without what slows it down most."""
    causes = found.analyzer.slowdown().causes.filter(pl.col("share") >= _WORTH)
    return [f"{line}." for line in causes["words"].head(_CAUSES)]


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
        lanes.append(_lane(found, _lane_name(node, rank, stages), mine))
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
    texts = [cut(_job_name(*row)) for row in jobs.select(*_NAMED).iter_rows()]
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


def _tables(found: Pipeline, steps: pl.DataFrame) -> list[Grid]:
    """Return the tables of stages, ranks and steps."""
    return [*_stages(found.stages), *_ranks(found.lanes), *_steps(steps)]


def _lane_name(node: str, rank: int | None, stages: list[int]) -> str:
    """Name the lane of a rank."""
    who = f"rank {rank}" if rank is not None else str(node)
    where = f", stage {', '.join(map(str, stages))}" if stages else ""
    return f"{who}{where}"


def _job_name(name: str, microbatch: int | None, chunk: int | None) -> str:
    """Name what a rank does for a microbatch."""
    of = "" if microbatch is None else f" of microbatch {microbatch}"
    return f"{name}{of}" + ("" if chunk is None else f", chunk {chunk}")


def _stages(stages: pl.DataFrame) -> list[Grid]:
    columns: Columns = ["stage", *durations("busy", "forward", "backward", "waited_for")]
    return grids(
        "Stages, the critical one first",
        stages,
        columns,
        "Busy: for the stage, in a step; forward and backward of one microbatch; waited for: how "
        "long the other ranks together stood idle in a step until it was done.",
    )


def _ranks(lanes: pl.DataFrame) -> list[Grid]:
    parts = ("busy", "before", "between", "after")
    mean = (
        lanes.group_by(*_WHO, maintain_order=True)
        .agg(pl.col("stage").min(), *(pl.col(part).mean() for part in ("bubble", *parts)))
        .sort("bubble", descending=True, nulls_last=True, maintain_order=True)
    )
    columns: Columns = [
        "node", "rank", "stage", *durations(*parts), pl.col("bubble").alias("bubble_ratio")
    ]  # fmt: skip
    note = "Means of all steps: busy, and idle before its first job, between jobs, after its last."
    return grids("Ranks by their bubble", mean, columns, note)


def _steps(steps: pl.DataFrame) -> list[Grid]:
    columns: Columns = [
        "step", *durations("duration"), pl.col("bubble").alias("bubble_ratio"), "schedule",
        "microbatches", pl.col("ideal").alias("ideal_ratio"), "critical",
    ]  # fmt: skip
    worst = steps.sort("bubble", descending=True, nulls_last=True, maintain_order=True)
    note = (
        "From the first computing of any rank to the last job of any; critical is the stage that "
        "computes longest."
    )
    return grids("Steps by their bubble", worst, columns, note)
