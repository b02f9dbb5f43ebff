"""Where in a job most of a lost time is: the operator, the module, the step and the line.

Tests: tests/findings/deep/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.numbers import milliseconds, percent
from haiprof.findings.deep.case import WORTH, Case
from haiprof.findings.deep.code_line import line, module
from haiprof.findings.deep.recommendation import Finding
from haiprof.views.trace.critical_path.what_if import Work, all_within
from haiprof.views.trace.idle_causes.causes import Idle
from haiprof.views.trace.linking.host_roles import OPTIMIZING
from haiprof.views.trace.linking.linked import Linked, enclosing

Rows = npt.NDArray[np.integer[Any]]
Kept = TypeVar("Kept", bound=np.integer[Any])


#: Findings whose loss is what calls of the host did, or that these waited. Python's own time is in
#: no call.
REPLAYED: Final = (
    "data_loading", "startup", "allocator", "cpu_operator", "launch", "synchronisation",
)  # fmt: skip


class Lost(NamedTuple):
    """Idle time of the devices within the steps that has one reason."""

    case: Case
    idle: Idle
    #: Row of the step of each piece.
    step: Rows
    #: ns, of an average device of the process.
    time: int

    @property
    def share(self) -> float:
        """Of the time of the recorded steps."""
        return self.time / self.case.stepped

    @property
    def evidence(self) -> str:
        """The time, in words."""
        return (
            f"{milliseconds(self.time)} of {milliseconds(self.case.stepped)} in the recorded steps"
        )

    def calls(self) -> dict[str, int]:
        """Return the names of the spans that explain it, with their time in ns, longest first."""
        number, names = self.case.linked.named
        texts = names.cast(pl.String).to_list()
        some = self.idle.span >= 0
        each, total = summed(number[self.idle.span[some]], self.idle.length[some])
        found = [(-time, texts[key] or "") for key, time in zip(each, total.tolist(), strict=True)]
        return {name: -time for time, name in sorted(found)}


def lost(
    case: Case, *causes: str, where: Callable[[Idle], npt.NDArray[np.bool_]] | None = None
) -> Lost | None:
    """Return the idle time with these causes (``where`` chooses among it); None if it is little."""
    idle, step = case.idle
    chosen = idle.of(*causes)
    if where is not None:
        chosen &= where(idle)
    rows = np.flatnonzero(chosen)
    mine = idle.taken(rows)
    time = int(mine.length.sum()) // case.lanes
    if time < WORTH * case.stepped or not time:
        return None
    return Lost(case, mine, step[rows], time)


def found(
    kind: str,
    of: Lost,
    problem: str,
    advice: str,
    evidence: Callable[[str, str], str] | None = None,
    *,
    around: bool = True,
) -> Finding:
    """Describe a lost time where most of it is.

    Args:
        kind: of the finding.
        of: the time.
        problem: with ``{share}``.
        advice: what to do.
        evidence: makes words of how often, and how long, it was below the operator ``{name}``.
        around: that is the outermost operator around what the host did then.
    """
    case, rows, length = of.case, of.idle.span, of.idle.length
    name = where = inside = None
    words = of.evidence
    known = rows >= 0
    if known.any():
        rows, length = rows[known], length[known]
        operator = outermost(case.linked, rows) if around else rows
        number, texts = case.linked.named
        names = texts.cast(pl.String).to_list()
        each, total = summed(number[operator], length)
        most = int(total.max())
        key = max((names[key] or "", key) for key in each[total == most].tolist())[1]
        mine = number[operator] == key
        name = names[key]
        row = largest(rows[mine], length[mine])
        where, inside = line(case.linked, row), module(case.linked, row)
        if evidence is not None:
            count = len(np.unique(operator[mine]))
            more = evidence(times(count), milliseconds(most // case.lanes))
            words = f"{words}; {more}".replace("{name}", str(name))
    return Finding(
        kind,
        problem.format(share=percent(of.share)),
        advice,
        words,
        case.saved(of.time),
        of.share,
        case.step(largest(of.step, of.idle.length)),
        name,
        where,
        inside,
        replayed(of, waits=kind == "synchronisation") if kind in REPLAYED else None,
    )


def replayed(of: Lost, *, waits: bool) -> int | None:
    """Return by how much the step that lost most is shorter if the host did not do what it did.

    Args:
        of: the time.
        waits: the host did nothing but wait for the device, and now does not.

    Returns:
        ns, at most what the step lost; None if the trace does not show calls that did it.
    """
    case = of.case
    mine = of.step == largest(of.step, of.idle.length)
    spans = of.idle.span[mine]
    spans = spans[spans >= 0]
    if not len(spans):
        return None
    each = np.zeros(case.linked.steps.height, np.int64)
    each[of.step[mine][0]] = int(of.idle.length[mine].sum()) // case.lanes
    did = np.zeros(len(case.linked.start), np.bool_)
    did[spans] = True
    work = Work(unblocked=did) if waits else Work(calls=all_within(case.linked, did))
    return case.replayed(each, work)


def times(count: int) -> str:
    """Say how often."""
    return "once" if count == 1 else f"{count} times"


def outermost(linked: Linked, rows: Rows) -> npt.NDArray[np.int32]:
    """For each span the outermost operator (or optimizer) around it, or itself without one."""
    around = linked.once(_outermost_operator)[rows]
    return np.where(around >= 0, around, rows).astype(np.int32)


def outermost_name(linked: Linked, row: int) -> str:
    """Return the name of the outermost operator around a span."""
    return str(linked.ops["name"][int(outermost(linked, np.array([row], np.int32))[0])])


def _outermost_operator(linked: Linked) -> npt.NDArray[np.int32]:
    """For each span the outermost operator (or optimizer) that it runs in, or -1."""
    counts = linked.host.operator | linked.matches(OPTIMIZING.pattern)
    around = enclosing(linked, counts)
    return enclosing(linked, counts & (around < 0))


def summed(
    keys: npt.NDArray[Kept], values: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Kept], npt.NDArray[np.int64]]:
    """Return each key (a number of a row or name) once, ascending, and the sum of its values."""
    if not len(keys):
        return keys, values
    low = int(keys.min())
    place = keys - low
    total = np.zeros(int(place.max()) + 1, np.int64)
    np.add.at(total, place, values)
    there = np.flatnonzero(np.bincount(place))
    return (there + low).astype(keys.dtype), total[there]


def largest(keys: npt.NDArray[Any], values: npt.NDArray[np.int64]) -> int:
    """Return the key with the greatest sum of values, of several the greatest."""
    each, total = summed(keys, values)
    return int(each[total == total.max()][-1])
