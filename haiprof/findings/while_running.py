"""What was said of a job while it ran, where that adds to what is known at its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from haiprof.findings.endings import clock
from haiprof.findings.finding import Finding

#: Of events that begin or end a finding.
KIND: Final = "finding"


def added(events: pl.DataFrame, found: Sequence[Finding]) -> list[str]:
    """Return a line on the finding that cost most of its time; empty: the end says the same.

    Args:
        events: of :data:`KIND`, with ``text`` and ``attributes``.
        found: the findings on all of the run, the most important first.
    """
    known = [one.kind for one in found if not one.ended][:1]
    said = [
        (share, begun, text)
        for text, attributes in events.select("text", "attributes").iter_rows()
        for kind, share, begun in _begins(attributes)
        if kind not in known and text
    ]
    return [f"From {clock(begun)} on: {text}" for _, begun, text in sorted(said)[-1:]]


def _begins(attributes: str | None) -> list[tuple[str, float, int]]:
    """Return kind, share, and begin (ns UTC) of a finding; empty: the event is not of its begin."""
    try:
        about: dict[str, Any] = json.loads(attributes or "{}")
        if about["over"]:
            return []
        begun = int(about["since_ns"])
        clock(begun)
        return [(str(about["kind"]), float(about["share"]), begun)]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):  # of a damaged file
        return []
