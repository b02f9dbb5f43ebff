"""The databases of torch_npu and msprof for one process, as rows of haiprof's tables.

``ascend_pytorch_profiler_<rank>.db`` has the framework, CANN and the devices; ``msprof_*.db`` has
only CANN and the devices.

Tests: tests/sources/ascend/test_database.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from haiprof.sources.ascend import communication, kernels, memory, words
from haiprof.sources.ascend.database import Database, spelt
from haiprof.sources.ascend.launches import OF_CANN, through_queue
from haiprof.sources.ascend.lists import as_json, dimensions
from haiprof.sources.ascend.timeline import TASKS

_LOW: Final = 0xFFFFFFFF
#: ``type`` of ``PYTORCH_API``.
_OPERATOR, _QUEUE, _PYTHON, _MARK = 50001, 50002, 50003, 50004
#: What is missing if a table is not there.
_GIVEN_BY: Final = {
    "PYTORCH_API": "spans.stack",
    "CANN_API": "kernels.correlation",
    "COMPUTE_TASK_INFO": "kernels.op_type",
    "MEMCPY_INFO": "kernels.bytes",
    "OP_MEMORY": "allocations",
    "COMMUNICATION_OP": "collectives",
}
_LENGTH: Final = (pl.col("endNs") - pl.col("startNs")).alias("duration")


def tables(database: Database) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield names of haiprof's tables, each with rows of it.

    Raises:
        HaiprofError: the file is damaged.
    """
    host, called = _host(database), _called(database)
    yield "spans", host
    yield "spans", called.rename({"connection": "correlation"})
    if "step" not in host["category"]:
        yield "spans", _steps(database)
    end = (pl.col("start") + pl.col("duration")).alias("end")
    is_op = pl.col("category").is_in(("op", "step"))
    ops = host.filter(is_op).select("name", "thread", "start", end, "external").sort("start")
    ran = kernels.kernels(kernels.NONE, _tasks(database, host, called), None)
    yield "kernels", ran
    yield "collectives", communication.of_device(ran, _groups(database))
    yield "collectives", communication.of_host(ops)
    yield "allocations", memory.allocations(_blocks(database), ops)
    yield "samples", _records(database)


def lacks(database: Database) -> dict[str, str]:
    """Say what the database lacks, as in :class:`Imported`."""
    missing = {
        what: f"the database has no table {table}: record with a higher level, or that option"
        for table, what in _GIVEN_BY.items()
        if table not in database
    }
    missing["flows"] = "a database has numbers of connections, and no arrows"
    missing["spans.python_id"] = "a database does not say which function called which"
    return missing


def devices(database: Database) -> list[tuple[int, str]]:
    """Return the ordinals of the devices that ran something, with their names."""
    names = database.words("NPU_INFO")
    used = database.read("TASK", "deviceId")["deviceId"].drop_nulls().unique().sort()
    return [(number, names.get(number, "")) for number in used.to_list() if number >= 0]


def process(database: Database) -> tuple[int | None, int | None]:
    """Return the process of the job, and its rank."""
    thread = database.word("PYTORCH_API", "globalTid") or database.word("CANN_API", "globalTid")
    rank = database.word("RANK_DEVICE_MAP", "rankId")
    return (
        int(thread) >> 32 if thread and thread.isdecimal() else None,
        int(rank) if rank and rank.isdecimal() else None,
    )


