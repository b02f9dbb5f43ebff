"""Operators that are slower than their device allows, and why, from the roofline of a trace.

A rule needs an operator that is certain to be inefficient (:class:`.case.Operator`): a large
multiplication near its usual speed or a copy at most of the bandwidth is no problem, however long
it takes. The first explanation that its shapes and kernels show is given. Where the trace does not
name its device, a few properties of shapes are named anyway if memory bounds them on any device
(depthwise convolution, experts with hardly any rows).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.findings.deep.code_line import line
from haiprof.findings.deep.operators import attention, convolution, experts, gemm, memory
from haiprof.findings.deep.operators.case import Operator, Problem, Rule, operators_of
from haiprof.findings.deep.recommendation import Finding
from haiprof.runs import Gpu
from haiprof.views.trace.critical_path.what_if import Work
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.roofline.operators import counted

Shorter: TypeAlias = Callable[[int | None, Work, float], int]

#: What operators with the same problem must be able to save of their device's time.
WORTH: Final = 0.05
#: At most this many problems are named.
_MOST: Final = 6
_RULES: Final[Mapping[str, Sequence[Rule]]] = {
    "gemm": gemm.RULES,
    "convolution": convolution.RULES,
    "attention": attention.RULES,
    "experts": experts.RULES,
}


def operator_problems(
    linked: Linked, gpus: Sequence[Gpu], shorter: Shorter | None = None
) -> Iterator[Finding]:
    """Yield what makes operators slow on the device, those that can save most first.

    Args:
        linked: the trace.
        gpus: of the process.
        shorter: returns by how much a step (its number; None: all of the trace) is shorter if work
            takes this factor of its time, ns.
    """
    stepped = int((linked.steps["end"] - linked.steps["start"]).sum())
    ranked = []
    for group in _by_problem(operators_of(linked, gpus)):
        saving = sum(_saving(*pair) for pair in group)
        if saving >= WORTH * _busy(group[0][0]) > 0:
            ranked.append((saving, group))
    ranked.sort(key=lambda pair: -pair[0])
    for saving, group in ranked[:_MOST]:
        worst, found = max(group, key=lambda pair: _saving(*pair))
        others = f"; the same for {len(group) - 1} more" if len(group) > 1 else ""
        step, code = _where(linked, worst)
        replayed = None
        # All of the trace stands for a step only where no steps are marked.
        if shorter is not None and (step is not None or not linked.stepped):
            took = sum(float(each.row["device_time"]) for each, _ in group)
            work = Work(_ran(linked, [each for each, _ in group]))
            replayed = shorter(step, work, 1 - saving / took)
        yield Finding(
            found.kind,
            found.problem,
            found.advice,
            f"{worst.evidence()}{others}",
            saving,
            saving / stepped if stepped else None,
            step,
            worst.name,
            code,
            step_saves_ns=replayed,
        )


def problem_of(each: Operator) -> Problem | None:
    """Return the problem of one operator; None if it has none that is certain."""
    rules = _RULES.get(each.cost.kind, memory.RULES)
    return next((found for rule in rules if (found := rule(each)) is not None), None)


def _by_problem(every: Sequence[Operator]) -> Iterator[list[tuple[Operator, Problem]]]:
    """Operators with the same problem: of one name, or of several that belong together."""
    together = [*attention.unfused(every), *memory.small(every)]
    yield from together
    taken = {id(each) for group in together for each, _ in group}
    groups: dict[tuple[str, str], list[tuple[Operator, Problem]]] = defaultdict(list)
    for each in every:
        if id(each) not in taken and (found := problem_of(each)) is not None:
            groups[found.kind, each.name].append((each, found))
    yield from groups.values()


def _saving(each: Operator, problem: Problem) -> int:
    return each.saving if problem.saving is None else problem.saving


def _busy(each: Operator) -> float:
    """Time of all work of its device, ns."""
    share = each.row["share"]
    return float(each.row["device_time"]) / share if share else 0.0


def _where(linked: Linked, each: Operator) -> tuple[int | None, str | None]:
    """The step in which an operator took longest, and the line of code of its longest call."""
    ran = (
        linked.activities.select("step", "duration")
        .with_columns(pl.Series("row", counted(linked)))
        .filter(pl.Series(_ran(linked, [each])))
    )
    if not ran.height:
        return None, None
    longest = _longest(ran, "row")
    step = _longest(ran, "step") if linked.stepped else None
    return step, None if longest is None else line(linked, longest)


def _ran(linked: Linked, every: Sequence[Operator]) -> npt.NDArray[np.bool_]:
    """Say of each activity whether it ran for one of these operators, with the same shapes."""
    operator = counted(linked)
    rows = np.flatnonzero(linked.busy & (operator >= 0))
    called = linked.ops.select("name", "shapes")[operator[rows]]
    asked = pl.DataFrame(
        {"name": [each.name for each in every], "shapes": [each.row["shapes"] for each in every]},
        {"name": pl.String(), "shapes": pl.String()},
    ).cast(called.schema)
    same = called.with_columns(pl.Series("row", rows)).join(
        asked, on=["name", "shapes"], how="semi", nulls_equal=True
    )
    ran = np.zeros(len(operator), np.bool_)
    ran[same["row"].to_numpy()] = True
    return ran


def _longest(ran: pl.DataFrame, by: str) -> int | None:
    """The value of a column whose rows have most time, of several the first."""
    sums = ran.group_by(by).agg(pl.col("duration").sum())
    longest = sums.sort("duration", by, descending=[True, False], nulls_last=True)[by][0]
    return None if longest is None else int(longest)
