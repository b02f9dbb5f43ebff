"""Shared by the figures of notebooks: units, escaped names, times, their look.

Tests: tests/show/test_shown.py.
"""

from __future__ import annotations

import html
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from haiprof.common.numbers import utc

_MARGIN = {"l": 76, "r": 24, "t": 64, "b": 48}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_AXIS_BY_UNIT = {
    "percent": {"ticksuffix": " %"},
    "ratio": {"tickformat": ".3~%"},
    "watts": {"tickformat": "~s", "ticksuffix": "W"},
    "celsius": {"ticksuffix": " °C"},
    "ms": {"ticksuffix": " ms"},
    "s": {"ticksuffix": " s"},
}


def safe(name: str) -> str:
    """Escape a name from a trace for plotly text, which reads a kind of HTML."""
    return html.escape(name if len(name) <= 80 else name[:79] + "…")


def unit_axis(unit: str, greatest: float = 0.0) -> tuple[dict[str, Any], float]:
    """Return the y axis settings for values in ``unit``, and the divisor for the values."""
    if unit in ("bytes", "bytes_per_s"):
        power = 0
        while greatest >= 1024 ** (power + 1) and power < len(_BINARY) - 1:
            power += 1
        suffix = f" {_BINARY[power]}{'/s' if unit == 'bytes_per_s' else ''}"
        return {"rangemode": "tozero", "ticksuffix": suffix, "hoverformat": ".4~g"}, 1024.0**power
    return {"rangemode": "tozero", **_AXIS_BY_UNIT.get(unit, {"tickformat": "~s"})}, 1.0


def stacked(titles: list[str], heights: list[int], gap: int, shared_x: bool = False) -> go.Figure:
    """Make a figure of panels one above the other; heights and the gap between them in pixels."""
    inner = sum(heights) + gap * (len(heights) - 1)
    figure = make_subplots(
        rows=len(titles),
        cols=1,
        shared_xaxes=shared_x,
        subplot_titles=titles,
        row_heights=heights,
        # With one panel that is lower than a gap, the share would be invalid.
        vertical_spacing=gap / inner if len(titles) > 1 else 0,
    )
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    return finish(figure, inner + _MARGIN["t"] + _MARGIN["b"])


def panel_legends(figure: go.Figure, rows: int) -> None:
    """Give each panel its own legend, at the right end of its title line."""
    for row in range(1, rows + 1):
        name = "legend" if row == 1 else f"legend{row}"
        figure.update_traces(legend=name, row=row, col=1)
        place = {"x": 1, "xanchor": "right", "y": figure.get_subplot(row, 1).yaxis.domain[1]}
        look = {
            "orientation": "h",
            "yanchor": "bottom",
            "font_size": 11,
            "bgcolor": "rgba(0,0,0,0)",
        }
        figure.update_layout({name: {**place, **look, "traceorder": "normal"}})


def message(text: str) -> go.Figure:
    """Make a figure that only contains a message."""
    figure = go.Figure()
    figure.add_annotation(text=safe(text), showarrow=False, font={"size": 16})
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    return finish(figure, 120)


def finish(figure: go.Figure, height: int) -> go.Figure:
    """Give a figure the common look."""
    figure.update_layout(
        height=height,
        margin=_MARGIN,
        template="plotly_white",
        font={"family": "system-ui, sans-serif", "size": 12},
        hoverlabel={"namelength": -1},
        bargap=0.25,
    )
    return figure


def utc_clock(times_ns: npt.NDArray[np.int64]) -> list[str]:
    """Write times as ``12:00:00.123`` for hover labels."""
    return [utc(int(time))[11:] for time in times_ns]


def seconds_since(times_ns: npt.NDArray[np.int64], origin_ns: int) -> npt.NDArray[np.float64]:
    """Return seconds since the run began, to the millisecond: finer steps would not show."""
    return np.round((times_ns - origin_ns) / 1e9, 3)