def _host(database: Database) -> pl.DataFrame:
    """Spans of the framework; an operator's ``external`` is its row in the table."""
    found = database.read(
        "PYTORCH_API", "startNs", "endNs", "globalTid", "connectionId", "name", "sequenceNumber",
        "fwdThreadId", "inputDtypes", "inputShapes", "callchainId", "type",
    )  # fmt: skip
    named = database.named(found, "name", "inputDtypes", "inputShapes").with_row_index("place", 1)
    kind = pl.col("type")
    is_op = kind == _OPERATOR
    step = pl.col("name").str.extract(f"^{words.STEP.pattern}$").cast(pl.UInt32)
    categories = {_QUEUE: "runtime", _PYTHON: "python", _MARK: "user"}
    category = kind.replace_strict(categories, default="op", return_dtype=pl.String())
    enqueued = (kind == _QUEUE) & pl.col("name").str.starts_with("Enqueue")
    # Each row has its own number, which its connections use.
    ends = _connections(database).unique("id", keep="first")
    return (
        named.join(ends, left_on="connectionId", right_on="id", how="left", maintain_order="left")
        .join(_stacks(database), "callchainId", how="left", maintain_order="left")
        .select(
            pl.col("startNs").alias("start"),
            _LENGTH,
            pl.when(is_op & step.is_not_null())
            .then(pl.lit("step"))
            .otherwise(category)
            .alias("category"),
            pl.col("name").fill_null(""),
            _thread(),
            pl.when(is_op).then(step).alias("step"),
            pl.when(enqueued).then("connection").alias("correlation"),
            pl.when(is_op).then("place").cast(pl.UInt64).alias("external"),
            pl.when(pl.col("sequenceNumber") >= 0).then("sequenceNumber").alias("sequence"),
            (pl.col("fwdThreadId") & _LOW).cast(pl.UInt32).alias("forward_thread"),
            as_json(named["inputShapes"], dimensions).alias("shapes"),
            as_json(named["inputDtypes"], str).alias("types"),
            "stack",
            "connectionId",
            "connection",
            "type",
        )
        .drop_nulls(["start", "duration"])
    )


def _stacks(database: Database) -> pl.DataFrame:
    """Call chains as one text each, innermost first."""
    found = database.read("PYTORCH_CALLCHAINS", "id", "stack", "stackDepth")
    return (
        database.named(found, "stack")
        .drop_nulls("stack")
        .sort("id", "stackDepth")
        .group_by(pl.col("id").alias("callchainId"), maintain_order=True)
        .agg(pl.col("stack").str.strip_chars("; \r\n").str.join(";"))
    )


def _called(database: Database) -> pl.DataFrame:
    """Calls of CANN, named as in a timeline: ``AscendCL@aclrtMemcpy``, ``Node@launch``."""
    found = database.read(
        "CANN_API", "startNs", "endNs", "globalTid", "connectionId", "name", "type"
    )
    layers = {
        number: "AscendCL" if name == "acl" else name.capitalize()
        for number, name in database.words("ENUM_API_TYPE").items()
    }
    name = pl.concat_str(
        "type", pl.col("name").fill_null(""), separator="@", ignore_nulls=True
    ).alias("name")
    return (
        database.named(found, "name")
        .with_columns(spelt("type", layers))
        .select(
            pl.col("startNs").alias("start"),
            _LENGTH,
            pl.lit("runtime").alias("category"),
            name,
            _thread(),
            (_known("connectionId") + OF_CANN).alias("connection"),
        )
        .drop_nulls(["start", "duration"])
    )


def _steps(database: Database) -> pl.DataFrame:
    return (
        database.read("STEP_TIME", "id", "startNs", "endNs")
        .drop_nulls()
        .select(
            pl.col("startNs").alias("start"),
            _LENGTH,
            pl.lit("step").alias("category"),
            pl.format("ProfilerStep#{}", "id").alias("name"),
            pl.lit(0, pl.UInt32()).alias("thread"),
            pl.col("id").alias("step"),
        )
    )


