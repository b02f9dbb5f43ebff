"""``*_results.json`` of rocprofv3: its records, with names by their numbers.

Only the fields that are used are parsed.

Tests: tests/sources/rocprof/test_one_process.py.
"""

from __future__ import annotations

import io
from typing import Any, Final

import polars as pl

from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources import peek
from haiprof.sources.imports.imported import Imported
from haiprof.sources.rocprof.trace import AGENTS, CALLS, COPIES, DISPATCHES, Trace

#: The member that all of it is in; each element is a process.
TOOL: Final = "rocprofiler-sdk-tool"
_GPU: Final = 2
#: So much of what polars says of a damaged file is shown.
_SAID: Final = 120
_NUMBER: Final = pl.Int64()
_HANDLE: Final = pl.Struct({"handle": _NUMBER})
_SIZES: Final = pl.Struct(dict.fromkeys("xyz", _NUMBER))
_RECORD: Final = {
    "kind": _NUMBER,
    "operation": _NUMBER,
    "thread_id": _NUMBER,
    "correlation_id": pl.Struct({"internal": _NUMBER}),
    "start_timestamp": _NUMBER,
    "end_timestamp": _NUMBER,
}
_CALLS: Final = {"hip_api": "hip", "hsa_api": "hsa", "rccl_api": "rccl", "marker_api": "marker"}
_SCHEMA: Final = {
    TOOL: pl.List(
        pl.Struct(
            {
                "metadata": pl.Struct(
                    {"pid": _NUMBER, "node": pl.Struct({"hostname": pl.String()})}
                ),
                "agents": pl.List(
                    pl.Struct(
                        {
                            "id": _HANDLE,
                            "type": _NUMBER,
                            "node_id": _NUMBER,
                            "name": pl.String(),
                            "product_name": pl.String(),
                            "cu_count": _NUMBER,
                        }
                    )
                ),
                "strings": pl.Struct(
                    {
                        "buffer_records": pl.List(pl.Struct({"operations": pl.List(pl.String())})),
                        "marker_api": pl.List(pl.Struct({"key": _NUMBER, "value": pl.String()})),
                    }
                ),
                "kernel_symbols": pl.List(
                    pl.Struct(
                        {
                            "kernel_id": _NUMBER,
                            "kernel_name": pl.String(),
                            "formatted_kernel_name": pl.String(),
                            "arch_vgpr_count": _NUMBER,
                            "accum_vgpr_count": _NUMBER,
                        }
                    )
                ),
                "buffer_records": pl.Struct(
                    {
                        **{name: pl.List(pl.Struct(_RECORD)) for name in _CALLS},
                        "kernel_dispatch": pl.List(
                            pl.Struct(
                                {
                                    **_RECORD,
                                    "stream_id": _HANDLE,
                                    "dispatch_info": pl.Struct(
                                        {
                                            "agent_id": _HANDLE,
                                            "queue_id": _HANDLE,
                                            "kernel_id": _NUMBER,
                                            "group_segment_size": _NUMBER,
                                            "workgroup_size": _SIZES,
                                            "grid_size": _SIZES,
                                        }
                                    ),
                                }
                            )
                        ),
                        "memory_copy": pl.List(
                            pl.Struct(
                                {
                                    **_RECORD,
                                    "stream_id": _HANDLE,
                                    "src_agent_id": _HANDLE,
                                    "dst_agent_id": _HANDLE,
                                    "bytes": _NUMBER,
                                }
                            )
                        ),
                    }
                ),
            }
        )
    )
}


def read(imported: Imported) -> Trace:
    """Read the records of a file, its process and its host.

    Raises:
        HaiprofError: it is damaged, too large, or not what rocprofv3 writes.
        OSError: it cannot be read.
    """
    path = imported.source.path
    content = peek.text(path)
    try:
        processes = pl.read_json(io.BytesIO(content.encode()), schema=_SCHEMA)[TOOL].explode()
    except pl.exceptions.PolarsError as error:
        said = printable((str(error).splitlines() or ["?"])[0])[:_SAID]
        raise HaiprofError(
            f"{path}: is cut off, or not what rocprofv3 writes ({said}): "
            "copy it again, or record again with --output-format json"
        ) from None
    process: dict[str, pl.Series] = {}
    if len(processes) and processes[0] is not None:
        process = {one.name: one for one in processes.head(1).struct.unnest()}
    if not process:
        raise HaiprofError(f"{path}: {TOOL} has no process: record again")
    if len(processes) > 1:
        imported.problems.append(
            f"{path}: {TOOL} has {len(processes)} processes, of which the first is read: "
            "record with one file for each, as is the default"
        )
    metadata = process["metadata"].struct.unnest()
    imported.pid = metadata["pid"][0]
    imported.host = metadata["node"].struct.field("hostname")[0] or None
    strings = process["strings"].struct.unnest()
    operations = _operations(strings["buffer_records"])
    records = process["buffer_records"].struct.unnest()
    agents = _agents(_rows(process["agents"]))
    symbols = _rows(process["kernel_symbols"])
    messages = _rows(strings["marker_api"])
    return Trace(
        _dispatches(_rows(records["kernel_dispatch"]), symbols),
        pl.concat(
            [
                _calls(_rows(records[name]), kind, operations, messages)
                for name, kind in _CALLS.items()
            ]
        ),
        _copies(_rows(records["memory_copy"]), operations),
        agents,
    )


