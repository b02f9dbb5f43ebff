"""The machine: series by family, of each rank and its node; tables of nodes and hardware.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from haiprof.show import hardware
from haiprof.show import panels as panels_of
from haiprof.show.grid import cut
from haiprof.show.overview import node_grids
from haiprof.show.page import document
from haiprof.show.page.context import Chosen, Context, table
from haiprof.show.panels import Panel, Series
from haiprof.views.run.series import decimate

#: What varies by less of its greatest value does not move.
_MOVES: Final = 0.1
#: Points of a series; a page has hundreds of them.
_POINTS: Final = 300


def sections(found: Context) -> list[document.Section]:
    """Return the tables of the whole run, then the series of each rank."""
    made: list[document.Section] = []
    for position, grid in enumerate(node_grids(found.nodes)):
        made.append(table(grid, f"nodes-{position}", "Nodes"))
    for position, grid in enumerate(hardware.grids(found.ranks, found.nodes)):
        made.append(table(grid, f"hardware-{position}", "Hardware"))
    for chosen in found.chosen:
        made += _of_rank(found, chosen)
    return made


def _of_rank(found: Context, chosen: Chosen) -> list[document.Section]:
    own = found.analyzer, chosen.processes
    panels = [*panels_of.pauses(*own), *panels_of.panels(panels_of.samples(*own))]
    made: list[document.Section] = []
    for position, panel in enumerate(panels):
        made.append(_series(found, chosen, position, panel))
    return made


def _series(found: Context, chosen: Chosen, position: int, panel: Panel) -> document.Series:
    found.columns.next_blob()
    moves = panel.mode == "markers" or any(_moves(series) for series in panel.series)
    section: document.Series = {
        "kind": "series",
        "id": f"series-{chosen.key}-{position}",
        "title": cut(panel.title),
        "axis": "run",
        "unit": panel.unit,
        "lines": [_line(found, series) for series in panel.series],
        "group": cut(panel.family),
        "moves": moves,
        "open": moves,
    }
    if chosen.rank is not None:
        section["rank"] = chosen.rank
    return section


def _line(found: Context, series: Series) -> document.Line:
    keep = decimate(series.time, series.value, min(found.points, _POINTS))
    return {
        "name": cut(series.name),
        "x": found.columns.times(found.seconds(series.time[keep])),
        "y": found.columns.numbers(series.value[keep]),
    }


def _moves(series: Series) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):  # a run may hold any number
        low, high = np.quantile(series.value, [0.05, 0.95])
        return bool(high - low > _MOVES * max(abs(low), abs(high)))
