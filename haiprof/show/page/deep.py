"""What deep traces say: tabs of their own, and what belongs into those that every page has.

Detailed tables are of the trace with the longest steps, which their titles name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from haiprof.show import deep
from haiprof.show.deep.figure import Bars, Curve, Curves, Flames
from haiprof.show.deep.section import Figure, Section
from haiprof.show.grid import SENTENCE, Grid, cut
from haiprof.show.page import document
from haiprof.show.page.columns import Columns
from haiprof.show.page.context import table
from haiprof.show.page.trees import tree
from haiprof.show.paths import widths

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Tabs that every page has.
WRONG: Final = "wrong"
MISSING: Final = "missing"
#: In which tab each question of ``deep.show`` is answered, in the order of an investigation.
_TABS: Final = {
    "why": WRONG,
    "devices": "gpus",
    "communication": "communication",
    "path": "path",
    "operators": "operators",
    "roofline": "operators",
    "kernels": "kernels",
    "launches": "launches",
    "modules": "modules",
    "memory": "memory",
    "unknown": MISSING,
    "lacking": MISSING,
}
_TITLES: Final = {
    "gpus": "GPUs",
    "communication": "Communication",
    "path": "Critical path",
    "operators": "Operators",
    "kernels": "Kernels",
    "launches": "Launches",
    "modules": "Modules",
    "memory": "Memory",
}
#: Times of curves, s.
_QUANTUM: Final = 1e-6


def tabs(traces: Analyzer, columns: Columns) -> dict[str, document.Tab]:
    """Return the tabs that have anything, by their id: also parts of those that every page has."""
    made: dict[str, document.Tab] = {}
    for question, answer in deep.show(traces).items():
        tab = _TABS[question]
        sections = _sections(answer, f"trace-{question}", columns)
        if sections:
            new: document.Tab = {"id": tab, "title": _TITLES.get(tab, ""), "sections": []}
            made.setdefault(tab, new)["sections"].extend(sections)
    return made


def _sections(answer: Section, identifier: str, columns: Columns) -> list[document.Section]:
    made: list[document.Section] = []
    if answer.lines:
        made.append(
            {
                "kind": "text",
                "id": identifier,
                "title": answer.title,
                "lines": [cut(line, SENTENCE) for line in answer.lines],
            }
        )
    for position, part in enumerate(answer.parts):
        name = f"{identifier}-{position}"
        made.append(table(part, name) if isinstance(part, Grid) else _figure(part, name, columns))
    return made


def _figure(figure: Figure, identifier: str, columns: Columns) -> document.Section:
    if isinstance(figure, Bars):
        return _bars(figure, identifier)
    columns.next_blob()
    if isinstance(figure, Curves):
        return _curves(figure, identifier, columns)
    return _flames(figure, identifier, columns)


def _bars(figure: Bars, identifier: str) -> document.Bars:
    section: document.Bars = {
        "kind": "bars",
        "id": identifier,
        "title": cut(figure.title),
        "unit": figure.unit,
        "categories": [cut(each) for each in figure.categories],
        "parts": [
            {"name": name, "values": values, "colour": colour}
            for name, values, colour in figure.parts
        ],
        "stacked": True,
    }
    if figure.note:
        section["note"] = figure.note
    return section


def _curves(figure: Curves, identifier: str, columns: Columns) -> document.Series:
    return {
        "kind": "series",
        "id": identifier,
        "title": cut(figure.title),
        # Times count from where a figure begins, which no other one need share.
        "axis": f"time:{identifier}",
        "unit": figure.unit,
        "lines": [_line(curve, columns) for curve in figure.curves],
        "open": True,
    }


def _line(curve: Curve, columns: Columns) -> document.Line:
    return {
        "name": cut(curve.name),
        "x": columns.times(curve.times, _QUANTUM),
        "y": columns.numbers(curve.values),
        "stepped": True,
    }


def _flames(figure: Flames, identifier: str, columns: Columns) -> document.Flame:
    texts = [cut(name or "") for name in figure.paths["name"].cast(pl.String).to_list()]
    number = {text: position for position, text in enumerate(dict.fromkeys(texts))}
    name_of = np.array([number[text] for text in texts], np.int64)
    parent = figure.paths["parent"].cast(pl.Int64).fill_null(-1).to_numpy()
    return {
        "kind": "flame",
        "id": identifier,
        "title": cut(figure.title),
        "unit": "s",
        "names": list(number),
        "places": [""] * len(number),
        "trees": [tree(columns, "all", name_of, parent, widths(figure.paths))],
    }
