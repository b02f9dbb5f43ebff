"""Shared by all figures: colours, units, escaped names, times.

Tests: tests/show/test_shown.py.
"""

from __future__ import annotations

import html
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from haiprof.views.run.overview import BETWEEN

#: One colour per phase, the same in every figure.
PHASE_COLOURS = {
    "dataloader": "#e8833a",
    "forward": "#3f7fd6",
    "recompute": "#35b0c4",
    "backward": "#7a5bd0",
    "gradient_sync": "#c4508a",
    "optimizer": "#3fa66a",
    "eval": "#8a94a6",
    "eval_dataloader": "#c2925c",
    "deep_trace": "#a8545c",
    "other": "#b9c1cc",
    BETWEEN: "#b9c1cc",
}
#: One colour per kind of work, likewise; one that is a phase, too, has that one's.
WORK_COLOURS = {
    "kernel": "#1f9e89",
    "communication": PHASE_COLOURS["gradient_sync"],
    "overlap": "#7f7796",
    "waiting": "#d05b5b",
    "memcpy": "#d9b13b",
    "memset": "#a0a45c",
    "graph": "#5f8f3e",
    "runtime": "#b374c9",
    "cpu": "#7fa3d8",
    "dataloader": PHASE_COLOURS["dataloader"],
    "weight": "#a878e0",
    "send": "#e0a08a",
    "recv": "#8fb4ad",
    "idle": PHASE_COLOURS["other"],
    "other": PHASE_COLOURS["other"],
}
#: For series and user ranges, which have no colour of their own: what one means its figure says.
COLOURS = (
    "#1d5fa8",
    "#b5521b",
    "#2c7a45",
    "#93265f",
    "#523a9e",
    "#157a8c",
    "#7d6210",
    "#556070",
    "#9e2b2b",
)

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


def phase_colour(name: str, position: int) -> str:
    """Return the colour of a phase, or of a user range by its position."""
    return PHASE_COLOURS.get(name) or COLOURS[position % len(COLOURS)]


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


def utc(time_ns: int) -> str:
    """Write a time as ``2026-01-31 12:00:00.123``."""
    whole = datetime.fromtimestamp(time_ns // 10**9, tz=timezone.utc)
    return f"{whole:%Y-%m-%d %H:%M:%S}.{time_ns % 10**9 // 10**6:03d}"


def utc_clock(times_ns: npt.NDArray[np.int64]) -> list[str]:
    """Write times as ``12:00:00.123`` for hover labels."""
    return [utc(int(time))[11:] for time in times_ns]


def seconds_since(times_ns: npt.NDArray[np.int64], origin_ns: int) -> npt.NDArray[np.float64]:
    """Return seconds since the run began, to the millisecond: finer steps would not show."""
    return np.round((times_ns - origin_ns) / 1e9, 3)