def _tasks(database: Database, host: pl.DataFrame, called: pl.DataFrame) -> pl.DataFrame:
    """What ``Timeline.tasks()`` returns, and what a table of kernels adds to it."""
    tasks = _recorded_tasks(database)
    computed = database.read(
        "COMPUTE_TASK_INFO", "globalTaskId", "name", "taskType", "opType", "blockNum", "blockDim"
    ).rename({"taskType": "ran_on"})
    copied = database.read("MEMCPY_INFO", "globalTaskId", "size", "memcpyOperation")
    found = tasks.join(computed.unique("globalTaskId"), "globalTaskId", how="left").join(
        copied.unique("globalTaskId"), "globalTaskId", how="left"
    )
    operations = {
        number: words.DIRECTIONS.get(name, "")
        for number, name in database.words("ENUM_MEMCPY_OPERATION").items()
    }
    single = (
        database.named(found, "taskType", "name", "ran_on", "opType")
        .with_columns(spelt("memcpyOperation", operations))
        .select(
            pl.col("startNs").alias("start"),
            _LENGTH,
            pl.coalesce("name", "taskType", pl.lit("")).alias("name"),
            pl.coalesce("ran_on", "taskType").alias("unit"),
            pl.col("opType").alias("op_type"),
            pl.coalesce("blockNum", "blockDim").cast(pl.UInt32, strict=False).alias("grid_x"),
            pl.col("streamId").cast(pl.UInt32, strict=False).alias("stream"),
            _device(),
            _known("connectionId").alias("connection"),
            pl.lit(False).alias("communication"),
            pl.col("size").cast(pl.UInt64, strict=False).alias("bytes"),
            pl.col("memcpyOperation").replace("", None).alias("copy_kind"),
        )
    )
    parts = (single, _communications(database, tasks), pl.DataFrame(schema=TASKS))
    of_kinds = (
        pl.concat(parts, how="diagonal")
        .with_columns(pl.lit(False).alias("part"))
        .drop_nulls(["start", "duration"])
        .with_row_index("task")
    )
    return (
        of_kinds.join(_launched(of_kinds, host, called), "task", how="left")
        .join(_wanted(database, of_kinds, host), "task", how="left")
        .with_columns(pl.coalesce("correlation", pl.col("connection") + OF_CANN))
        .drop("task", "process", "thread")
    )


def _recorded_tasks(database: Database) -> pl.DataFrame:
    """Tasks of the devices, without those that only start the parts of a graph of tasks.

    Such a graph (a kernel for several kinds of cores, a collective) is one task of its stream, and
    its parts are tasks of the same number with a context: both together would count twice.
    """
    tasks = database.read(
        "TASK", "startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType",
        "streamId", "taskId", "contextId",
    )  # fmt: skip
    part = pl.col("contextId").is_not_null() & (pl.col("contextId") != _LOW)
    of_graph = ["deviceId", "streamId", "taskId"]
    whole = tasks.filter(~part).drop_nulls(["startNs", "endNs", "globalTaskId"]).sort("startNs")
    parts = tasks.filter(part).drop_nulls("startNs").sort("startNs")
    # Numbers of tasks repeat: the graph is the last one that began before its part.
    graphs = (
        parts.select("startNs", *of_graph)
        .join_asof(
            whole.select("startNs", *of_graph, pl.col("endNs").alias("until"), "globalTaskId"),
            on="startNs",
            by=of_graph,
            check_sortedness=False,
        )
        .filter(pl.col("startNs") < pl.col("until"))
        .select("globalTaskId")
        .unique()
    )
    return tasks.join(graphs, "globalTaskId", how="anti")


def _communications(database: Database, tasks: pl.DataFrame) -> pl.DataFrame:
    """Communications, on the device that ran their tasks: most versions do not name it."""
    found = database.read(
        "COMMUNICATION_OP", "startNs", "endNs", "connectionId", "opName", "opType", "dataType",
        "algType", "count", "deviceId",
    )  # fmt: skip
    ran_on = tasks.select("connectionId", pl.col("deviceId").alias("ran_on")).drop_nulls()
    devices = tasks["deviceId"].drop_nulls().unique()
    only = devices[0] if len(devices) == 1 else None
    found = found.join(
        ran_on.unique("connectionId", keep="first"), "connectionId", how="left"
    ).with_columns(pl.coalesce("deviceId", "ran_on", pl.lit(only, pl.Int64())).alias("deviceId"))
    return (
        database.named(found, "opName", "opType", "algType")
        .with_columns(spelt("dataType", database.words("ENUM_HCCL_DATA_TYPE")))
        .select(
            pl.col("startNs").alias("start"),
            _LENGTH,
            pl.col("opName").fill_null("").alias("name"),
            pl.lit("HCCL").alias("unit"),
            pl.col("opType").alias("op_type"),
            _device(),
            _known("connectionId").alias("connection"),
            pl.lit(True).alias("communication"),
            pl.col("dataType").alias("data_type"),
            pl.col("algType").alias("algorithm"),
            pl.col("count").alias("elements"),
        )
    )


