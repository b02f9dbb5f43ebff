"""The CSV files of rocprofv3 for one process: one for each kind of record.

Versions name agents by number, or by a word and a number; some lack columns.

Tests: tests/sources/rocprof/test_one_process.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from haiprof.sources.imports import csv_text
from haiprof.sources.imports.imported import Imported
from haiprof.sources.rocprof.find import files_of
from haiprof.sources.rocprof.trace import AGENTS, CALLS, COPIES, DISPATCHES, Trace

_TIMES: Final = {
    "Start_Timestamp": "start",
    "End_Timestamp": "end",
    "Correlation_Id": "correlation",
}
_DISPATCHES: Final = {
    **_TIMES,
    "Kernel_Name": "name",
    "Agent_Id": "agent",
    "Queue_Id": "queue",
    "Stream_Id": "stream",
    "VGPR_Count": "vgpr",
    "Accum_VGPR_Count": "accum",
    "LDS_Block_Size": "shared_memory",
    "Group_Segment_Size": "shared_memory",
    **{f"Grid_Size_{axis.upper()}": f"grid_{axis}" for axis in "xyz"},
    **{f"Workgroup_Size_{axis.upper()}": f"group_{axis}" for axis in "xyz"},
}
_CALLS: Final = {**_TIMES, "Function": "name", "Thread_Id": "thread", "Process_Id": "process"}
_COPIES: Final = {
    **_TIMES,
    "Direction": "direction",
    "Source_Agent_Id": "source",
    "Destination_Agent_Id": "target",
    "Stream_Id": "stream",
    "Size": "bytes",
}
_AGENTS: Final = {
    "Node_Id": "agent",
    "Agent_Type": "type",
    "Product_Name": "product",
    "Name": "name",
    "Cu_Count": "units",
}
_KINDS: Final = {
    "hip_api_trace": "hip",
    "hsa_api_trace": "hsa",
    "rccl_api_trace": "rccl",
    "marker_api_trace": "marker",
}
_IDS: Final = frozenset(("agent", "source", "target"))


def read(imported: Imported) -> Trace:
    """Read the files of a process, and its number.

    Raises:
        HaiprofError: a file is not CSV.
        OSError: the folder cannot be read.
    """
    files = files_of(imported.source)

    def table(what: str, columns: Mapping[str, str]) -> pl.DataFrame:
        there = what in files
        return csv_text.read(files[what], columns) if there else csv_text.nothing(columns)

    dispatches = table("kernel_trace", _DISPATCHES).with_columns(
        (_whole("vgpr") + _whole("accum").fill_null(0)).alias("registers")
    )
    calls = {kind: table(what, _CALLS) for what, kind in _KINDS.items()}
    processes = pl.concat([each["process"].drop_nulls() for each in calls.values()])
    if len(processes) and processes[0].isdecimal():
        imported.pid = int(processes[0][:18])
    gpus = table("agent_info", _AGENTS)
    gpus = gpus.filter(pl.col("type").str.to_uppercase() == "GPU").with_columns(
        pl.coalesce("product", "name").alias("name")
    )
    gpus = _typed(gpus.with_columns(pl.lit(None, pl.String()).alias("ordinal")), AGENTS)
    ordinals = pl.int_range(pl.len(), dtype=pl.Int64)
    return Trace(
        _typed(dispatches, DISPATCHES),
        pl.concat(
            [
                _typed(rows.with_columns(pl.lit(kind).alias("kind")), CALLS)
                for kind, rows in calls.items()
            ]
        ),
        _typed(table("memory_copy_trace", _COPIES), COPIES),
        gpus.sort("agent").with_columns(ordinals.alias("ordinal")),
    )


def _typed(table: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    return table.select(
        pl.col(name)
        if kind == pl.String() or table.schema[name] == kind
        else (_number(name) if name in _IDS else _whole(name))
        for name, kind in schema.items()
    )


def _whole(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64, strict=False).alias(name)


def _number(name: str) -> pl.Expr:
    """Return an agent's number: the file has it alone, or after ``Agent``."""
    text = pl.col(name).str.extract(r"^(?:[A-Za-z]+ )?(\d{1,18})$")
    return text.cast(pl.Int64, strict=False).alias(name)
