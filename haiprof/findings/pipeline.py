"""A pipeline in words: its bubble beside the ideal one, and the critical stage.

Tests: tests/show/page/test_pipeline.py.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from haiprof.common.numbers import milliseconds, percent
from haiprof.views.run.pipeline import Pipeline

#: Stages that differ by less from their mean are called even.
_EVEN: Final = 0.01


def described_steps(found: Pipeline) -> pl.DataFrame:
    """Return the steps in which any stage did something."""
    return found.steps.filter(pl.col("stages") > 0)


def lines(found: Pipeline) -> list[str]:
    """Return a sentence on bubbles and, with several stages, one on the critical one; or none."""
    steps, stages = described_steps(found), found.stages
    if not steps.height:
        return []
    bubble = steps["bubble"].median()
    first = steps.row(steps.height // 2, named=True)
    line = f"Of the time of {first['ranks']} ranks between a step's first job and its last one, "
    line += f"{percent(_number(bubble))} is bubble"
    line += f" (median of {steps.height} steps)." if steps.height > 1 else "."
    if first["schedule"] is not None:
        line += f" The schedule looks like {first['schedule']}: {first['stages']} stages"
        line += f", {first['chunks']} chunks on each rank" if first["chunks"] > 1 else ""
        line += f", {first['microbatches']} microbatches"
    if first["ideal"] is not None:
        line += f"; with even stages and free communication {percent(first['ideal'])} would be."
    elif first["schedule"] is not None:
        line += "."
    sentences = [line]
    if stages.height > 1:
        worst, mean = stages.row(0, named=True), _number(stages["busy"].mean())
        most = stages.sort("waited_for", descending=True, nulls_last=True).row(0, named=True)
        more = worst["busy"] / mean - 1 if mean else 0.0
        sentences.append(
            f"Stage {worst['stage']} computes longest: {milliseconds(worst['busy'])} a step, "
            f"{percent(more)} above the mean of the stages."
            if more >= _EVEN
            else f"The stages compute equally long: {milliseconds(mean)} a step."
        )
        sentences[-1] += (
            f" The other ranks wait most for stage {most['stage']}: "
            f"{milliseconds(most['waited_for'])} a step, all together."
        )
    return sentences


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
