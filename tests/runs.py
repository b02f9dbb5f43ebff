"""Makes runs on disk for tests, by pyarrow from haiprof/schema.py alone, without a recorder."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from haiprof import schema
from haiprof.recorder.arrow_stream import Batch
from haiprof.recorder.tables import RowTable

T0 = 1_700_000_000_000_000_000
MS = 1_000_000
SECOND = 1_000_000_000
#: Phases of a usual step, in ms: the step takes 12 ms, of which 1 ms is under no phase.
PHASES = (("dataloader", 1.0), ("forward", 4.0), ("backward", 4.5), ("optimizer", 1.5))

Row = dict[str, Any]


def write_json(file: Path, document: object) -> None:
    """Write a JSON file and the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document), "utf-8")


def write_run(run: Path, /, **changes: object) -> Path:
    """Write ``run.json``; ``changes`` replace fields."""
    document = {
        "format": schema.RUN_FORMAT,
        "version": "1.0",
        "run": run.name,
        "created_ns": T0,
        "command": ["python", "train.py"],
        "host": "n0",
    }
    write_json(run / schema.RUN_FILE, {**document, **changes})
    return run


def write_process(run: Path, rank: int | None = 0, node: str = "n0", **changes: object) -> Path:
    """Write the folder of one rank process with its ``process.json``; return the folder."""
    document: dict[str, object] = {
        "format": schema.PROCESS_FORMAT,
        "version": "1.0",
        "role": "rank" if rank is not None else "process",
        "node": node,
        "host": node,
        "rank": rank,
        "local_rank": rank,
        "world_size": 1,
        "attempt": 0,
        "pid": 1000 + (rank or 0),
        "started_ns": T0,
        "ended_ns": T0 + 60 * SECOND,
        "state": "closed",
        "lost": {"records": 0},
    }
    document.update(changes)
    name = f"{node}#{rank}" if rank is not None else f"{node}#-.{document['pid']}"
    if document["role"] == "process" and rank is not None:
        name += f".{document['pid']}"
    write_json(run / name / schema.PROCESS_FILE, document)
    return run / name


def write_node(run: Path, node: str = "n0", **changes: object) -> Path:
    """Write the folder of a node with its ``process.json``; return the folder."""
    document = {
        "format": schema.PROCESS_FORMAT,
        "version": "1.0",
        "role": "node",
        "node": node,
        "host": node,
        "rank": None,
        "pid": 999,
        "started_ns": T0,
        "ended_ns": T0 + 60 * SECOND,
        "state": "closed",
        "lost": {},
        "sources": [{"name": "procfs", "state": "ok", "reason": "", "mend": ""}],
    }
    write_json(run / node / schema.PROCESS_FILE, {**document, **changes})
    return run / node


def batch(
    table: schema.Table, rows: Sequence[Row], arrow: pa.Schema | None = None
) -> pa.RecordBatch:
    """Make a record batch; columns that a row lacks are null."""
    arrow = arrow or schema.arrow_schema(table)
    columns = []
    for field in arrow:
        values = [row.get(field.name) for row in rows]
        if pa.types.is_dictionary(field.type):
            plain = pa.array(values, pa.utf8()).dictionary_encode()
            columns.append(plain.cast(field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.record_batch(columns, schema=arrow)


def recorded_batches(table: schema.Table, rows: Sequence[Row], size: int) -> Iterator[Batch]:
    """Make batches of so many rows, as a recorder does; columns that a row lacks are null."""
    waiting = RowTable(table)
    for first in range(0, len(rows), size):
        for row in rows[first : first + size]:
            waiting.add(*(row.get(column.name) for column in table.columns))
        yield waiting.take()


def write_closed(
    folder: Path,
    table: schema.Table,
    rows: Sequence[Row],
    number: int = 0,
    arrow: pa.Schema | None = None,
) -> Path:
    """Write a closed segment (IPC file, zstd)."""
    file = folder / f"{table.name}-{number}{schema.CLOSED_SUFFIX}"
    record_batch = batch(table, rows, arrow)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_file(sink, record_batch.schema, options=options) as out,
    ):
        out.write_batch(record_batch)
    return file


def write_live(
    folder: Path, table: schema.Table, batches: Sequence[Sequence[Row]], number: int = 0
) -> Path:
    """Write a live segment (IPC stream), one record batch for each sequence of rows."""
    file = folder / f"{table.name}-{number}{schema.LIVE_SUFFIX}"
    arrow = schema.arrow_schema(table)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, arrow) as out:
        for rows in batches:
            out.write_batch(batch(table, rows))
    return file


