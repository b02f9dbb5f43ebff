"""Kineto traces with known answers, and a slow, plain reading of them to hold the import against.

The reading shares no code with the import: ``json`` makes objects of a whole file, and one loop
over its events makes the rows. What a column means is written in ``haiprof/schema.py``.
"""

from __future__ import annotations

import functools
import gzip
import json
import lzma
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from real_data import DATA, lacking, need
from uncollected import uncollected

from haiprof import schema

TRACES = DATA / "traces"
#: Tables that a trace fills.
NAMES = ("spans", "kernels", "device_spans", "allocations", "collectives", "flows", "samples")

Event = dict[str, Any]
Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Trace:
    """One trace file: its tables with the columns of the schema, and its other fields."""

    file: Path
    spans: pl.DataFrame
    kernels: pl.DataFrame
    device_spans: pl.DataFrame
    allocations: pl.DataFrame
    collectives: pl.DataFrame
    flows: pl.DataFrame
    samples: pl.DataFrame
    #: ``deviceProperties`` as they stand in the file.
    gpus: list[dict[str, Any]]
    rank: int | None
    #: All top-level members of the file but ``traceEvents``.
    header: dict[str, Any]

    def table(self, name: str) -> pl.DataFrame:
        frame: pl.DataFrame = getattr(self, name)
        return frame


