"""haiprof's cost to the job, as the job itself measured it: the newest event of kind ``budget``."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

EVENT_KIND = "budget"

SCHEMA = {
    "time": pl.Int64(),
    "overhead": pl.Float64(),
    "low": pl.Float64(),
    "high": pl.Float64(),
    "confidence": pl.Float64(),
    "windows": pl.Int64(),
    "steps_inside": pl.Int64(),
    "steps_outside": pl.Int64(),
    "share": pl.Float64(),
    "spent": pl.Float64(),
    "budget": pl.Float64(),
    "mode": pl.String(),
    "stepped_down_to": pl.String(),
    "cost_thread_ns": pl.Int64(),
    "cost_cupti_ns": pl.Int64(),
    "text": pl.String(),
}


def newest(events: pl.DataFrame) -> pl.DataFrame:
    """Return the newest measurement as one row, or an empty frame if there is none.

    ``overhead`` is how much longer steps are while kernels are recorded (0.004 is 0.4 %), ``low``
    and ``high`` bound it with probability ``confidence``; they are null until enough windows were
    seen. ``share`` is the part of the time in which kernels are recorded. If they always are, there
    is nothing to compare with, and ``spent`` is the part of the time that was metered. A value of
    the wrong type is null.

    Args:
        events: ``time``, ``kind``, ``text`` and ``attributes``.
    """
    if not events.height:
        return pl.DataFrame(schema=SCHEMA)
    rows = events.filter(pl.col("kind") == EVENT_KIND).sort("time", maintain_order=True)
    for time, text, attributes in reversed(rows.select("time", "text", "attributes").rows()):
        try:
            document = json.loads(attributes or "")
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            row = {name: _value(document.get(name), kind) for name, kind in SCHEMA.items()}
            return pl.DataFrame([{**row, "time": time, "text": text}], schema=SCHEMA)
    return pl.DataFrame(schema=SCHEMA)


def in_words(row: dict[str, Any]) -> str:
    """Put a row of :func:`newest` into words: ``measured overhead 0.4 % (95 %: 0.1 … 0.7 %)``."""
    if row["overhead"] is not None:
        line = f"measured overhead {_figure(row['overhead'])} %"
        if None not in (row["low"], row["high"], row["confidence"]):
            bounds = f"{_figure(row['low'])} … {_figure(row['high'])} %"
            line += f" ({row['confidence'] * 100:g} %: {bounds})"
        if row["share"] is not None and row["share"] < 1:
            line += f" in the {_figure(row['share'])} % of the time with kernels recorded"
    elif row["spent"] is not None:
        line = f"CUPTI and haiprof's thread took {_figure(row['spent'])} % of the time"
    else:
        seen = row["windows"] or 0
        line = f"overhead not measured yet ({seen} window{'' if seen == 1 else 's'} so far)"
    if row["stepped_down_to"]:
        line += f", so kernels are now recorded less (--kernels {row['stepped_down_to']})"
    return line


def _figure(share: float) -> str:
    return f"{share * 100:.2g}" if abs(share) < 0.1 else f"{share * 100:.0f}"


def _value(value: object, kind: pl.DataType) -> Any:
    if isinstance(value, bool):
        return None
    if kind == pl.String():
        return value if isinstance(value, str) else None
    if kind == pl.Int64():
        return value if isinstance(value, int) and abs(value) < 2**63 else None
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else None