def _rows(lists: pl.Series) -> pl.DataFrame:
    rows: pl.DataFrame = lists.explode().drop_nulls().struct.unnest()
    return rows


def _operations(lists: pl.Series) -> pl.DataFrame:
    """Return ``kind``, ``operation`` and ``called``: the name of each operation."""
    return (
        _rows(lists)
        .with_row_index("kind")
        .with_columns(pl.int_ranges(pl.col("operations").list.len()).alias("operation"))
        .explode("operations", "operation")
        .select(pl.col("kind").cast(pl.Int64), "operation", pl.col("operations").alias("called"))
        .drop_nulls()
    )


def _agents(rows: pl.DataFrame) -> pl.DataFrame:
    gpus = rows.filter(pl.col("type") == _GPU).sort("node_id", maintain_order=True)
    return _of_schema(
        gpus.with_columns(
            _handle("id").alias("agent"),
            pl.int_range(pl.len(), dtype=pl.Int64).alias("ordinal"),
            pl.coalesce("product_name", "name").alias("name"),
            pl.col("cu_count").alias("units"),
        ),
        AGENTS,
    )


def _dispatches(rows: pl.DataFrame, symbols: pl.DataFrame) -> pl.DataFrame:
    info = pl.col("dispatch_info").struct
    names = symbols.unique("kernel_id", keep="last").select(
        "kernel_id",
        pl.coalesce(
            pl.col("formatted_kernel_name").replace("", None),
            pl.col("kernel_name").str.strip_suffix(".kd"),
        ).alias("name"),
        # Both kinds come from one file of registers.
        (pl.col("arch_vgpr_count") + pl.col("accum_vgpr_count").fill_null(0)).alias("registers"),
    )
    found = rows.with_columns(
        *_times(),
        info.field("kernel_id").alias("kernel_id"),
        info.field("agent_id").struct.field("handle").alias("agent"),
        info.field("queue_id").struct.field("handle").alias("queue"),
        _handle("stream_id").alias("stream"),
        info.field("group_segment_size").alias("shared_memory"),
        *(
            info.field(size).struct.field(axis).alias(f"{ours}_{axis}")
            for size, ours in (("grid_size", "grid"), ("workgroup_size", "group"))
            for axis in "xyz"
        ),
    ).join(names, "kernel_id", how="left", maintain_order="left")
    return _of_schema(found, DISPATCHES)


def _calls(
    rows: pl.DataFrame, kind: str, operations: pl.DataFrame, messages: pl.DataFrame
) -> pl.DataFrame:
    found = rows.with_columns(*_times(), pl.col("thread_id").alias("thread")).join(
        operations, ["kind", "operation"], how="left", maintain_order="left"
    )
    name = pl.col("called")
    if kind == "marker":
        said = messages.unique("key", keep="last").rename({"key": "correlation"})
        found = found.join(said, "correlation", how="left", maintain_order="left")
        name = pl.coalesce("value", "called")
    return _of_schema(found.with_columns(name.alias("name"), pl.lit(kind).alias("kind")), CALLS)


def _copies(rows: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    found = rows.with_columns(
        *_times(),
        _handle("src_agent_id").alias("source"),
        _handle("dst_agent_id").alias("target"),
        _handle("stream_id").alias("stream"),
    ).join(operations, ["kind", "operation"], how="left", maintain_order="left")
    return _of_schema(found.rename({"called": "direction"}), COPIES)


def _times() -> tuple[pl.Expr, ...]:
    return (
        pl.col("start_timestamp").alias("start"),
        pl.col("end_timestamp").alias("end"),
        pl.col("correlation_id").struct.field("internal").alias("correlation"),
    )


def _handle(name: str) -> pl.Expr:
    return pl.col(name).struct.field("handle")


def _of_schema(frame: pl.DataFrame, schema: dict[str, Any]) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())