def span(
    start: float,
    duration: float,
    category: str,
    name: str,
    step: int | None = None,
    thread: int = 1,
) -> Row:
    """Make a span; ``start`` (after T0) and ``duration`` in ms."""
    return {
        "start": T0 + round(start * MS),
        "duration": round(duration * MS),
        "category": category,
        "name": name,
        "thread": thread,
        "step": step,
    }


def sample(
    second: float, metric: str, value: float | None, instance: str | None = None, flags: int = 0
) -> Row:
    """Make a sample, ``second`` after T0."""
    row = {"time": T0 + round(second * SECOND), "metric": metric, "value": value, "flags": flags}
    return {**row, "instance": instance}


def event(
    second: float,
    kind: str,
    text: str,
    step: int | None = None,
    attributes: dict[str, Any] | None = None,
) -> Row:
    """Make an event, ``second`` after T0."""
    row = {"time": T0 + round(second * SECOND), "kind": kind, "text": text, "step": step}
    return {**row, "attributes": None if attributes is None else json.dumps(attributes)}


def activity(
    start: float,
    duration: float,
    name: str = "gemm",
    kind: str = "kernel",
    device: int | None = 0,
    stream: int = 7,
    **more: object,
) -> Row:
    """Make a GPU activity; ``start`` (after T0) and ``duration`` in ms."""
    row: Row = {"kind": kind, "name": name, "device": device, "stream": stream}
    row.update(start=T0 + round(start * MS), duration=round(duration * MS))
    return {**row, **more}


def device_span(
    start: float,
    duration: float,
    name: str,
    step: int | None,
    device: int = 0,
    category: str = "phase",
    uncertainty: int = 500,
) -> Row:
    """Make an interval on a stream; ``start`` (after T0) and ``duration`` in ms."""
    row: Row = {"category": category, "name": name, "device": device, "stream": 7, "step": step}
    row.update(start=T0 + round(start * MS), duration=round(duration * MS), uncertainty=uncertainty)
    return row


def recording_begins(ms: float, why: str = "window", mode: str = "windows") -> Row:
    """Make the event that kernels are recorded from ``ms`` after T0 on."""
    attributes = {"recording": True, "why": why, "mode": mode}
    return event(ms / 1e3, "kernels", "Kernels are recorded from now on", None, attributes)


def recording_ends(
    ms: float,
    first: int | None = None,
    last: int | None = None,
    why: str = "window",
    mode: str = "windows",
) -> Row:
    """Make the event that kernels were recorded until ``ms`` after T0.

    With ``first`` and ``last`` it carries the whole steps, as events once did.
    """
    attributes: Row = {"recording": False, "why": why, "mode": mode}
    if first is not None:
        attributes.update(first_step=first, last_step=last)
    return event(ms / 1e3, "kernels", "Kernels are not recorded any more", None, attributes)


def measured(second: float, overhead: float | None = 0.004, **more: object) -> Row:
    """Make the event with the measured overhead."""
    attributes: Row = {"overhead": overhead, "low": None, "high": None, "confidence": 0.95}
    if overhead is not None:
        attributes.update(low=overhead - 0.003, high=overhead + 0.003)
    attributes.update(
        windows=12, steps_inside=120, steps_outside=4000, budget=0.005, mode="windows"
    )
    attributes.update(cost_thread_ns=1_000, cost_cupti_ns=2_000)
    return event(second, "budget", "Kernels cost little", None, {**attributes, **more})


