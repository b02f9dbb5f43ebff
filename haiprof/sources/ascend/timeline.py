"""The timeline of a process: ``trace_view.json`` of torch_npu, ``msprof_*.json`` of msprof.

A bare list of Chrome trace events with times as text. Each layer of software and hardware is a
process of its own, whose name says what its events are: most have no category. Host events are
written piece by piece, so that memory does not grow with their number; device events are kept until
all arrows that lead to them from the host are known.

Tests: tests/sources/ascend/test_text.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.sources.ascend import words
from haiprof.sources.ascend.launches import CALLS, DEQUEUED, OF_CANN, through_queue
from haiprof.sources.ascend.lists import as_json, dimensions
from haiprof.sources.imports.segments import Segments
from haiprof.sources.kineto import words as kineto
from haiprof.sources.kineto.columns import NO_NUMBER, within_reach
from haiprof.sources.kineto.problems import cut_lines, problem_lines
from haiprof.sources.kineto.stream import Pieces
from haiprof.sources.kineto.texts import NO_CODE

#: Bytes of JSON text per segment.
_SEGMENT: Final = 32 << 20
#: All events are wanted, whatever their category, and for these also the arguments.
_ROUTES: Final = {"": "spans", "enqueue": "spans", "dequeue": "spans", "*": "spans"}
_WITH_ARGUMENTS: Final = ("", "enqueue", "dequeue")
_TEXTS: Final = frozenset(
    ("category", "name", "process", "thread", "shapes", "types", "stack", "arguments", "instance")
)
#: Columns that the parser omits if no row has a value.
_SPANS: Final = {
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "category": pl.String(),
    "name": pl.String(),
    "process": pl.String(),
    "thread": pl.String(),
    "sequence": pl.Int64(),
    "forward_thread": pl.UInt32(),
    "shapes": pl.String(),
    "types": pl.String(),
    "stack": pl.String(),
    "python_id": pl.UInt32(),
    "python_parent": pl.UInt32(),
    "module": pl.UInt32(),
    "arguments": pl.String(),
}
_FLOWS: Final = {
    "time": pl.Int64(),
    "category": pl.String(),
    "name": pl.String(),
    "process": pl.String(),
    "thread": pl.String(),
    "side": pl.UInt32(),
    "id": pl.UInt64(),
}
_COUNTERS: Final = {
    "time": pl.Int64(),
    "name": pl.String(),
    "instance": pl.String(),
    "value": pl.Float64(),
}
#: Tasks on a device, and communication operators, of :attr:`Timeline.tasks`.
TASKS: Final = {
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "name": pl.String(),
    "unit": pl.String(),
    "stream": pl.UInt32(),
    "device": pl.UInt16(),
    "connection": pl.UInt64(),
    "communication": pl.Boolean(),
    "part": pl.Boolean(),
    "data_type": pl.String(),
    "algorithm": pl.String(),
    "elements": pl.Int64(),
    "bytes": pl.UInt64(),
    "copy_kind": pl.String(),
    "bandwidth": pl.Float64(),
    "process": pl.String(),
    "thread": pl.UInt32(),
}
#: msprof's arrow from the host to a device: has names of its own, and ids beyond 64 bits.
_TO_DEVICE: Final = "HostToDevice"
_KINDS: Final = {"async_npu": "ac2g"}
#: How the parser marks an id beyond 64 bits, as msprof's are.
_LARGE_ID: Final = "id is too large"


class Timeline:
    """Reads one timeline, or several of one process in sequence."""

    def __init__(self, segments: Segments) -> None:
        """Set where the host's rows go."""
        self._segments = segments
        self._names: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._unnamed: list[pl.DataFrame] = []
        self._tasks: list[pl.DataFrame] = []
        self._arrows: list[pl.DataFrame] = []
        self._ops: list[pl.DataFrame] = []
        self._dequeued: list[pl.DataFrame] = []
        self._calls: list[pl.DataFrame] = []
        self._count = 0
        self.unknown: Counter[str] = Counter()
        #: Process of the job, as the timeline numbers it; None if the timeline has no event of it.
        self.pid: int | None = None
        #: Whether there are steps, spans of operators, calls of CANN.
        self.has: set[str] = set()
        #: One line for each thing that could not be read.
        self.problems: list[str] = []

    def read(self, path: str, on_bytes: Callable[[int], None]) -> None:
        """Read a file to its end.

        Args:
            path: of the file.
            on_bytes: called with the number of bytes read since its last call.

        Raises:
            HaiprofError: it cannot be opened.
        """
        from haiprof import _core

        parser = _core.TraceParser(_ROUTES, _WITH_ARGUMENTS)
        texts: list[str] = []
        with Pieces(path) as pieces:
            known = waiting = 0
            for piece in pieces:
                parser.feed(piece)
                on_bytes(pieces.consumed - known)
                known = pieces.consumed
                waiting += len(piece)
                if waiting >= _SEGMENT:
                    self._take(parser.take(), texts, parser.strings(len(texts)))
                    waiting = 0
        parser.finish()
        self._take(parser.take(), texts, parser.strings(len(texts)))
        for each in self._unnamed:
            self._sort_out(each, at_end=True)
        self._unnamed.clear()
        found = {what: said for what, said in parser.problems.items() if what != _LARGE_ID}
        lines = (*cut_lines(parser.truncated, pieces.broken), *problem_lines(found))
        self.problems += [f"{path}: {line}" for line in lines]
        self.problems += [
            f"{path}: {count} events of {name!r}: left out, since haiprof does not know what they "
            "are"
            for name, count in self.unknown.items()
        ]
        self.unknown.clear()

    @property
    def ops(self) -> pl.DataFrame:
        """Operators by start: ``name``, ``thread``, ``start``, ``end``, ``external``."""
        none = {"name": pl.String(), "thread": pl.UInt32(), "start": pl.Int64(), "end": pl.Int64()}
        return pl.concat([pl.DataFrame(schema={**none, "external": pl.UInt64()}), *self._ops]).sort(
            "start", maintain_order=True
        )

    def tasks(self) -> pl.DataFrame:
        """Return what ran on devices, with ``correlation`` and ``external`` of its launch.

        A launch is the call by which the job's thread handed it to torch_npu's queue, if any, else
        the call of CANN; ``external`` is that of the operator that it was for.
        """
        device_tasks = pl.concat([pl.DataFrame(schema=TASKS), *self._tasks]).with_row_index("task")
        arrows = pl.concat([pl.DataFrame(schema=_FLOWS), *self._arrows]).with_columns(
            pl.col("thread").cast(pl.Int64, strict=False).cast(pl.UInt32, strict=False)
        )
        launched = self._launched(device_tasks, arrows)
        wanted = self._wanted(device_tasks, arrows)
        return (
            device_tasks.join(launched, "task", how="left")
            .join(wanted, "task", how="left")
            .with_columns(pl.coalesce("correlation", pl.col("connection") + OF_CANN))
            .drop("task", "process", "thread")
        )

    def _launched(self, tasks: pl.DataFrame, arrows: pl.DataFrame) -> pl.DataFrame:
        """``task`` and ``correlation`` of the tasks that came through torch_npu's queue."""
        own = arrows.filter(pl.col("category") == _TO_DEVICE)
        left = own.filter(pl.col("side") == 0).unique("name", keep="first")
        arrived = own.filter(pl.col("side") != 0).unique(("process", "thread", "time"))
        pairs = arrived.select("process", "thread", pl.col("time").alias("start"), "name").join(
            left.select("name", pl.col("thread").alias("by"), pl.col("time").alias("at")), "name"
        )
        by_arrow = tasks.join(pairs, ("process", "thread", "start")).select("task", "by", "at")
        # Events and waits have no arrow.
        calls = pl.concat([pl.DataFrame(schema=CALLS), *self._calls])
        rest = tasks.select("task", "connection").join(by_arrow, "task", how="anti")
        by_number = rest.join(calls.unique("connection", keep="first"), "connection")
        launched = pl.concat((by_arrow, by_number.select("task", "by", "at")))
        return through_queue(launched, pl.concat([pl.DataFrame(schema=DEQUEUED), *self._dequeued]))

    def _wanted(self, tasks: pl.DataFrame, arrows: pl.DataFrame) -> pl.DataFrame:
        """``task`` and ``external`` of the tasks that torch_npu links to an operator."""
        flows = arrows.filter(pl.col("category") == "async_npu")
        left = flows.filter(pl.col("side") == 0).select(
            "id", pl.col("thread").alias("by"), pl.col("time").alias("at")
        )
        ops = self.ops.select(
            pl.col("thread").alias("by"), pl.col("start").alias("at"), "external"
        ).unique(("by", "at"), keep="last")
        arrived = flows.filter(pl.col("side") != 0).select(
            "process", "thread", pl.col("time").alias("start"), "id"
        )
        return (
            tasks.select("task", "process", "thread", "start")
            .join(arrived, ("process", "thread", "start"))
            .join(left, "id")
            .join(ops, ("by", "at"))
            .select("task", "external")
            .unique("task", keep="first")
        )

    # -- one segment -----------------------------------------------------------------------------

    def _take(
        self,
        groups: Mapping[str, Mapping[str, npt.NDArray[Any]]],
        texts: list[str],
        more: Sequence[str],
    ) -> None:
        texts += more
        groups, beyond = within_reach(groups)
        if beyond:
            self.unknown["times out of range"] += beyond
        if (group := groups.get("metadata")) is not None:
            self._name(_frame(group, texts))
        if (group := groups.get("spans")) is not None:
            self._sort_out(_complete(_frame(group, texts), _SPANS))
        if (group := groups.get("flows")) is not None:
            self._take_flows(_complete(_frame(group, texts), _FLOWS))
        if (group := groups.get("counters")) is not None:
            self._take_counters(_complete(_frame(group, texts), _COUNTERS))

    def _name(self, metadata: pl.DataFrame) -> None:
        if not {"name", "process", "arguments"} <= set(metadata.columns):
            return
        for name, process, arguments in metadata.select("name", "process", "arguments").iter_rows():
            if name == "process_name":
                self._names[process] = _member(arguments, "name")
            elif name == "process_labels":
                self._labels[process] = _member(arguments, "labels")

    def _layer(self, process: str | None) -> str | None:
        """Classify a process of the timeline: host, device, communication, or nothing."""
        name = self._names.get(process or "")
        if name is None:
            return None
        if name.startswith("Ascend Hardware"):
            return "device"
        if name.startswith(("HCCL", "Communication")):
            return "communication"
        if name.startswith("Overlap Analysis"):
            return "summary"
        return "host" if not self._labels.get(process or "", "").startswith("NPU") else "other"

    def _sort_out(self, spans: pl.DataFrame, at_end: bool = False) -> None:
        """Assign each event to its table; those of a process not yet named follow later."""
        category = pl.col("category").str.to_lowercase()
        known = {**kineto.HOST, "enqueue": "runtime", "dequeue": "runtime"}
        bare = pl.col("category").is_null()
        for (process,), mine in spans.group_by("process", maintain_order=True):
            layer = self._layer(str(process) if process is not None else None)
            named = mine.filter(~bare)
            if named.height:
                means = category.replace_strict(known, default=None, return_dtype=pl.String())
                named = named.with_columns(means.alias("means"))
                strange = named.filter(pl.col("means").is_null())
                for what, count in strange["category"].value_counts().iter_rows():
                    self.unknown[f"cat {what}"] += count
                self._take_host(named.filter(pl.col("means").is_not_null()))
                self.pid = self.pid or _whole(process)
            rest = mine.filter(bare)
            if not rest.height:
                continue
            if layer is None and not at_end:
                self._unnamed.append(rest)
            elif layer == "host":
                self._take_host(rest.with_columns(pl.lit("runtime").alias("means")))
            elif layer in ("device", "communication"):
                self._take_tasks(rest, str(process), layer == "communication")
            elif layer != "summary":
                self.unknown[self._names.get(str(process), f"pid {process}")] += rest.height

    def _take_host(self, found: pl.DataFrame) -> None:
        if not found.height:
            return
        is_queue = pl.col("category").is_in(("enqueue", "dequeue")).fill_null(False)
        step = pl.col("name").str.extract(f"^{words.STEP.pattern}$").cast(pl.UInt32)
        is_step = (pl.col("means") == "op") & step.is_not_null()
        queued = _argument("correlation_id").cast(pl.UInt64)
        called = _argument("connection_id").cast(pl.UInt64) + OF_CANN
        rows = found.select(
            "start",
            pl.col("duration").fill_null(0),
            pl.when(is_step).then(pl.lit("step")).otherwise("means").alias("category"),
            pl.col("name").fill_null(""),
            _thread().alias("thread"),
            pl.when(is_step).then(step).alias("step"),
            # The dequeuing end of the queue only passes on what the enqueuing end launched.
            pl.when(pl.col("category") == "dequeue")
            .then(None)
            .when(is_queue)
            .then(queued)
            .otherwise(called)
            .alias("correlation"),
            pl.when(pl.col("sequence") >= 0).then("sequence").alias("sequence"),
            "forward_thread",
            as_json(found["shapes"], dimensions).alias("shapes"),
            as_json(found["types"], str).alias("types"),
            pl.col("stack").str.replace_all(r"\s*[\r\n]+\s*", ""),
            "python_id",
            "python_parent",
            "module",
        )
        is_op = (rows["category"] == "op") | (rows["category"] == "step")
        numbers = is_op.cast(pl.UInt64).cum_sum() + self._count
        self._count += int(is_op.sum())
        rows = rows.with_columns(pl.when(is_op).then(numbers).alias("external"))
        self._segments.write_frame("spans", rows)
        self.has |= set(rows["category"].unique())
        end = (pl.col("start") + pl.col("duration")).alias("end")
        self._ops.append(rows.filter(is_op).select("name", "thread", "start", end, "external"))
        self._calls.append(
            found.select(
                _argument("connection_id").cast(pl.UInt64).alias("connection"),
                _thread("by"),
                pl.col("start").alias("at"),
            ).drop_nulls("connection")
        )
        self._dequeued.append(
            found.filter((pl.col("category") == "dequeue") & queued.is_not_null()).select(
                _thread("by"),
                pl.col("start").alias("at"),
                (pl.col("start") + pl.col("duration").fill_null(0)).alias("until"),
                queued.alias("correlation"),
            )
        )

    def _take_tasks(self, found: pl.DataFrame, process: str, communication: bool) -> None:
        label = self._labels.get(process, "")
        device = _whole(label.removeprefix("NPU").strip())
        group = _argument("task id").is_not_null()
        of_task = pl.col("arguments").str.extract(r'"Task Type":"([^"]*)"')
        direction = pl.col("arguments").str.extract(r'"operation":"([^"]*)"')
        rows = found.select(
            "start",
            pl.col("duration").fill_null(0),
            pl.col("name").fill_null(""),
            of_task.alias("unit"),
            pl.lit(None, pl.UInt32()).alias("stream") if communication else _thread("stream"),
            pl.lit(device, pl.UInt16()).alias("device"),
            _argument("connection_id").cast(pl.UInt64).alias("connection"),
            pl.lit(communication).alias("communication"),
            (pl.lit(communication) & group).alias("part"),
            pl.col("arguments").str.extract(r'"data_type":"([^"]*)"').alias("data_type"),
            pl.col("arguments").str.extract(r'"alg_type":"([^"]*)"').alias("algorithm"),
            _argument("count").alias("elements"),
            _argument(r"size\(B(?:yte)?\)").cast(pl.UInt64).alias("bytes"),
            direction.replace_strict(
                words.DIRECTIONS, default=None, return_dtype=pl.String()
            ).alias("copy_kind"),
            pl.col("arguments")
            .str.extract(r'"bandwidth\(GB/s\)":"?([0-9.eE+-]+)')
            .cast(pl.Float64, strict=False)
            .alias("bandwidth"),
            "process",
            _thread().alias("thread"),
        )
        self._tasks.append(rows)

    def _take_flows(self, found: pl.DataFrame) -> None:
        found = found.filter(pl.col("category").is_not_null())
        is_own = pl.col("category") == _TO_DEVICE
        identity = pl.when(is_own).then(_number_at_end("name")).otherwise("id")
        rows = found.select(
            "time",
            pl.col("category").replace(_KINDS).alias("kind"),
            pl.when(pl.col("side") == 0)
            .then(pl.lit("start"))
            .otherwise(pl.lit("end"))
            .alias("side"),
            identity.alias("id"),
            _thread().alias("thread"),
        )
        self._segments.write_frame("flows", rows.filter(pl.col("id").is_not_null()))
        self._arrows.append(found.filter(is_own | (pl.col("category") == "async_npu")))

    def _take_counters(self, found: pl.DataFrame) -> None:
        rows = found.select(
            "time",
            pl.col("name").fill_null("").alias("metric"),
            "instance",
            "value",
            pl.lit(0, pl.UInt32()).alias("flags"),
        )
        self._segments.write_frame("samples", rows.filter(pl.col("value").is_not_null()))


