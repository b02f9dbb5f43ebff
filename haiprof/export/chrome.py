"""A process as Chrome's JSON, in the form that Kineto gives it, one file for each process.

So Perfetto, chrome://tracing, the TensorBoard plugin and haiprof itself read it. Times are µs with
three decimals after ``baseTimeNanoseconds``, so that no reader's 64-bit fractions lose a ns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import polars as pl

from haiprof import schema
from haiprof.common.places import safe_name
from haiprof.errors import HaiprofError
from haiprof.export import critical_path, target
from haiprof.export.chosen import Chosen, done, traced
from haiprof.export.json_members import (
    as_json,
    attributes,
    member,
    microseconds,
    number,
    parsed,
    quoted,
    quoted_words,
    real,
    renamed,
    word,
)
from haiprof.runs import Gpu

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

_AT_ONCE: Final = 1 << 16
_DAY: Final = 86_400_000_000_000
#: ``spans.category`` -> Kineto's; ranges of the user are all others.
_HOST: Final = {
    "op": "cpu_op",
    "runtime": "cuda_runtime",
    "python": "python_function",
    "overhead": "overhead",
    "counters": "cuda_profiler_range",
}
_RANGE: Final = "user_annotation"
#: ``kernels.kind`` -> Kineto's.
_DEVICE: Final = {
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "sync": "cuda_sync",
    "overhead": "overhead",
}
#: ``allocations.kind`` -> torch's number of that kind of device.
_MEMORY: Final = {
    "cpu": 0, "cuda": 1, "hip": 6, "xla": 9, "xpu": 12, "mps": 13, "meta": 14, "hpu": 15,
    "ipu": 18, "mtia": 19, "privateuse1": 20,
}  # fmt: skip
#: Rows of a device's lanes that are not streams.
_STAGES: Final = 100_000
_STEP: Final = r"ProfilerStep#\d{1,9}"
#: Stands for the host where the process's own number is not known, or is a device's.
_HOST_PID: Final = 1 << 30
_FURTHER: Final = {
    "description": "Process Group Description",
    "group_id": "Process Group ID",
    "rank": "Rank",
    "splits_in": "In split size",
    "splits_out": "Out split size",
    "first_rank": "Global rank start",
    "rank_stride": "Global rank stride",
    "source_rank": "Src Rank",
    "target_rank": "Dst Rank",
}


def write(
    analyzer: Analyzer,
    place: Path,
    rank: int | None = None,
    on_process: Callable[[str], None] | None = None,
    ending: str = ".json.gz",
    paths: Mapping[str, pl.DataFrame] | None = None,
) -> list[Path]:
    """Write a file, or a folder with one for each process; return the files.

    Of a run with deep traces in its folders these are written: they have more.

    Args:
        analyzer: the run.
        place: must not be there; a name that ends in ``.json`` or ``.json.gz`` is a file, which
            holds one process.
        rank: this one only.
        on_process: called with each process's label before it is written.
        ending: of the names of files in a folder.
        paths: by the label of a process, the critical path to draw over it.

    Raises:
        HaiprofError: ``place`` is there or cannot be written, there is no such rank, or a file is
            wanted for several processes.
    """
    processes = traced(analyzer, rank)
    base = base_of(processes)
    alone = place.name.endswith((".json", ".json.gz"))
    if alone and len(processes) != 1:
        raise HaiprofError(
            f"{place}: a file holds one process, and these are {len(processes)}: choose one with "
            "--rank, or give a folder"
        )
    names = [None] if alone else [f"{name}{ending}" for name in distinct_names(processes)]
    with target.whole(place) as partial:
        if not alone:
            partial.mkdir()
        files = [partial if name is None else partial / name for name in names]
        jobs = [
            (each, file, base, False, (paths or {}).get(each.process.label))
            for each, file in zip(processes, files, strict=True)
        ]
        written = [file for _, file in done(analyzer, write_file, jobs, on_process)]
    return [place if alone else place / file.name for file in written]


def distinct_names(processes: Sequence[Chosen]) -> list[str]:
    """Return a name for each process's file, without an ending."""
    names: list[str] = []
    for each in processes:
        name = safe_name(each.label.replace(",", "").replace(" ", "_")) or "process"
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def base_of(processes: Sequence[Chosen]) -> int:
    """Return the time that files of these processes count from: the same, so they can be compared.

    A whole day, so that other files of the same job most likely have it too.
    """
    known = [
        begin
        for process in [each.process for each in processes]
        for begin in [process.trace.begin if process.trace is not None else process.started_ns]
        if begin is not None
    ]
    return max(min(known, default=0) // _DAY - 1, 0) * _DAY


def write_file(
    each: Chosen,
    file: Path,
    base: int,
    for_plugin: bool = False,
    path: pl.DataFrame | None = None,
) -> Path:
    """Write one process; return the file.

    Args:
        each: the process.
        file: must not be there; is compressed if its name ends in ``.gz``.
        base: ns since the epoch that times count from.
        for_plugin: leave out what the TensorBoard plugin misreads: steps as a device saw them,
            which it counts as further steps, and kinds of memory that end it.
        path: its critical path: what is on it has the argument ``critical``, and arrows lead along.
    """
    with target.opened(file) as out:
        _File(each, out, base, for_plugin, path).write()
    return file


class _File:
    def __init__(
        self,
        each: Chosen,
        out: IO[bytes],
        base: int,
        for_plugin: bool,
        path: pl.DataFrame | None,
    ) -> None:
        self._each = each
        self._overlay = critical_path.overlay(each, path)
        self._out = out
        self._base = base
        self._for_plugin = for_plugin
        devices = {gpu.device for gpu in each.process.gpus}
        pid = each.process.pid
        self._pid = _HOST_PID if pid is None or pid in devices or pid < 0x100 else pid
        self._first = True

    def write(self) -> None:
        self._out.write(self._header().encode())
        collectives = self._each.read(schema.COLLECTIVES)
        threads = self._spans(collectives)
        lanes = self._kernels(collectives)
        lanes |= self._device_spans()
        self._allocations()
        self._flows()
        self._critical_path()
        self._samples()
        self._events()
        self._metadata(threads, lanes)
        self._out.write(b"\n]}\n")

    def _header(self) -> str:
        process, trace = self._each.process, self._each.process.trace
        header: dict[str, Any] = {"schemaVersion": 1}
        gpus = {gpu.device: gpu for gpu in process.gpus if gpu.device is not None}
        header["deviceProperties"] = [
            {"id": device, **_properties(gpus.get(device))}
            for device in range(max(gpus, default=-1) + 1)
        ]
        distributed = dict(trace.distributed) if trace is not None else {}
        for name, value in (("rank", process.rank), ("world_size", process.world_size)):
            if value is not None:
                distributed.setdefault(name, value)
        if distributed:
            # HTA looks for "rank" with a blank before the number, as json.dumps has it.
            header["distributedInfo"] = distributed
        header["host_name"] = process.host
        header["baseTimeNanoseconds"] = self._base
        header["displayTimeUnit"] = "ms"
        header["traceName"] = self._each.label
        return json.dumps(header)[:-1] + ', "traceEvents": ['

    # -- tables ----------------------------------------------------------------------------------

    def _spans(self, collectives: pl.DataFrame) -> list[int]:
        frame = self._each.read(schema.SPANS)
        if not frame.height:
            return []
        category = pl.col("category").cast(pl.String)
        step = pl.col("step").is_not_null() & (category == "step")
        name = pl.col("name").cast(pl.String)
        named = pl.when(step & ~name.str.contains(f"^(?:{_STEP})$")).then(
            pl.format("ProfilerStep#{}", "step")
        )
        arguments = _communication(collectives, "host", ("start", "duration", "thread"))
        known = [*_HOST, "step", "user"]
        for part in frame.iter_slices(_AT_ONCE):
            rows = self._overlay.on_spans(part).join(
                arguments, on=("start", "duration", "thread"), how="left", maintain_order="left"
            )
            self._write(
                rows,
                "X",
                [
                    word("cat", renamed("category", _HOST, _RANGE)),
                    member("name", pl.coalesce(quoted_words(named), quoted(rows["name"]))),
                    *self._place(pl.col("thread")),
                    self._time("start"),
                    _duration(),
                ],
                [
                    member(
                        "category", pl.when(~category.is_in(known)).then(quoted(rows["category"]))
                    ),
                    number("External id", "external"),
                    number("correlation", "correlation"),
                    number("Sequence number", "sequence"),
                    number("Fwd thread id", "forward_thread"),
                    member("Input Dims", as_json(rows["shapes"])),
                    member("Input type", as_json(rows["types"])),
                    member("Concrete Inputs", as_json(rows["inputs"])),
                    member("Call stack", quoted(rows["stack"])),
                    number("Python id", "python_id"),
                    number("Python parent id", "python_parent"),
                    number("Python module id", "module"),
                    pl.col("collective"),
                    number("critical", "critical"),
                    *attributes(rows, verbatim=category == "counters"),
                ],
            )
        threads: list[int] = frame["thread"].unique().sort().to_list()
        return threads

    def _kernels(self, collectives: pl.DataFrame) -> set[tuple[int, int]]:
        frame = self._each.read(schema.KERNELS)
        if not frame.height:
            return set()
        arguments = _communication(collectives, "device", ("start", "correlation"))
        for part in frame.with_row_index("row").iter_slices(_AT_ONCE):
            rows = self._overlay.on_kernels(part).join(
                arguments,
                on=("start", "correlation"),
                how="left",
                nulls_equal=True,
                maintain_order="left",
            )
            self._write(
                rows,
                "X",
                [
                    word("cat", renamed("kind", _DEVICE, "overhead")),
                    member("name", quoted(rows["name"])),
                    *_on_device(pl.col("stream").fill_null(0)),
                    self._time("start"),
                    _duration(),
                ],
                [
                    number("External id", "external"),
                    number("device", "device"),
                    number("stream", "stream"),
                    number("correlation", "correlation"),
                    _size("grid"),
                    _size("block"),
                    number("registers per thread", "registers"),
                    number("shared memory", "shared_memory"),
                    real("blocks per SM", "blocks_per_sm"),
                    real("est. achieved occupancy %", "occupancy"),
                    number("bytes", "bytes"),
                    real("memory bandwidth (GB/s)", "bandwidth"),
                    number("graph id", "graph"),
                    number("graph node id", "graph_node"),
                    member("unit", quoted(rows["unit"])),
                    member("op type", quoted(rows["op_type"])),
                    pl.col("collective"),
                    number("critical", "critical"),
                ],
            )
        return _lanes(frame, pl.col("stream").fill_null(0))

    def _device_spans(self) -> set[tuple[int, int]]:
        frame = self._each.read(schema.DEVICE_SPANS)
        if self._for_plugin:
            frame = frame.filter(~pl.col("name").cast(pl.String).str.contains(f"^{_STEP}$"))
        if not frame.height:
            return set()
        lane = pl.coalesce("stream", pl.col("stage").cast(pl.Int64) + _STAGES, 0)
        for rows in frame.iter_slices(_AT_ONCE):
            self._write(
                rows,
                "X",
                [
                    word("cat", pl.lit("gpu_user_annotation")),
                    member("name", quoted(rows["name"])),
                    *_on_device(lane),
                    self._time("start"),
                    _duration(),
                ],
                [
                    member("category", quoted(rows["category"])),
                    *(
                        number(name, name)
                        for name in ("device", "stream", "step", "microbatch", "stage", "chunk")
                    ),
                ],
            )
        return _lanes(frame, lane)

    def _allocations(self) -> None:
        frame = self._each.read(schema.ALLOCATIONS)
        kinds = {kind: str(number) for kind, number in _MEMORY.items()}
        # What kinds torch had no name for are their numbers.
        kind = renamed("kind", kinds).cast(pl.Int64, strict=False).fill_null(-1)
        if self._for_plugin:
            kind = pl.when(kind != 0).then(1).otherwise(0)
        for rows in frame.iter_slices(_AT_ONCE):
            self._write(
                rows,
                "i",
                [
                    pl.lit(',"s":"t","cat":"cpu_instant_event","name":"[memory]"'),
                    *self._place(pl.col("thread").fill_null(0)),
                    self._time("time"),
                ],
                [
                    pl.format(',"Device Type":{}', kind),
                    pl.format(',"Device Id":{}', pl.col("device").cast(pl.Int64).fill_null(-1)),
                    number("Addr", "address"),
                    number("Bytes", "bytes"),
                    number("Total Allocated", "total_allocated"),
                    number("Total Reserved", "total_reserved"),
                ],
            )

    def _flows(self) -> None:
        frame = self._each.read(schema.FLOWS)
        if not frame.height:
            return
        kernels = self._each.read(schema.KERNELS, ("start", "correlation", "device"))
        ends = (
            kernels.drop_nulls("correlation")
            .unique(["correlation", "start"], keep="first")
            .with_columns(side=pl.lit("end"))
        )
        for part in frame.with_columns(pl.col("side").cast(pl.String)).iter_slices(_AT_ONCE):
            rows = part.join(
                ends,
                left_on=("id", "time", "side"),
                right_on=("correlation", "start", "side"),
                how="left",
                maintain_order="left",
            )
            for side, phase in (("start", "s"), ("end", "f")):
                some = rows.filter(pl.col("side") == side)
                self._write(
                    some,
                    phase,
                    [
                        pl.lit(',"bp":"e"' if side == "end" else ""),
                        pl.format(',"id":{}', "id"),
                        member("cat", quoted(some["kind"])),
                        member("name", quoted(some["kind"])),
                        pl.format(
                            ',"pid":{},"tid":{}',
                            pl.col("device").cast(pl.Int64).fill_null(self._pid),
                            pl.col("thread").fill_null(0),
                        ),
                        self._time("time"),
                    ],
                    [],
                )

    def _critical_path(self) -> None:
        for phase, suffix in (("s", ""), ("f", "_to")):
            device, thread, stream, time = (
                f"{name}{suffix}" for name in ("device", "thread", "stream", "time")
            )
            self._write(
                self._overlay.arrows,
                phase,
                [
                    pl.lit(',"bp":"e"' if suffix else ""),
                    pl.format(',"id":{}', "id"),
                    *(word(name, pl.lit(critical_path.NAME)) for name in ("cat", "name")),
                    pl.format(
                        ',"pid":{},"tid":{}',
                        pl.col(device).cast(pl.Int64).fill_null(self._pid),
                        pl.coalesce(thread, stream, 0),
                    ),
                    self._time(time),
                ],
                [],
            )

    def _samples(self) -> None:
        frame = self._each.read(schema.SAMPLES, ("time", "metric", "instance", "value"))
        for rows in frame.filter(pl.col("value").is_finite()).iter_slices(_AT_ONCE):
            instance = quoted(rows["instance"]).fill_null('"value"')
            self._write(
                rows,
                "C",
                [
                    member("name", quoted(rows["metric"])),
                    pl.lit(f',"pid":{self._pid}'),
                    self._time("time"),
                ],
                [pl.format(",{}:{}", instance, "value")],
            )

    def _events(self) -> None:
        frame = self._each.read(schema.EVENTS)
        full = pl.col("kind").cast(pl.String) == "out_of_memory"
        for rows in frame.iter_slices(_AT_ONCE):
            name = pl.when(full).then(pl.lit('"[OutOfMemory]"')).otherwise(quoted(rows["kind"]))
            self._write(
                rows,
                "i",
                [
                    pl.lit(',"s":"p","cat":"event"'),
                    member("name", name),
                    *self._place(pl.lit(0)),
                    self._time("time"),
                ],
                [
                    member("text", pl.when(~full).then(quoted(rows["text"]))),
                    number("step", "step"),
                    *attributes(rows, verbatim=full),
                ],
            )

    def _metadata(self, threads: Sequence[int], lanes: set[tuple[int, int]]) -> None:
        label = self._each.label
        rows = [
            (self._pid, 0, "process_name", {"name": label}),
            (self._pid, 0, "process_labels", {"labels": "CPU"}),
        ]
        rows += [(self._pid, n, "thread_name", {"name": f"thread {n}"}) for n in threads]
        for device in sorted({device for device, _ in lanes}):
            rows.append((device, 0, "process_name", {"name": label}))
            rows.append((device, 0, "process_labels", {"labels": f"GPU {device}"}))
        for device, lane in sorted(lanes):
            stage = lane - _STAGES
            name = f"stage {stage}" if stage >= 0 else f"stream {lane}"
            rows.append((device, lane, "thread_name", {"name": name}))
        for pid, tid, name, args in rows:
            event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}
            self._line(json.dumps(event))

    # -- events ----------------------------------------------------------------------------------

    def _write(
        self, rows: pl.DataFrame, phase: str, members: list[pl.Expr], arguments: list[pl.Expr]
    ) -> None:
        """Write an event for each row; members and arguments are ``,"name":value`` or null."""
        if not rows.height:
            return
        parts = [pl.lit(f'{{"ph":"{phase}"'), *(each.fill_null("") for each in members)]
        if arguments:
            joined = pl.concat_str([argument.fill_null("") for argument in arguments])
            parts += [pl.lit(',"args":{'), joined.str.strip_prefix(","), pl.lit("}")]
        lines = rows.select(pl.concat_str([*parts, pl.lit("}")]).alias("line"))["line"]
        self._line(lines.str.join(",\n").item())

    def _line(self, text: str) -> None:
        self._out.write(b"\n" if self._first else b",\n")
        self._out.write(text.encode())
        self._first = False

    def _place(self, thread: pl.Expr) -> Iterator[pl.Expr]:
        yield pl.format(f',"pid":{self._pid},"tid":{{}}', thread)

    def _time(self, column: str) -> pl.Expr:
        return pl.format(',"ts":{}', microseconds(pl.col(column) - self._base))


