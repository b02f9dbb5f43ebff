"""The stacked bands of a step's parts over time, for the host and for GPUs.

Tests: tests/show/test_shown.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import polars as pl

from haiprof.show.colours import phase_colour
from haiprof.show.figures import safe, seconds_since, unit_axis, utc_clock


def closed(bands: pl.DataFrame, end: int) -> pl.DataFrame:
    """Let bands fall to 0 where the last step ends.

    Args:
        bands: result of :func:`haiprof.views.run.steps.bands`.
        end: of the last step, ns UTC.
    """
    names = bands["name"].n_unique()
    closing = bands.tail(names).with_columns(
        pl.lit(end, pl.Int64()).alias("start"), pl.lit(0.0).alias("duration")
    )
    return pl.concat([bands, closing])


def add_bands(
    figure: go.Figure, row: int, bands: pl.DataFrame, names: Sequence[str], origin: int
) -> None:
    """Draw bands as a stack, in the order of ``names``."""
    for position, name in enumerate(names):
        band = bands.filter(pl.col("name") == name)
        start = band["start"].to_numpy()
        labels = [
            f"{clock} UTC, step {first}" + (f" to {last}" if last != first else "")
            for clock, first, last in zip(
                utc_clock(start), band["first"], band["last"], strict=True
            )
        ]
        figure.add_trace(
            go.Scatter(
                x=seconds_since(start, origin),
                y=(band["duration"].to_numpy() / 1e6).astype(np.float32),
                name=safe(name),
                mode="lines",
                line={"width": 0, "shape": "hv", "color": phase_colour(name, position)},
                fillcolor=phase_colour(name, position),
                stackgroup="phases",
                customdata=labels if position == 0 else None,
                hovertemplate="%{y:.4g} ms" + (" (%{customdata})" if position == 0 else ""),
            ),
            row=row,
            col=1,
        )
    figure.update_yaxes(unit_axis("ms")[0], row=row, col=1)