def _frame(group: Mapping[str, npt.NDArray[Any]], texts: Sequence[str]) -> pl.DataFrame:
    """Return the parser's columns as a frame: missing columns are null, and codes become texts."""
    columns = []
    for name, values in group.items():
        if name in _TEXTS or (name == "id" and values.dtype == np.uint32):
            codes, index = np.unique(values, return_inverse=True)
            known = [None if code == NO_CODE else texts[code] for code in codes.tolist()]
            columns.append(pl.Series(name, known, pl.String()).gather(index.reshape(-1)))
        elif values.dtype == np.int64:
            missing = pl.Series(values == NO_NUMBER)
            ids = values.view(np.uint64) if name in ("id", "correlation", "external") else values
            columns.append(pl.Series(name, ids).set(missing, None))
        elif values.dtype == np.uint32:
            columns.append(pl.Series(name, values).set(pl.Series(values == NO_CODE), None))
        else:
            columns.append(pl.Series(name, values).fill_nan(None))
    return pl.DataFrame(columns)


def _complete(frame: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    return frame.select(
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, kind).alias(name)
        for name, kind in columns.items()
    )


def _thread(name: str = "thread") -> pl.Expr:
    number = pl.col("thread").cast(pl.Int64, strict=False).fill_null(0)
    return (number & NO_CODE).cast(pl.UInt32).alias(name)


def _number_at_end(name: str) -> pl.Expr:
    """Return the number of up to 36 digits that a text ends with, modulo 2**64."""
    digits = pl.col(name).str.extract(r"(\d{1,36})$")
    low = digits.str.tail(18).cast(pl.UInt64, strict=False)
    high = digits.str.head(-18).cast(pl.UInt64, strict=False).fill_null(0)
    return high * 10**18 + low


def _argument(name: str) -> pl.Expr:
    """Return an integer from ``args``, which is JSON without blanks; null if it is not one."""
    return (
        pl.col("arguments").str.extract(f'"{name}":"?([0-9]+)"?[,}}]').cast(pl.Int64, strict=False)
    )


def _member(arguments: str | None, name: str) -> str:
    try:
        value = json.loads(arguments or "")[name]
    except (ValueError, KeyError, TypeError):
        return ""
    return value if isinstance(value, str) else str(value)


def _whole(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 19 else None
