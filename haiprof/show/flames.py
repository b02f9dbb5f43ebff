"""A flame graph: rectangles as wide as what a path of calls takes, its callers above it.

Tests: tests/show/test_stacks.py.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import polars as pl

from haiprof.show.figures import finish, safe
from haiprof.show.paths import widths

_NS_PER_MS = 1e6
#: Number of rectangles: the widest ones.
_RECTANGLES = 800
_DEPTH = 24
#: Light, so that dark text is readable on them.
_COLOURS = ("#f2b179", "#f5c98b", "#f0dca4", "#eaa586", "#f7d67c", "#e8c39e")


def figure(flames: pl.DataFrame, title: str, counted: str) -> list[go.Figure]:
    """Draw the widest paths; omitted ones show as the own time of their callers.

    Args:
        flames: ``parent`` (row of the caller, which comes before), ``depth``, ``name``, ``self``
            (ns), and ``count``.
        title: stands above it.
        counted: what ``count`` is the number of.

    Returns:
        The figure; none where nothing takes any time.
    """
    width = widths(flames)
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
    counts = kept["count"].to_list()
    details = [
        [round(ns / _NS_PER_MS, 3), count, round(ns / whole, 4)]
        for ns, count in zip(wide.tolist(), counts, strict=True)
    ]
    outermost = kept.filter(pl.col("parent").is_null())["count"].sum()
    drawing = go.Figure(
        go.Icicle(
            ids=["all", *map(str, rows.tolist())],
            labels=["all", *names],
            parents=["", *("all" if caller < 0 else str(caller) for caller in parent.tolist())],
            # For each rectangle the part not in those beneath it: the rest is their sum.
            values=np.round(values / _NS_PER_MS, 6).tolist(),
            branchvalues="remainder",
            customdata=[[round(whole / _NS_PER_MS, 3), outermost, 1.0], *details],
            hovertemplate="%{label}<br>%{customdata[0]:.3g} ms (%{customdata[2]:.1%}), "
            f"%{{customdata[1]}} {counted}<extra></extra>",
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
    drawing.add_annotation(
        text=title, x=0, xanchor="left", y=1, yanchor="bottom", xref="paper", yref="paper",
        showarrow=False, font_size=13, yshift=24,
    )  # fmt: skip
    deepest = min(int(kept["depth"].to_numpy().max()) + 2, _DEPTH)
    return [finish(drawing, 120 + 20 * deepest)]


def _colour(name: str) -> str:
    """Return the colour of a name, the same in every report."""
    return _COLOURS[sum(place * ord(c) for place, c in enumerate(name, 1)) % len(_COLOURS)]
