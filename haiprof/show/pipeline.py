"""The pipeline as a section of the report: one step in lanes, bubbles, and the critical stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import plotly.graph_objects as go
import polars as pl

from haiprof.findings import pipeline as pipeline_findings
from haiprof.show.deep.section import NS_PER_MS, Columns, Section, durations, table
from haiprof.show.figures import PHASE_COLOURS, WORK_COLOURS, safe, stacked
from haiprof.show.grid import Grid
from haiprof.views.run import pipeline as view

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Maximum number of lanes and jobs drawn: the first ones.
_LANES: Final = 64
_JOBS: Final = 8_000
_COLOURS: Final = {
    view.FORWARD: PHASE_COLOURS["forward"],
    view.BACKWARD: PHASE_COLOURS["backward"],
    view.WEIGHT: WORK_COLOURS["weight"],
    view.OPTIMIZER: PHASE_COLOURS["optimizer"],
    "send": WORK_COLOURS["send"],
    "recv": WORK_COLOURS["recv"],
    "reduce": WORK_COLOURS["communication"],
    view.OTHER: PHASE_COLOURS["other"],
}
#: Where in a lane a job is drawn, from its middle down, and how high: communication is thin, at the
#: edges, so that simultaneous sends and receives, or those beside computing, are visible.
_PLACES: Final = {"send": (-0.42, 0.16), "recv": (0.26, 0.16), "reduce": (-0.08, 0.16)}
_WHOLE: Final = (-0.42, 0.84)
#: With more jobs in a lane no edges are drawn: they would be wider than the jobs.
_WITH_EDGES: Final = 100
_WHO: Final = ["node", "rank", "pid"]
#: Columns that a job's name is made of.
NAMED: Final = ("name", "microbatch", "chunk")


def section(analyzer: Analyzer) -> Section:
    """Describe the pipeline of a run; nothing if no rank recorded microbatches."""
    found = analyzer.pipeline()
    steps = pipeline_findings.described_steps(found)
    if not steps.height:
        return Section("", [])
    # Of all steps the one in the middle: the first ones are not like the others.
    middle = steps.sort("duration", "step").row(steps.height // 2, named=True)
    step = middle["step"]
    return Section(
        "Pipeline",
        [
            *_lanes(found.jobs.filter(pl.col("step") == step), middle),
            *tables(found, steps),
        ],
        pipeline_findings.lines(found),
    )


def tables(found: view.Pipeline, steps: pl.DataFrame) -> list[Grid]:
    """Return the tables of stages, ranks and steps."""
    return [*_stages(found.stages), *_ranks(found.lanes), *_steps(steps)]


def _lanes(jobs: pl.DataFrame, step: dict[str, int]) -> list[go.Figure]:
    lanes = (
        jobs.group_by(_WHO, maintain_order=True)
        .agg(pl.col("stage").min(), pl.col("stage").drop_nulls().unique().sort().alias("stages"))
        .sort("stage", "rank", "node", nulls_last=True)
        .with_row_index("lane")
    )
    shown = lanes.head(_LANES)
    drawn = (
        jobs.join(shown.select(*_WHO, "lane"), on=_WHO, nulls_equal=True).sort("start").head(_JOBS)
    )
    part = f" ({shown.height} of {lanes.height} ranks)" if shown.height < lanes.height else ""
    part += f" (the first {_JOBS:,} of {jobs.height:,} jobs)" if drawn.height == _JOBS else ""
    title = f"Step {step['step']} by rank, with the numbers of its microbatches{part}"
    figure = stacked([title], [40 + 26 * shown.height], gap=60)
    names = [safe(lane_name(*row)) for row in shown.select("node", "rank", "stages").iter_rows()]
    edge = 0.5 if drawn.height <= _WITH_EDGES * shown.height else 0
    for kind, colour in sorted(_COLOURS.items(), key=lambda one: one[0] in _PLACES):
        mine = drawn.filter(pl.col("kind") == kind)
        if not mine.height:
            continue
        offset, height = _PLACES.get(kind, _WHOLE)
        figure.add_bar(
            base=((mine["start"] - step["start"]) / NS_PER_MS).round(4).to_list(),
            x=(mine["duration"] / NS_PER_MS).round(4).to_list(),
            y=[names[lane] for lane in mine["lane"]],
            offset=offset,
            width=height,
            text=["" if each is None else str(each) for each in mine["microbatch"]],
            textposition="none" if kind in _PLACES else "inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="inside",
            customdata=[
                (safe(job_name(*who)), ns / NS_PER_MS)
                for *who, ns in mine.select(*NAMED, "duration").iter_rows()
            ],
            orientation="h",
            name=kind,
            marker={
                "color": colour,
                "line": {"width": 0 if kind in _PLACES else edge, "color": "rgba(255,255,255,0.8)"},
            },
            # For a bar with a base, x is where it ends.
            hovertemplate="%{customdata[0]}: %{customdata[1]:.4g} ms from %{base:.6g} ms on"
            "<extra></extra>",
        )
    figure.update_layout(
        barmode="overlay", showlegend=True, uniformtext={"minsize": 10, "mode": "hide"}
    )
    # Including a rank's wait since the previous step would make the step itself small.
    length = step["duration"] / NS_PER_MS
    figure.update_xaxes(ticksuffix=" ms", range=[-0.01 * length, 1.01 * length])
    figure.update_yaxes(
        autorange="reversed", type="category", categoryorder="array", categoryarray=names,
        automargin=True,
    )  # fmt: skip
    figure.update_layout(
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"}
    )
    return [figure]


def lane_name(node: str, rank: int | None, stages: list[int]) -> str:
    """Name the lane of a rank."""
    who = f"rank {rank}" if rank is not None else str(node)
    where = f", stage {', '.join(map(str, stages))}" if stages else ""
    return f"{who}{where}"


def job_name(name: str, microbatch: int | None, chunk: int | None) -> str:
    """Name what a rank does for a microbatch."""
    of = "" if microbatch is None else f" of microbatch {microbatch}"
    return f"{name}{of}" + ("" if chunk is None else f", chunk {chunk}")


def _stages(stages: pl.DataFrame) -> list[Grid]:
    columns: Columns = ["stage", *durations("busy", "forward", "backward", "waited_for")]
    return table(
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
    return table("Ranks by their bubble", mean, columns, note)


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
    return table("Steps by their bubble", worst, columns, note)