def _launched(tasks: pl.DataFrame, host: pl.DataFrame, called: pl.DataFrame) -> pl.DataFrame:
    calls = (
        called.drop_nulls("connection")
        .unique("connection", keep="first")
        .select(
            pl.col("connection") - OF_CANN,
            pl.col("thread").alias("by"),
            pl.col("start").alias("at"),
        )
    )
    taken = (pl.col("type") == _QUEUE) & pl.col("name").str.starts_with("Dequeue")
    dequeued = host.filter(taken & pl.col("connection").is_not_null()).select(
        pl.col("thread").alias("by"),
        pl.col("start").alias("at"),
        (pl.col("start") + pl.col("duration")).alias("until"),
        pl.col("connection").alias("correlation"),
    )
    return through_queue(tasks.join(calls, "connection").select("task", "by", "at"), dequeued)


def _wanted(database: Database, tasks: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """``task`` and ``external`` of the tasks that an operator's connections lead to."""
    ops = host.filter(pl.col("type") == _OPERATOR)
    wanted = (
        ops.select(pl.col("connectionId").alias("id"), "external")
        .join(_connections(database), "id")
        .unique("connection", keep="last")
    )
    return tasks.join(wanted, "connection").select("task", "external")


def _connections(database: Database) -> pl.DataFrame:
    """``id`` and ``connection``: what the numbers in ``PYTORCH_API`` stand for, one or several."""
    found = database.read("CONNECTION_IDS", "id", "connectionId").drop_nulls()
    return found.select("id", _known("connectionId").alias("connection"))


def _groups(database: Database) -> pl.DataFrame:
    """Groups of communications: columns of :data:`communication.MEASURED`."""
    found = database.read("COMMUNICATION_OP", "startNs", "opName", "groupName")
    return (
        database.named(found, "opName", "groupName")
        .select(
            pl.col("opName").alias("name"),
            pl.col("startNs").alias("start"),
            pl.col("groupName").alias("group"),
            pl.lit(None, pl.String()).alias("times"),
        )
        .drop_nulls("start")
        .sort("start")
    )


def _blocks(database: Database) -> pl.DataFrame:
    found = database.read(
        "OP_MEMORY", "name", "size", "allocationTime", "releaseTime", "allocationTotalAllocated",
        "allocationTotalReserved", "releaseTotalAllocated", "releaseTotalReserved", "deviceId",
    )  # fmt: skip
    return database.named(found, "name").select(
        "name",
        "size",
        pl.col("allocationTime").alias("allocated"),
        pl.col("releaseTime").alias("released"),
        pl.col("allocationTotalAllocated").alias("after"),
        pl.col("allocationTotalReserved").alias("held"),
        pl.col("releaseTotalAllocated").alias("left"),
        pl.col("releaseTotalReserved").alias("kept"),
        _device(),
    )


def _records(database: Database) -> pl.DataFrame:
    found = database.read(
        "MEMORY_RECORD", "component", "timestamp", "totalAllocated", "totalReserved",
        "totalActive", "deviceId",
    )  # fmt: skip
    where = pl.format("NPU:{}", "deviceId")
    records = database.named(found, "component").select(
        pl.col("timestamp").alias("time"),
        pl.concat_str(where, "component", separator=" ", ignore_nulls=True).alias("instance"),
        pl.col("totalAllocated").alias("memory.allocated.bytes"),
        pl.col("totalReserved").alias("memory.reserved.bytes"),
        pl.col("totalActive").alias("memory.active.bytes"),
    )
    return memory.unpivoted(records.drop_nulls("time"))


def _thread() -> pl.Expr:
    return (pl.col("globalTid").fill_null(0) & _LOW).cast(pl.UInt32).alias("thread")


def _device() -> pl.Expr:
    return pl.col("deviceId").cast(pl.UInt16, strict=False).alias("device")


def _known(name: str) -> pl.Expr:
    number = pl.col(name)
    return pl.when((number >= 0) & (number != _LOW)).then(number).cast(pl.UInt64)