def _properties(gpu: Gpu | None) -> dict[str, Any]:
    if gpu is None:
        return {"name": ""}
    major, minor = gpu.capability or (None, None)
    fields = {
        "name": gpu.name,
        "totalGlobalMem": gpu.memory_bytes,
        "computeMajor": major,
        "computeMinor": minor,
        "numSms": gpu.multiprocessors,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _on_device(lane: pl.Expr) -> Iterator[pl.Expr]:
    yield pl.format(',"pid":{},"tid":{}', pl.col("device").fill_null(0), lane)


def _lanes(frame: pl.DataFrame, lane: pl.Expr) -> set[tuple[int, int]]:
    found = frame.select(pl.col("device").fill_null(0), lane.alias("lane")).unique()
    return set(found.rows())


def _duration() -> pl.Expr:
    return pl.format(',"dur":{}', microseconds(pl.col("duration")))


def _size(of: str) -> pl.Expr:
    return pl.format(f',"{of}":[{{}},{{}},{{}}]', *(f"{of}_{axis}" for axis in "xyz"))


def _communication(collectives: pl.DataFrame, side: str, on: Sequence[str]) -> pl.DataFrame:
    """Return collectives as arguments of their spans or kernels, with the columns to join on."""
    mine = collectives.filter(pl.col("side").cast(pl.String) == side)
    further = [_members(text) for text in mine["attributes"].to_list()]
    return mine.select(
        *on,
        pl.concat_str(
            [
                part.fill_null("")
                for part in (
                    member("Collective name", quoted(mine["op"])),
                    number("In msg nelems", "elements_in"),
                    number("Out msg nelems", "elements_out"),
                    number("Group size", "group_size"),
                    member("dtype", quoted(mine["type"])),
                    member("Process Group Name", quoted(mine["group"])),
                    member("Process Group Ranks", quoted(mine["ranks"])),
                    pl.lit(pl.Series(further, dtype=pl.String)),
                )
            ]
        ).alias("collective"),
    ).unique(on, keep="first", maintain_order=True)


def _members(text: str | None) -> str | None:
    attributes = None if text is None else parsed(text)
    if not isinstance(attributes, dict):
        return None
    return "".join(
        f",{json.dumps(name)}:{json.dumps(attributes[key])}"
        for key, name in _FURTHER.items()
        if key in attributes
    )