def loop(
    steps: int,
    phases: Sequence[tuple[str, float]] = PHASES,
    rest: float = 1.0,
    noise: float = 0.0,
    seed: int = 0,
) -> list[Row]:
    """Make the spans of a training loop: each step its phases, then ``rest`` ms of nothing."""
    random_ = random.Random(seed)
    rows = []
    now = 0.0
    for number in range(steps):
        first = now
        for name, duration in phases:
            took = duration * (1 + noise * random_.random())
            rows.append(span(now, took, "phase", name, number))
            now += took
        now += rest
        rows.append(span(first, now - first, "step", "step", number))
    return rows


def host_samples(seconds: int, cpu: float = 170.0, rss: float = 640 * 2**20) -> list[Row]:
    """Make what a rank's folder holds of its process tree, once a second."""
    rows = []
    for second in range(1, seconds + 1):
        rows += [
            sample(second, "proc.cpu.percent", cpu),
            sample(second, "proc.rss.bytes", rss),
            sample(second, "io.syscall_read.bytes_per_s", 3e6 + 1e5 * second),
            sample(second, "io.syscall_write.bytes_per_s", 1e5),
            sample(second, "io.storage_read.bytes_per_s", 2e6),
            sample(second, "io.storage_write.bytes_per_s", 5e4),
            sample(second, "haiprof.cost.ratio", 0.0012),
        ]
    return rows


def node_samples(seconds: int, pressure: float = 0.02, gpus: int = 0) -> list[Row]:
    """Make what a node's folder holds, once a second."""
    rows = []
    for second in range(1, seconds + 1):
        rows += [
            sample(second, "cpu.util.percent", 86.0 + second % 7),
            sample(second, "mem.used.bytes", 3 * 2**30),
            sample(second, "net.rx.bytes_per_s", 5e6, "eth0"),
            sample(second, "net.rx.bytes_per_s", 9e9, "lo"),
            sample(second, "net.tx.bytes_per_s", 1e6, "eth0"),
            sample(second, "psi.cpu_some.percent", pressure * 100),
            sample(second, "psi.io_some.percent", pressure * 50),
            sample(second, "cpu.util.percent", 80.0 + second % 3, "cpu0"),
            sample(second, "cpu.util.percent", 92.0, "cpu1"),
        ]
        for gpu in range(gpus):
            rows.append(sample(second, "gpu.util.percent", 60.0 + gpu + second % 5, f"gpu{gpu}"))
            rows.append(sample(second, "gpu.memory_used.bytes", 2.0**34, f"gpu{gpu}"))
    return rows


#: A node of two sockets, as its recorder describes it.
MACHINE = {
    "cpu": "GenuineIntel:6:143",
    "sockets": 2,
    "numa_nodes": 2,
    "dram_peak_bytes_per_s": 400e9,
    "dram_peak_how": "16 channels of DDR5-3125",
}


def steady(seconds: int, values: dict[tuple[str, str | None], float]) -> list[Row]:
    """Make a sample a second of each (metric, instance), always with the same value."""
    return [
        sample(second, metric, value, instance)
        for second in range(1, seconds + 1)
        for (metric, instance), value in values.items()
    ]


def with_sockets(metric: str, *parts: float) -> dict[tuple[str, str | None], float]:
    """Give a metric a value for each socket, and their sum for the node."""
    sockets = {(metric, f"socket{n}"): value for n, value in enumerate(parts)}
    return {(metric, None): sum(parts), **sockets}


