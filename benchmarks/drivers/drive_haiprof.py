"""Runs haiprof on a trace, a folder of traces, or a run: opens it and makes every view asked for.

A view that the Analyzer does not have is an error that names all such, not one view less.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy
import polars
import pyarrow
from measured import Measured

from haiprof.analyzer import Analyzer

#: The views of a deep trace; the first is what a reader sees first.
VIEWS = (
    "overview", "steps", "operators", "kernels", "memory", "modules", "distributed", "temporal",
    "idle", "overlap", "launches", "queue_length", "bandwidth", "stragglers", "sequences",
    "critical_path", "recommendations", "compare",
)  # fmt: skip
WAYS = {"operators": ("name", "shapes", "stack"), "kernels": ("name", "launch")}
#: Loaded when they are first used, and no part of the work.
LIBRARIES = (numpy, polars, pyarrow)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("path", type=Path)
    parser.add_argument("--views", default=",".join(VIEWS))
    parser.add_argument("--tables", action="store_true", help="show the operator table")
    asked = parser.parse_args()
    views = asked.views.split(",")
    missing = [name for name in views if not hasattr(Analyzer, name)]
    if missing:
        raise SystemExit(f"Analyzer has no {', '.join(missing)}")

    measured = Measured()
    analyzer = Analyzer(asked.path)
    for number, name in enumerate(views):
        for label, view in _make_view(analyzer, name):
            measured.view(label, _rows(view))
        if number == 0:
            measured.opened()
    measured.done()
    problems = analyzer.problems()
    if problems:
        raise SystemExit("\n".join(problems))
    if asked.tables:
        measured.show("operators", analyzer.operators().to_dicts())
    measured.report(asked.report)


def _make_view(analyzer: Analyzer, name: str) -> list[tuple[str, Any]]:
    """Make a view, once for each way in which it can be grouped."""
    make = getattr(analyzer, name)
    if name == "compare":
        return [(name, make(analyzer))]
    if name in WAYS:
        return [(f"{name} by {way}", make(by=way)) for way in WAYS[name]]
    return [(name, make())]


def _rows(value: Any) -> int:
    """Rows of a frame, or of all frames of a record of them; other values count one each."""
    if isinstance(value, polars.DataFrame):
        return value.height
    if dataclasses.is_dataclass(value):
        return sum(_rows(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, list | tuple | dict):
        return len(value)
    return 1


if __name__ == "__main__":
    main()
