"""The databases of torch_npu and msprof.

A real text analysis is written as the documented tables, and must come out the same from there; two
real databases must have the totals of their own tables.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hta
import polars as pl
import pytest
from ascend_files import Events, ns, output, rows
from real_data import DATA, need

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import csv
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.views.trace.linking.linked import link

NAME = "ascend_pytorch_profiler_0.db"
INVALID = 4294967295
OPERATOR, QUEUE, PYTHON = 50001, 50002, 50003
DATA_TYPES = {4: "FP32", 3: "FP16"}
API_TYPES = {20000: "acl", 10000: "node", 5500: "communication"}


class Writer:
    """Writes a database as torch_npu does: names by numbers, and connections by others."""

    def __init__(self, file: Path) -> None:
        self.file = sqlite3.connect(file)
        self._strings: dict[str, int] = {}
        self._connections = itertools.count()
        self._largest = 0

    def table(self, name: str, columns: str, values: list[tuple[Any, ...]]) -> None:
        self.file.execute(f"CREATE TABLE {name} ({columns})")
        marks = ", ".join("?" * (columns.count(",") + 1))
        self.file.executemany(f"INSERT INTO {name} VALUES ({marks})", values)

    def string(self, text: str | None) -> int:
        return self._strings.setdefault(text, len(self._strings)) if text else INVALID

    def close(self) -> None:
        self.table("STRING_IDS", "id INTEGER, value TEXT",
                   [(number, text) for text, number in self._strings.items()])  # fmt: skip
        self.file.commit()
        self.file.close()

    def write(self, files: Path, *, framework: bool = True) -> None:
        """Write a real analysis of text: with the framework as torch_npu, without as msprof."""
        events = Events(files / "trace_view.json")
        pid = next(pid for pid, name in events.layers.items() if name == "Python")
        self._devices(events, files, pid)
        self._cann(events, pid)
        if framework:
            self._framework(events, pid)
            self._memory(files)
            self.table("RANK_DEVICE_MAP", "rankId INTEGER, deviceId INTEGER", [(-1, 0)])
        for name, words in (("ENUM_API_TYPE", API_TYPES), ("ENUM_HCCL_DATA_TYPE", DATA_TYPES)):
            self.table(name, "id INTEGER, name TEXT", list(words.items()))
        self.table("ENUM_MEMCPY_OPERATION", "id INTEGER, name TEXT", [(1, "host to device")])
        self.table("NPU_INFO", "id INTEGER, name TEXT", [(0, "Ascend910B"), (1, "Ascend910B")])
        self.table("HOST_INFO", "hostUid TEXT, hostName TEXT", [("42", "node-7")])
        self.close()

    def _devices(self, events: Events, files: Path, pid: int) -> None:
        details = {
            (ns(r["Start Time(us)"]), r["Name"]): r for r in rows(files / "kernel_details.csv")
        }
        tasks, computed, copied = [], [], []
        for number, event in enumerate(events.layer("Ascend Hardware")):
            start, args = ns(event["ts"]), event["args"]
            row = details.get((start, event["name"]))
            length = ns(row["Duration(us)"]) if row else ns(event["dur"])
            tasks.append((start, start + length, 0, args["connection_id"], number, pid,
                          self.string(args["Task Type"]), INVALID, event["tid"], args["Task Id"],
                          args["Model Id"]))  # fmt: skip
            if row is not None:
                words = [self.string(row[c]) for c in ("Name", "Accelerator Core", "Type")]
                computed.append((words[0], number, int(row["Block Dim"]), *words[1:]))
            elif event["name"] == "MEMCPY_ASYNC":
                copied.append((number, 4096 + number, 1))
        self.table("TASK", "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER,"
                   "globalTaskId INTEGER, globalPid INTEGER, taskType INTEGER, contextId INTEGER,"
                   "streamId INTEGER, taskId INTEGER, modelId INTEGER", tasks)  # fmt: skip
        self.table("COMPUTE_TASK_INFO", "name INTEGER, globalTaskId INTEGER, blockNum INTEGER,"
                   "taskType INTEGER, opType INTEGER", computed)  # fmt: skip
        self.table("MEMCPY_INFO", "globalTaskId INTEGER, size INTEGER, memcpyOperation INTEGER",
                   copied)  # fmt: skip
        group = self.string("17522688603477080586")
        self.table(
            "COMMUNICATION_OP",
            "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER,"
            "groupName INTEGER, opId INTEGER, dataType INTEGER, algType INTEGER, count NUMERIC,"
            "opType INTEGER, deviceId INTEGER",
            [
                (self.string(e["name"]), ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]),
                 e["args"]["connection_id"], group, number, 4, self.string(e["args"]["alg_type"]),
                 e["args"]["count"], self.string("hcom_allReduce_"), 0)
                for number, e in enumerate(events.layer("HCCL")) if "count" in e["args"]
            ],
        )  # fmt: skip

    def _cann(self, events: Events, pid: int) -> None:
        layers = {"AscendCL": 20000, "Node": 10000, "Hccl": 5500}
        calls = []
        for event in events.layer("CANN"):
            layer, _, name = event["name"].partition("@")
            start, thread = ns(event["ts"]), pid << 32 | event["tid"]
            self._largest = max(self._largest, event["args"]["connection_id"])
            calls.append((start, start + ns(event["dur"]), layers[layer], thread,
                          event["args"]["connection_id"], self.string(name)))  # fmt: skip
        self.table("CANN_API", "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER,"
                   "connectionId INTEGER, name INTEGER", calls)  # fmt: skip

    def _framework(self, events: Events, pid: int) -> None:
        connections: list[tuple[int, int]] = []
        chains: list[tuple[int, int, int]] = []

        def connected(*ids: int) -> int:
            number = next(self._connections)
            connections.extend((number, each) for each in ids)
            return number

        launched: dict[tuple[int, int], list[int]] = {}
        ran = (*events.layer("Ascend Hardware"), *events.layer("HCCL"))
        of_device = {(ns(e["ts"]), e["tid"]): e["args"].get("connection_id") for e in ran}
        left = {e["id"]: (ns(e["ts"]), e["tid"]) for e in events.of("async_npu", "s")}
        for arrow in events.of("async_npu", "f"):
            to = of_device[ns(arrow["ts"]), arrow["tid"]]
            launched.setdefault(left[arrow["id"]], []).append(to)
        rows = []
        for category, kind in (("enqueue", QUEUE), ("dequeue", QUEUE), ("cpu_op", OPERATOR),
                               ("python_function", PYTHON)):  # fmt: skip
            for event in events.of(category):
                start, args = ns(event["ts"]), event["args"]
                connection = chain = None
                if kind == QUEUE:
                    connection = connected(args["correlation_id"] + self._largest + 1)
                elif to_device := launched.get((start, event["tid"])) if kind == OPERATOR else None:
                    connection = connected(*to_device)
                if stack := args.get("Call stack"):
                    chain = len(chains)
                    for depth, frame in enumerate(stack.split(";\r\n")):
                        chains.append((chain, self.string(frame), depth))
                # Times are texts in this table.
                rows.append((str(start), str(start + ns(event["dur"])), pid << 32 | event["tid"],
                             connection, self.string(event["name"]), args.get("Sequence number"),
                             args.get("Fwd thread id"), self.string(args.get("Input type")),
                             self.string(args.get("Input Dims")), chain, kind))  # fmt: skip
        self.table("PYTORCH_API", "startNs TEXT, endNs TEXT, globalTid INTEGER,"
                   "connectionId INTEGER, name INTEGER, sequenceNumber INTEGER,"
                   "fwdThreadId INTEGER, inputDtypes INTEGER, inputShapes INTEGER,"
                   "callchainId INTEGER, type INTEGER", rows)  # fmt: skip
        self.table("CONNECTION_IDS", "id INTEGER, connectionId INTEGER", connections)
        self.table("PYTORCH_CALLCHAINS", "id INTEGER, stack INTEGER, stackDepth INTEGER", chains)

    def _memory(self, files: Path) -> None:
        def time(text: str) -> int | None:
            return ns(text) if text else None

        def size(text: str, unit: int) -> int | None:
            return round(float(text) * unit) if text else None

        values = [
            (self.string(row["Name"]), size(row["Size(KB)"], 1 << 10),
             time(row["Allocation Time(us)"]), time(row["Release Time(us)"]),
             *(size(row[f"{which} Total {what}(MB)"], 1 << 20)
               for which in ("Allocation", "Release") for what in ("Allocated", "Reserved")), 0)
            for row in rows(files / "operator_memory.csv")
        ]  # fmt: skip
        self.table("OP_MEMORY", "name INTEGER, size INTEGER, allocationTime INTEGER,"
                   "releaseTime INTEGER, allocationTotalAllocated INTEGER,"
                   "allocationTotalReserved INTEGER, releaseTotalAllocated INTEGER,"
                   "releaseTotalReserved INTEGER, deviceId INTEGER", values)  # fmt: skip


def only(path: Path) -> tuple[Analyzer, Process]:
    run = Analyzer(path)
    (of,) = run.run.processes
    return run, of


def table(of: Process, name: str) -> pl.DataFrame:
    return tables.read_table(of.folder, schema.TABLES[name]).frame


@pytest.fixture(scope="module")
def both(
    levels: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Analyzer, Process]]:
    """The same rank from its text and from its database."""
    folder = tmp_path_factory.mktemp("database")
    Writer(folder / NAME).write(output(levels / "level1"))
    return {
        "text": only(levels / "level1" / "rank0_ascend_pt"),
        "database": only(folder / NAME),
    }


def rows_of(of: Process, name: str, columns: str) -> pl.DataFrame:
    texts = {c.name: pl.String() for c in schema.TABLES[name].columns if c.kind == "text"}
    frame = table(of, name).select(columns.split())
    return frame.cast({n: kind for n, kind in texts.items() if n in frame.columns})


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("kernels", "name duration kind unit op_type device stream"),
        ("spans", "start duration category thread step sequence shapes types stack"),
        ("allocations", "time bytes total_allocated total_reserved device thread"),
        ("collectives", "side op group type elements_in elements_out bytes"),
    ],
)
def test_rows_are_those_of_the_text(
    both: dict[str, tuple[Analyzer, Process]], name: str, columns: str
) -> None:
    text, database = (rows_of(both[which][1], name, columns) for which in ("text", "database"))
    if name == "kernels":
        # A database names no other tasks; and of communication it does not print less than a ns.
        text, database = (
            each.filter(pl.col("kind") == "kernel").with_columns(pl.col("duration") // 10)
            for each in (text, database)
        )
    if name == "spans":  # and no list of inputs that is one scalar
        text = text.with_columns(pl.col("shapes").replace("[[]]", None))
    assert Counter(database.iter_rows()) == Counter(text.iter_rows())


def test_launches_are_those_of_the_text(both: dict[str, tuple[Analyzer, Process]]) -> None:
    found = {}
    for which, (_, of) in both.items():
        linked = link(table(of, "spans"), table(of, "kernels"))
        ops = linked.ops.select(pl.col("name").cast(pl.String), "start", "thread")
        launches = linked.activities.select("kind", "stream", "op", "runtime").cast(
            {"kind": pl.String()}
        )
        # Without their names, marks in a database look like other placeholders.
        launches = launches.with_columns(pl.col("kind").replace("overhead", "sync"))
        found[which] = Counter(
            (kind, stream, *(None if at is None else ops.row(at) for at in rows))
            for kind, stream, *rows in launches.iter_rows()
        )
    assert found["database"] == found["text"]


def test_copies_have_sizes_there(both: dict[str, tuple[Analyzer, Process]]) -> None:
    copies = table(both["database"][1], "kernels").filter(pl.col("kind") == "memcpy")
    assert copies["bytes"].null_count() == 0
    assert copies["copy_kind"].cast(pl.String).unique().to_list() == ["HtoD"]


def test_host_device_rank_and_what_it_lacks(both: dict[str, tuple[Analyzer, Process]]) -> None:
    run, of = both["database"]
    assert (of.rank, of.node, of.pid) == (0, "node-7", 3096504)
    assert [(gpu.device, gpu.name) for gpu in of.gpus] == [(0, "Ascend910B")]
    assert of.trace is not None
    assert "flows" in of.trace.lacks
    assert "allocations" not in of.trace.lacks
    assert run.problems() == []


def test_totals_are_msprof_s(levels: Path, both: dict[str, tuple[Analyzer, Process]]) -> None:
    run, _ = both["database"]
    for view in csv.VIEWS.values():
        view(run)
    (row,) = rows(output(levels / "level1") / "step_trace_time.csv")
    (step,) = run.step_trace().to_dicts()
    for ours, theirs in (("computing", "Computing"), ("communication", "Communication"),
                         ("overlapped", "Overlapped")):  # fmt: skip
        # As in the text: sums of intervals that are each rounded to a ns.
        assert step[ours] == pytest.approx(float(row[theirs]) * 1000, abs=200)


def test_a_database_in_the_folder_of_its_process(
    levels: Path, tmp_path: Path, job: Callable[[str], Path]
) -> None:
    place = job("level1")
    for file in output(place).iterdir():
        file.unlink()
    Writer(output(place) / NAME).write(output(levels / "level1"))
    run = Analyzer(place)
    assert sorted(of.rank or 0 for of in run.run.processes) == [0, 1]
    assert run.kernels(0).height == run.kernels(1).height


def test_msprof_s_own_has_no_framework(levels: Path, tmp_path: Path) -> None:
    file = tmp_path / "msprof_20240102030405.db"
    Writer(file).write(output(levels / "level1"), framework=False)
    run, of = only(file)
    assert table(of, "kernels").filter(pl.col("kind") == "kernel").height == 191
    assert of.trace is not None
    assert "PYTORCH_API" in of.trace.lacks["spans.stack"]
    assert "OP_MEMORY" in of.trace.lacks["allocations"]
    # Without a queue, calls of CANN launch.
    linked = link(table(of, "spans"), table(of, "kernels"))
    assert linked.activities.filter(pl.col("kind") == "kernel")["runtime"].null_count() == 0
    for view in csv.VIEWS.values():
        view(run)


def test_steps_of_their_own_table(levels: Path, tmp_path: Path) -> None:
    file = tmp_path / "msprof_20240102030405.db"
    writer = Writer(file)
    start = 1736408883686740710
    writer.table("STEP_TIME", "id INTEGER, startNs INTEGER, endNs INTEGER",
                 [(7, start, start + 155_985_800)])  # fmt: skip
    writer.write(output(levels / "level1"), framework=False)
    run, _ = only(file)
    assert run.step_trace()["step"].to_list() == [7]


def test_what_is_no_database_or_damaged_fails_in_one_line(both: Any, tmp_path: Path) -> None:
    lone = tmp_path / NAME
    lone.write_text("no database at all, but long enough to be one " * 20)
    with pytest.raises(HaiprofError, match=r"cannot be read \(file is not a database\)"):
        Analyzer(lone)
    lone.unlink()
    with sqlite3.connect(lone) as empty:
        empty.execute("CREATE TABLE OTHER (id INTEGER)")
    with pytest.raises(HaiprofError, match="no table STRING_IDS"):
        Analyzer(lone)
    whole = Path(both["database"][0].run.source)
    shutil.copy(whole, lone)
    with lone.open("r+b") as cut:
        cut.truncate(lone.stat().st_size // 3)
    with pytest.raises(HaiprofError, match="cannot be read"):
        Analyzer(lone)


def small(file: Path, *, named: bool) -> None:
    """Write a database of one device: a collective of parts, and a kernel for two kinds of cores.

    ``named`` says whether the collective names its device.
    """
    writer = Writer(file)
    core, mixed, part = (writer.string(text) for text in ("AI_CORE", "MIX_AIV", "SDMA"))
    whole, wait = INVALID, writer.string("Notify Wait")
    tasks = [
        # start, end, connection, number, type, context, stream, task
        (100, 900, 7, 1, core, whole, 4, 20),
        (110, 300, 7, 2, part, 0, 4, 20),
        (300, 880, 7, 3, wait, 1, 4, 20),
        (200, 400, 8, 4, core, whole, 2, 11),
        (210, 390, 8, 5, mixed, 0, 2, 11),
        # The number of the task again, of a kernel by itself.
        (950, 990, 9, 6, core, whole, 2, 11),
    ]
    writer.table(
        "TASK", "startNs INTEGER, endNs INTEGER, connectionId INTEGER, globalTaskId INTEGER,"
        "taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, deviceId INTEGER",
        [(*task, 3) for task in tasks],
    )  # fmt: skip
    writer.table(
        "COMPUTE_TASK_INFO", "name INTEGER, globalTaskId INTEGER, taskType INTEGER, opType INTEGER",
        [(writer.string(name), number, core, writer.string(name))
         for name, number in (("ReduceSum", 5), ("MatMul", 6))],
    )  # fmt: skip
    writer.table(
        "COMMUNICATION_OP", "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER"
        + (", deviceId INTEGER" if named else ""),
        [(writer.string("hcom_allReduce__1_0_1"), 110, 880, 7, *([3] if named else []))],
    )  # fmt: skip
    writer.close()


@pytest.mark.parametrize("named", [True, False])
def test_a_collective_is_on_its_device_and_graphs_of_tasks_count_once(
    named: bool, tmp_path: Path
) -> None:
    small(tmp_path / NAME, named=named)
    run = Analyzer(tmp_path / NAME)
    (row,) = run.overlap().to_dicts()
    assert (row["device"], row["communication"], row["computation"]) == (3, 770, 180 + 40)
    assert row["overlap"] == 180
    names = run.kernels(kind="kernel").sort("start")["name"].cast(pl.String).to_list()
    assert names == ["hcom_allReduce__1_0_1", "ReduceSum", "MatMul"]
    # The stream is that of its parts.
    assert run.kernels(kind="kernel").sort("start")["stream"].to_list() == [4, 2, 2]


def test_totals_of_a_real_database_are_its_own(tmp_path: Path) -> None:
    with tarfile.open(need(DATA / "other" / "formats.tar.xz")) as archive:
        members = [each for each in archive.getmembers() if "ascend_db/" in each.name]
        archive.extractall(tmp_path, members, filter="data")
    run = Analyzer(tmp_path / "formats" / "ascend_db")
    for row in run.overlap().iter_rows(named=True):
        (file,) = tmp_path.rglob(f"ascend_pytorch_profiler_{row['rank']}.db")
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            computed = database.execute(
                "SELECT startNs, endNs FROM TASK JOIN COMPUTE_TASK_INFO USING (globalTaskId)"
            ).fetchall()
            moved = database.execute("SELECT startNs, endNs FROM COMMUNICATION_OP").fetchall()
        computing, moving, both = hta.union(computed), hta.union(moved), hta.union(computed + moved)
        assert row["device"] == row["rank"]
        assert (row["computation"], row["communication"]) == (computing, moving)
        assert row["overlap"] == computing + moving - both
        if row["rank"] == 0:
            assert (computing, moving, row["overlap"]) == (8_903_431, 102_108_100, 4_036_153)
    used = run.overview().devices["utilization"].to_list()
    assert used == [pytest.approx(0.7043, abs=1e-4), pytest.approx(0.6979, abs=1e-4)]
    assert (run.queue_length()["length"] >= 0).all()