def make_run(
    folder: Path,
    ranks: int = 1,
    steps: int = 118,
    slow_rank: int | None = None,
    phases: Sequence[tuple[str, float]] = PHASES,
    gpus: int = 0,
) -> Path:
    """Make a whole, ordinary run; ``slow_rank`` takes half as long again."""
    run = write_run(folder)
    for rank in range(ranks):
        process = write_process(run, rank, world_size=ranks)
        factor = 1.5 if rank == slow_rank else 1.0
        scaled = [(name, duration * factor) for name, duration in phases]
        write_closed(process, schema.SPANS, loop(steps, scaled, 1.0 * factor))
        write_closed(process, schema.SAMPLES, host_samples(10, cpu=170 / ranks))
        write_closed(process, schema.EVENTS, [event(0.01, "mark", "begin")])
    write_closed(write_node(run), schema.SAMPLES, node_samples(10, gpus=gpus))
    return run


#: Device phases of a usual step, in ms after the host's step of 12 ms began.
DEVICE_PHASES = (("forward", 1.5, 4.0), ("backward", 5.5, 5.0), ("optimizer", 10.5, 1.0))
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
#: Kernels of that step: of its 12 ms the GPU is busy for 9, 1 of them with all-reduce alone.
STEP_KERNELS = (
    *((1.5 + i, 0.75, "_ZN2at6native12layer_kernelIfEEvPT_i", 7) for i in range(4)),
    (5.5, 4.0, "_ZN2at6native15backward_kernelIfEEvPT_i", 7),
    (8.5, 2.0, ALL_REDUCE, 20),
    (10.5, 1.0, "_ZN2at6native11adam_kernelIfEEvPT_", 7),
)


def device_loop(steps: int, device: int = 0) -> list[Row]:
    """Make the device phases of :func:`loop`."""
    return [
        device_span(12 * number + start, duration, name, number, device)
        for number in range(steps)
        for name, start, duration in DEVICE_PHASES
    ]


def kernel_loop(first: int, last: int, device: int = 0) -> list[Row]:
    """Make the kernels of the steps ``first`` to ``last`` of :func:`loop`."""
    return [
        activity(12 * number + start, duration, name, device=device, stream=stream)
        for number in range(first, last + 1)
        for start, duration, name, stream in STEP_KERNELS
    ]


#: Nodes of stacks: a training loop that calls a function in each of its phases.
FRAMES: list[Row] = [
    {"id": 0, "parent": None, "function": "<module>", "file": "/job/train.py", "line": 30},
    {"id": 1, "parent": 0, "function": "load", "file": "/job/data.py", "line": 88},
    {"id": 2, "parent": 0, "function": "Model.forward", "file": "/job/model.py", "line": 12},
    {"id": 3, "parent": 0, "function": "backward", "file": "/job/train.py", "line": 40},
]


def stack(start: float, node: int, samples: int = 1, **changes: object) -> Row:
    """Make samples of a stack, 100 ms each; ``start`` in ms after T0."""
    row = {"start": T0 + round(start * MS), "duration": samples * 100 * MS, "samples": samples}
    row |= {"process": 1000, "thread": 1, "stack": node, "state": "running", "gil": 1}
    return {**row, **changes}


