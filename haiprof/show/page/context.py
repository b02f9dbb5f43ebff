"""What all sections of a page need: the run, which ranks are shown in detail, times, columns.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof import schema
from haiprof.runs import Process
from haiprof.show.grid import Grid, cut
from haiprof.show.page.columns import Columns
from haiprof.show.page.document import Place, Table, TableColumn
from haiprof.views.run.overview import Summary, slowest_first

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Ranks that have sections of their own: of more, the slowest.
MOST_CHOSEN: Final = 16
#: Points of all series of all chosen ranks together, and of one of them.
_POINTS: Final = 400_000
_POINTS_OF_ONE: Final = (120, 800)
#: Longer texts are shortened: a run may hold any.
LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class Chosen:
    """A rank that is shown in detail: its attempts in their order; ``rank`` None has none."""

    rank: int | None
    label: str
    key: str
    summaries: list[Summary]

    @property
    def processes(self) -> list[Process]:
        """Its processes."""
        return [summary.process for summary in self.summaries]


@dataclass(frozen=True, slots=True)
class Context:
    """The run as the sections of its page see it."""

    analyzer: Analyzer
    columns: Columns
    origin_ns: int
    ranks: list[Summary]
    nodes: list[Summary]
    chosen: list[Chosen]
    points: int
    #: Places that findings speak of, for the sections behind them: (rank, from, to) in ns UTC.
    windows: list[tuple[int | None, int, int]] = field(default_factory=list)

    def seconds(self, times_ns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return times as the page has them."""
        return (times_ns.astype(np.int64) - self.origin_ns) / 1e9

    def second(self, time_ns: int) -> float:
        """Return one time, to the microsecond."""
        return round((time_ns - self.origin_ns) / 1e9, 6)

    def on_one_clock(self, process: Process, times_ns: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return times of a process by the clock that all ranks are compared by."""
        convert = self._clocks().get(process.node)
        return times_ns if convert is None else convert(times_ns)

    def _clocks(self) -> dict[str, Callable[..., Any]]:
        if len({s.process.node for s in self.ranks}) < 2:
            return {}
        return self.analyzer.clock_by_node()


def context(analyzer: Analyzer, page: Context | None = None) -> Context:
    """Choose what is shown in detail of a run: the slowest ranks and those that findings name.

    Args:
        analyzer: the run.
        page: of what else is on the page, if it is there for the deep traces of a recorded run.
    """
    ranks, nodes = analyzer.summaries()
    named = {rank: None for one in analyzer.findings() for rank in one.ranks[:2]}
    order = slowest_first(ranks)
    if len({s.rank for s in ranks}) > MOST_CHOSEN:
        order.sort(key=lambda s: s.process.rank not in named)
    groups: dict[object, list[Summary]] = {}
    for summary in order:
        groups.setdefault(summary.rank, []).append(summary)
    chosen = [_chosen(group) for group in list(groups.values())[:MOST_CHOSEN]]
    chosen.sort(key=lambda one: (one.rank is None, one.rank, one.key))
    low, high = _POINTS_OF_ONE
    points = max(low, min(high, _POINTS // (50 * max(len(chosen), 1)) // 4 * 4))
    columns = Columns() if page is None else page.columns
    origin = analyzer.run.created_ns if page is None else page.origin_ns
    return Context(analyzer, columns, origin, ranks, nodes, chosen, points)


def _chosen(group: list[Summary]) -> Chosen:
    ordered = sorted(group, key=lambda s: s.process.started_ns or 0)
    first = ordered[0].process
    label = first.label if len(ordered) == 1 else f"rank {first.rank}"
    key = str(first.rank) if first.rank is not None else f"{first.node}-{first.pid}"
    return Chosen(first.rank, label, key, ordered)


def spans(
    found: Context, process: Process, columns: Sequence[str], categories: Sequence[str]
) -> pl.DataFrame:
    """Return spans of one process, with texts instead of categories and its own clock."""
    return found.analyzer.read(process, schema.SPANS, columns, {"category": categories})


def of_rank(section: dict[str, Any], chosen: Chosen) -> dict[str, Any]:
    """Let a section be shown where its rank is chosen; without a number it always is."""
    if chosen.rank is not None:
        section["rank"] = chosen.rank
    return section


def table(
    grid: Grid,
    identifier: str,
    group: str = "",
    chosen: Chosen | None = None,
    places: Sequence[Place | None] | None = None,
) -> Table:
    """Turn a table of finished text into a section."""
    columns = []
    for number, head in enumerate(grid.heads):
        column: TableColumn = {"name": cut(head), "values": [cut(row[number]) for row in grid.rows]}
        if number in grid.numbers:
            column["number"] = True
        if number in grid.order:
            column["order"] = [_finite(value) for value in grid.order[number]]
        columns.append(column)
    section: Table = {
        "kind": "table",
        "id": identifier,
        "title": grid.title,
        "columns": columns,
        "rows": len(grid.rows),
    }
    if grid.note:
        section["note"] = grid.note
    if group:
        section["group"] = group
    if chosen is not None and chosen.rank is not None:
        section["rank"] = chosen.rank
    if places is not None:
        section["places"] = list(places)
    return section


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
