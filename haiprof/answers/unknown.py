"""What the trace of one process lacks, and which views are incomplete because of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import polars as pl

from haiprof import schema
from haiprof.runs import Process
from haiprof.sources import reasons, tables
from haiprof.views.trace import requirements
from haiprof.views.trace.linking import roles

SCHEMA: Final = {
    "view": pl.String(),
    "missing": pl.String(),
    "consequence": pl.String(),
    "why": pl.String(),
}
#: For these tables, the texts that occur in a column are keys, too.
_KINDS: Final = {"spans": "category", "kernels": "kind"}


def unknown_of(process: Process, view: str | None) -> pl.DataFrame:
    """Return the requirements of views that a trace does not meet, as :data:`SCHEMA` has them.

    Args:
        process: the process of the trace.
        view: only requirements of this view; by default of all.
    """
    tool = reasons.RECORDED if process.trace is None else process.trace.tool
    lacks = {} if process.trace is None else process.trace.lacks
    rows = [
        (want.view, want.needs, want.lost, reasons.why(tool, lacks, want.needs))
        for want in requirements.missing(_available(process))
        if view in (None, want.view)
    ]
    return pl.DataFrame(rows, SCHEMA, orient="row")


def _available(process: Process) -> set[str]:
    """Return the keys for which a process's tables have data."""
    asked: dict[str, set[str]] = defaultdict(set)
    for want in requirements.WANTS:
        for key in (want.needs, want.given or want.needs):
            table, _, column = key.partition(".")
            if column:
                asked[table].add(column)
    keys: set[str] = set()
    for name, definition in schema.TABLES.items():
        # Every row has a value in this one.
        always = next(column.name for column in definition.columns if not column.nullable)
        there = tables.filled(process.folder, definition, {always, *asked[name]})
        if always in there:
            keys |= {name, *(f"{name}.{column}" for column in there & asked[name])}
    for name, kind in _KINDS.items():
        if name in keys:
            texts = tables.values(process.folder, schema.TABLES[name], kind)
            keys |= {f"{name}[{text}]" for text in texts}
    if "collectives" in keys or _communicates(process):
        keys.add(requirements.COMMUNICATION)
    return keys


def _communicates(process: Process) -> bool:
    return bool(roles.communication(tables.values(process.folder, schema.KERNELS, "name")))