def stack_loop(steps: int) -> list[Row]:
    """Sample every tenth step of :func:`loop`: in its dataloader, its forward, its backward, …."""
    moments = (0.5, 1), (3.0, 2), (7.0, 3)
    return [
        stack(12.0 * step + moments[step // 10 % 3][0], moments[step // 10 % 3][1])
        for step in range(0, steps, 10)
    ]


def collective(start: float, duration: float, sequence: int, **changes: object) -> Row:
    """Make an all-reduce of 4 kB in a group of two; ``start`` (after T0) and ``duration`` in ms."""
    row = {"start": T0 + round(start * MS), "duration": round(duration * MS), "side": "work"}
    row |= {"op": "all_reduce", "thread": 1, "group": "0", "group_size": 2, "type": "fp32"}
    row |= {"elements_in": 1000, "elements_out": 1000, "bytes": 4000, "sequence": sequence}
    return {**row, **changes}


def collective_loop(rank: int, steps: int) -> list[Row]:
    """Make an all-reduce of two ranks in each step of :func:`loop`, for which rank 1 is 3 ms late.

    Each is done 1 ms after rank 1 has asked for it; the other one waits for it, and is blocked for
    the last 2 ms.
    """
    late = 3.0 if rank == 1 else 0.0
    return [
        row
        for step in range(steps)
        for row in (
            collective(12 * step + 6 + late, 4.0 - late, step + 1, step=step),
            collective(12 * step + 8 + late / 3, 2.0 - late / 3, step + 1, step=step, side="wait"),
        )
    ]


def group(name: str, ranks: Sequence[int]) -> Row:
    """Make the event that says who is in a process group."""
    attributes = json.dumps({"ranks": list(ranks), "backend": "gloo"})
    return {**event(0.001, "group", name), "attributes": attributes}


def make_sampled_run(folder: Path, loads: int, step_ms: float = 100.0) -> Path:
    """Make a run of 100 steps with a sample each; ``loads`` of these are in a loader."""
    run = write_run(folder)
    process = write_process(run)
    steps = [span(step_ms * n, step_ms, "step", "step", n) for n in range(100)]
    steps += [span(step_ms * n, step_ms, "phase", "forward", n) for n in range(100)]
    write_closed(process, schema.SPANS, steps)
    write_closed(process, schema.FRAMES, FRAMES)
    stacks = [stack(step_ms * n + 1, 1 if n < loads else 2) for n in range(100)]
    write_closed(process, schema.STACKS, stacks)
    return run


def nccl_loop(place: int, steps: int) -> list[Row]:
    """Make an all-reduce of two nodes in each step, as NCCL says: enqueued, then on the network."""
    where = {"communicator": "00c0ffee00c0ffee", "place": place, "ranks": 2, "nodes": 2}
    what = {"op": "all_reduce", "type": "fp32", "elements": 1 << 20, "bytes": 4 << 20}
    how = {"algorithm": "RING", "protocol": "SIMPLE", "channels": 16}

    def row(start: float, duration: float, side: str, step: int) -> Row:
        times = {"start": T0 + round(start * MS), "duration": round(duration * MS)}
        return {**times, "side": side, "id": step + 1}

    hosts = [
        row(12 * n + 6, 0.02, "host", n) | where | what | how | {"sequence": n, "step": n}
        for n in range(steps)
    ]
    return hosts + [row(12 * n + 6.1, 1.0, "network", n) | {"transfers": 32} for n in range(steps)]


def make_gpu_run(folder: Path, ranks: int = 1, steps: int = 118, windows: bool = True) -> Path:
    """Make a run with a GPU for each rank, in which steps 10 to 19 have kernels if ``windows``."""
    run = make_run(folder, ranks, steps, gpus=ranks)
    write_node(
        run,
        gpus=[{"instance": f"gpu{n}", "index": n, "uuid": f"GPU-{n:08x}"} for n in range(ranks)],
    )
    for rank in range(ranks):
        gpu = {"device": 0, "uuid": f"GPU-{rank:08x}", "name": "NVIDIA H100"}
        process = write_process(run, rank, world_size=ranks, gpus=[gpu])
        write_closed(process, schema.DEVICE_SPANS, device_loop(steps))
        write_closed(process, schema.FRAMES, FRAMES)
        write_closed(process, schema.STACKS, stack_loop(steps))
        if ranks == 2:
            write_closed(process, schema.COLLECTIVES, collective_loop(rank, 10))
            write_closed(process, schema.NCCL, nccl_loop(rank, 10))
        if windows:
            events = [recording_begins(120.0), recording_ends(240.0), measured(1)]
            events += [group("0", range(ranks))] if ranks == 2 else []
            write_closed(process, schema.EVENTS, events)
            write_closed(process, schema.KERNELS, kernel_loop(10, 19))
    return run
