"""What each part of the model costs: its modules, and a flame graph of who calls whom.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import polars as pl

from haiprof.show.deep.section import (
    NS_PER_MS,
    Columns,
    OneTrace,
    Section,
    durations,
    lacking,
    table,
)
from haiprof.show.figures import finish, safe

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.show.grid import Grid

_MODULES = 60
#: Number of rectangles in the flame graph: the widest ones.
_RECTANGLES = 800
_DEPTH = 24
#: Light, so that dark text is readable on them.
_FLAMES = ("#f2b179", "#f5c98b", "#f0dca4", "#eaa586", "#f7d67c", "#e8c39e")


def section(analyzer: Analyzer, one: OneTrace) -> Section:
    """Describe the modules and the calls of one trace."""
    modules = one.of(analyzer.modules(one.rank))
    title = "Python functions"
    flames = one.of(analyzer.flames(one.rank))
    missing = lacking({"modules": modules, "Python functions": flames})
    if not flames.height:
        title = "operators, ranges and calls of the runtime"
        flames = one.of(analyzer.flames(one.rank, of="calls"))
    return Section(
        "Modules and calls",
        [*_modules(modules, one), *_flame_graph(flames, f"Flame graph of {title}{one.label}")],
        missing=missing,
    )


def _modules(modules: pl.DataFrame, one: OneTrace) -> list[Grid]:
    indent = pl.lit("\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}").repeat_by("depth").list.join("")
    columns: Columns = [
        (indent + pl.col("name").cast(pl.String)).alias("module"),
        "occurrences",
        "operators",
        *durations("host", "self_host", "device", "self_device"),
        *durations("backward_host", "backward_device"),
    ]
    note = "What each module of the model costs, with what lies in it and alone."
    return table(f"Modules{one.label}", modules, columns, note, _MODULES)


def _flame_graph(flames: pl.DataFrame, title: str) -> list[go.Figure]:
    """Draw the widest paths; omitted ones show as the own time of their callers."""
    width = _widths(flames)
    whole = int(width[flames["parent"].is_null().to_numpy()].sum())
    if not whole:
        return []
    # A caller is at least as wide, and comes before what it calls: it is kept, too.
    rows = np.sort(np.argsort(-width, kind="stable")[:_RECTANGLES])
    kept, wide = flames[rows.tolist()], width[rows]
    parent = kept["parent"].cast(pl.Int64).fill_null(-1).to_numpy()
    own = np.zeros(flames.height, np.int64)
    own[rows] = wide
    np.subtract.at(own, parent[parent >= 0], wide[parent >= 0])
    values = np.concatenate(([whole - own[rows].sum()], own[rows]))
    names = [safe(name or "") for name in kept["name"].cast(pl.String).to_list()]
    calls = kept["calls"].to_list()
    details = [
        [round(ns / NS_PER_MS, 3), count, round(ns / whole, 4)]
        for ns, count in zip(wide.tolist(), calls, strict=True)
    ]
    figure = go.Figure(
        go.Icicle(
            ids=["all", *map(str, rows.tolist())],
            labels=["all", *names],
            parents=["", *("all" if caller < 0 else str(caller) for caller in parent.tolist())],
            # For each rectangle the part not in those beneath it: the rest is their sum.
            values=np.round(values / NS_PER_MS, 6).tolist(),
            branchvalues="remainder",
            customdata=[[round(whole / NS_PER_MS, 3), 1, 1.0], *details],
            hovertemplate="%{label}<br>%{customdata[0]:.3g} ms (%{customdata[2]:.1%}), "
            "%{customdata[1]} calls<extra></extra>",
            tiling={"orientation": "v"},
            maxdepth=_DEPTH,
            sort=False,
            marker={
                "colors": ["#d9dee6", *map(_colour, names)],
                "line": {"width": 0.5, "color": "#ffffff"},
            },
            textfont={"color": "#1c2430", "size": 11},
            pathbar={"textfont": {"color": "#1c2430"}},
        )
    )
    if kept.height < flames.height:
        title += f": the {kept.height:,} widest of {flames.height:,} paths"
    figure.add_annotation(
        text=title, x=0, xanchor="left", y=1, yanchor="bottom", xref="paper", yref="paper",
        showarrow=False, font_size=13, yshift=24,
    )  # fmt: skip
    deepest = min(int(kept["depth"].to_numpy().max()) + 2, _DEPTH)
    return [finish(figure, 120 + 20 * deepest)]


def _widths(flames: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Return the time of each path including all beneath it, in ns.

    It is the path's ``total``, unless calls of one thread overlap, as in some traces.
    """
    width: npt.NDArray[np.int64] = flames["self"].to_numpy().copy()
    depth = flames["depth"].to_numpy()
    parent = flames["parent"].cast(pl.Int64).fill_null(-1).to_numpy()
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (parent >= 0))
        np.add.at(width, parent[rows], width[rows])
    return width


def _colour(name: str) -> str:
    """Return the colour of a name, the same in every report."""
    return _FLAMES[sum(place * ord(c) for place, c in enumerate(name, 1)) % len(_FLAMES)]