def index() -> dict[str, dict[str, Any]]:
    """What is known of each run; empty where the data is not there."""
    try:
        found: dict[str, dict[str, Any]] = json.loads((TRACES / "index.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return found


def runs() -> list[Any]:
    """The names of all runs, to parametrize with; one that is skipped where there are none."""
    skip = pytest.mark.skip(reason=lacking(TRACES))
    return sorted(index()) or [pytest.param("none", marks=skip)]


def files(run: str) -> list[Path]:
    """The trace files of one run, by name; the test that asks is skipped without them."""
    found = sorted((TRACES / run).glob("*.pt.trace.json.gz"))
    if not found:
        pytest.skip(lacking(TRACES / run))
    return found


def text(file: Path) -> bytes:
    """The JSON text of a trace file."""
    raw = file.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def truth() -> dict[tuple[str, str], dict[str, Any]]:
    """What the raw events of each file say: (run, file) -> counts, see the data's README."""
    found = json.loads((TRACES / "truth_check.json").read_text("utf-8"))
    return {(row["run"], row["file"].removesuffix(".gz")): row for row in found}


@functools.lru_cache(maxsize=1)
def _expected() -> dict[str, bytes]:
    archive = need(TRACES / "expected.tar.xz")
    with lzma.open(archive) as whole, tarfile.open(fileobj=whole) as tar:
        return {
            member.name.removeprefix("./"): content.read()
            for member in tar
            if (content := tar.extractfile(member)) is not None
        }


def expected(run: str, tool: str) -> dict[str, Any]:
    """What ``tool`` (``tb_tip``, ``hta_061``) made of a run: path below it -> JSON."""
    return {path: json.loads(content) for path, content in _expected_of(run, tool).items()}


def expected_at(run: str, tool: str, path: str) -> Any:
    """One of the contents of :func:`expected`; None if there is no such path."""
    content = _expected_of(run, tool).get(path)
    return None if content is None else json.loads(content)


@functools.cache
def _expected_of(run: str, tool: str) -> dict[str, bytes]:
    beneath = f"{run}/{tool}/"
    return {
        name[name.index(beneath) + len(beneath) :].removesuffix(".json"): content
        for name, content in _expected().items()
        if beneath in name and name.endswith(".json")
    }


@functools.lru_cache(maxsize=64)
def load(file: Path) -> Trace:
    """Read one file slowly. Rows stand in the order of the file."""
    return read(text(file), file)


def events(raw: bytes) -> tuple[list[Event], dict[str, Any]]:
    """The events of a trace and its other members; fractions are Decimal."""
    known = re.sub(r":\s*N/A\b", ": null", raw.decode("utf-8", "replace"))
    document = json.loads(known, parse_float=Decimal, parse_constant=lambda _: None, strict=False)
    return document.pop("traceEvents"), document


def read(raw: bytes, file: Path) -> Trace:
    """Make the tables of the text of a trace."""
    with uncollected():
        found, header = events(raw)
        reading = _Reading(int(header.get("baseTimeNanoseconds") or 0))
        for event in found:
            reading.add(event)
        frames = {name: _frame(schema.TABLES[name], rows) for name, rows in reading.rows.items()}
    rank = (header.get("distributedInfo") or {}).get("rank")
    return Trace(
        file, **frames, gpus=header.get("deviceProperties") or [], rank=rank, header=header
    )


_OPS = {"cpu_op", "operator"}
_DEVICE = {
    "kernel": "kernel", "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy", "memcpy": "memcpy",
    "gpu_memset": "memset", "memset": "memset",
    "cuda_sync": "sync",
    "mtia_ccp_events": "kernel", "mtia_workloadd": "kernel",
}  # fmt: skip
_OTHERS = {
    "user_annotation": "user",
    "python_function": "python",
    "overhead": "overhead",
    "cuda_profiler_range": "counters",
}
_COPY = re.compile(r"(HtoD|DtoH|DtoD|PtoP|HtoH|HtoA|AtoH|AtoD|DtoA|AtoA)")
_COPY_HIP = {"HostToDevice": "HtoD", "DeviceToHost": "DtoH", "DeviceToDevice": "DtoD"}
_FLOWS = {"forward_backward": "fwdbwd", "async": "ac2g", "async_cpu_to_gpu": "ac2g",
          "async_gpu": "ac2g"}  # fmt: skip
_MEMORY = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 14: "meta", 15: "hpu",
           18: "ipu", 19: "mtia", 20: "privateuse1"}  # fmt: skip
_HOST_COLLECTIVE = re.compile(r"(nccl|gloo|mpi|ucc|xccl|hccl):(?P<op>.+)|c10d::(?P<c10d>.+)")
_SIZES = {
    "float": 4, "double": 8, "int": 4, "long": 8, "long int": 8, "short": 2, "half": 2,
    "bfloat16": 2, "byte": 1, "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1,
    "complexfloat": 8, "complexdouble": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


class _Reading:
    """The rows of one file."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._threads: dict[tuple[str, str], int] = {}
        self.rows: Rows = {name: [] for name in NAMES}

    def add(self, event: Event) -> None:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        phase, category = event.get("ph"), str(event.get("cat", "")).lower()
        if phase == "X":
            self._interval(event, category, args)
        elif phase == "i" and event.get("name") == "[memory]":
            kind = _whole(args.get("Device Type"))
            self.rows["allocations"].append(
                {
                    "time": self._time(event["ts"]),
                    "kind": _MEMORY.get(kind or 0, str(kind)),
                    "device": None if kind == 0 else _unsigned(args.get("Device Id")),
                    "address": _unsigned(args.get("Addr")) or 0,
                    "bytes": _whole(args.get("Bytes")),
                    "total_allocated": _whole(args.get("Total Allocated")),
                    "total_reserved": _whole(args.get("Total Reserved")),
                    "thread": self._thread(event),
                }
            )
        elif phase in ("s", "t", "f") and "id" in event:
            self.rows["flows"].append(
                {
                    "time": self._time(event["ts"]),
                    "kind": _FLOWS.get(category, category),
                    "side": "start" if phase == "s" else "end",
                    "id": _unsigned(event["id"]),
                    "thread": self._thread(event),
                }
            )
        elif phase == "C":
            self.rows["samples"] += [
                {
                    "time": self._time(event["ts"]),
                    "metric": event["name"],
                    "instance": name,
                    "value": float(value),
                    "flags": 0,
                }
                for name, value in args.items()
                if isinstance(value, int | Decimal)
            ]

    def _interval(self, event: Event, category: str, args: Event) -> None:
        name = event["name"]
        row = {
            "start": self._time(event["ts"]),
            "duration": _ns(event.get("dur") or 0),
            "name": name,
            "correlation": _unsigned(args.get("correlation")),
            "external": _unsigned(args.get("External id", args.get("external id"))),
        }
        if category in _DEVICE:
            self._activity({**row, "kind": _DEVICE[category]}, args)
        elif category == "gpu_user_annotation":
            row |= {"category": "user", "device": _unsigned(event["pid"])}
            self.rows["device_spans"].append({**row, "stream": _unsigned(event["tid"])})
        else:
            self._host(event, {**row, "category": _host_category(category)}, args)

    def _activity(self, row: Event, args: Event) -> None:
        grid, block = (args.get(what) or [None] * 3 for what in ("grid", "block"))
        row |= {
            "device": _unsigned(args.get("device")),
            "stream": _unsigned(args.get("stream")),
            "graph": _unsigned(args.get("graph id")) or None,
            "graph_node": _unsigned(args.get("graph node id")) or None,
            **{f"grid_{axis}": size for axis, size in zip("xyz", grid, strict=True)},
            **{f"block_{axis}": size for axis, size in zip("xyz", block, strict=True)},
            "registers": _unsigned(args.get("registers per thread")),
            "shared_memory": _unsigned(args.get("shared memory")),
            "bytes": _unsigned(args.get("bytes")),
            "copy_kind": _copy_kind(row["name"]) if row["kind"] == "memcpy" else None,
            "blocks_per_sm": _real(args.get("blocks per SM")),
            "occupancy": _real(args.get("est. achieved occupancy %")),
            "bandwidth": _real(args.get("memory bandwidth (GB/s)")),
        }
        self.rows["kernels"].append(row)
        if "Collective name" in args:
            collective = {"side": "device", "op": args["Collective name"], **_collective(args)}
            self.rows["collectives"].append({**row, **collective})

    def _host(self, event: Event, row: Event, args: Event) -> None:
        if row["category"] is None:
            return
        name = row["name"]
        step = _step_of(name)
        if step is not None and row["category"] in ("op", "user"):
            row |= {"category": "step", "step": step}
        row["thread"] = self._thread(event)
        row |= {
            "sequence": _whole(args.get("Sequence number")),
            "forward_thread": _unsigned(args.get("Fwd thread id")),
            "shapes": _json(args.get("Input Dims", args.get("Input dims"))),
            "types": _json(args.get("Input type")),
            "inputs": _json(args.get("Concrete Inputs")),
            "stack": args.get("Call stack"),
            "python_id": _unsigned(args.get("Python id")),
            "python_parent": _unsigned(args.get("Python parent id")),
            "module": _unsigned(args.get("Python module id")),
            "attributes": _json(args) if row["category"] == "counters" else None,
        }
        self.rows["spans"].append(row)
        named = _host_collective(name)
        if row["category"] in ("op", "user") and (
            "Collective name" in args or name == "record_param_comms" or named
        ):
            op = args.get("Collective name")
            if op is None and named:
                op = named["op"] or named["c10d"]
            collective = {
                "side": "host",
                "op": op or name,
                "correlation": None,
                **_collective(args),
            }
            self.rows["collectives"].append({**row, **collective})

    def _time(self, value: Any) -> int:
        return self._base + _ns(value)

    def _thread(self, event: Event) -> int:
        # Two processes in one file may have a thread of the same number.
        pair = str(event.get("pid")), str(event.get("tid"))
        # Numbers are written as texts, too.
        found = self._threads.get(pair)
        if found is None:
            taken = set(self._threads.values())
            found = (_whole(pair[1]) or 0) & 0xFFFFFFFF
            while found in taken:
                found = (found + 1) & 0xFFFFFFFF
            self._threads[pair] = found
        return found


# Events are many, and their names few.
@functools.cache
def _step_of(name: str) -> int | None:
    found = re.fullmatch(r"ProfilerStep#(\d+)", name)
    return int(found[1]) if found else None


@functools.cache
def _host_collective(name: str) -> re.Match[str] | None:
    return _HOST_COLLECTIVE.fullmatch(name)


@functools.cache
def _host_category(category: str) -> str | None:
    if category in _OPS:
        return "op"
    if category.endswith(("runtime", "_driver")):
        return "runtime"
    return _OTHERS.get(category)


def _copy_kind(name: str) -> str | None:
    found = _COPY.search(name)
    if found:
        return found[1]
    return next((kind for said, kind in _COPY_HIP.items() if said in name), None)


def _collective(args: Event) -> Event:
    elements = _whole(args.get("In msg nelems"))
    kind = args.get("dtype")
    if elements is not None and kind is not None:
        size = _SIZES.get(str(kind).lower())
        total = None if size is None else elements * size
    else:
        total = _bytes(args.get("Input Dims"), args.get("Input type"))
    return {
        "group": _json(args.get("Process Group Name")),
        "group_size": _unsigned(args.get("Group size")),
        "ranks": _json(args.get("Process Group Ranks")),
        "type": kind,
        "elements_in": elements,
        "elements_out": _whole(args.get("Out msg nelems")),
        "bytes": total,
    }


def _bytes(shapes: Any, types: Any) -> int | None:
    """Bytes of the first input that has elements, as ``nccl:*`` names its tensors one by one."""
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    total = None
    for shape, kind in zip(shapes, types, strict=False):
        size = _SIZES.get(str(kind).removeprefix("c10::").lower())
        if size is None or not all(isinstance(n, int) for n in shape):
            continue
        elements = 1
        for n in shape:
            elements *= n
        total = (total or 0) + elements * size
    return total


def _ns(microseconds: Any) -> int:
    return int((Decimal(str(microseconds)) * 1000).to_integral_value(ROUND_HALF_UP))


def _whole(value: Any) -> int | None:
    if value is None:  # most are, and an exception costs ten times as much
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _unsigned(value: Any) -> int | None:
    found = _whole(value)
    # CUPTI's way to say -1, too.
    return None if found is None or found < 0 or found == 0xFFFFFFFF else found


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | Decimal) else None


def _json(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, default=float, ensure_ascii=False, separators=(",", ":"))


_TYPES = {
    "int64": pl.Int64, "uint64": pl.UInt64, "uint32": pl.UInt32, "uint16": pl.UInt16,
    "float64": pl.Float64, "text": pl.String,
}  # fmt: skip
_PLAIN = {"attributes"}


def _frame(table: schema.Table, rows: list[dict[str, Any]]) -> pl.DataFrame:
    def columns() -> Iterator[pl.Series]:
        for column in table.columns:
            values = [row.get(column.name) for row in rows]
            series = pl.Series(column.name, values, _TYPES[column.kind], strict=False)
            if column.kind == "text" and column.name not in _PLAIN:
                series = series.cast(pl.Categorical())
            yield series

    return pl.DataFrame(list(columns()))


def small(rank: int | None = 0, begin: float = 1000) -> dict[str, Any]:
    """The document of a small trace: two steps, each with an op that launches a kernel."""
    found: list[Event] = [
        {"ph": "M", "name": "process_labels", "pid": 41, "tid": 0, "ts": 0,
         "args": {"labels": "CPU"}},
    ]  # fmt: skip
    for step in range(2):
        at, host = begin + 100 * step, {"ph": "X", "pid": 41, "tid": 42}
        ids = {"External id": 2 + step, "correlation": 7 + step}
        found += [
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at,
             "dur": 100},
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at + 10, "dur": 50,
             "args": {"External id": 2 + step, "Input Dims": [[4, 4], [4, 4]],
                      "Input type": ["float", "float"]}},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 20, "dur": 5,
             "args": ids},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 40,
             "dur": 30, "args": {**ids, "device": 0, "stream": 7}},
        ]  # fmt: skip
    distributed = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 4}}
    return {"schemaVersion": 1, **distributed, "traceEvents": found}


def write(file: Path, document: object) -> Path:
    """Write a document, with the folders above it; compressed if the name says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(document).encode()
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return file
