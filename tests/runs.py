"""Makes runs on disk for tests, by pyarrow from haiprof/schema.py alone, without a recorder."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from haiprof import schema

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


def write_closed(
    folder: Path,
    table: schema.Table,
    rows: Sequence[Row],
    number: int = 0,
    arrow: pa.Schema | None = None,
) -> Path:
    """Write a closed segment (IPC file, zstd)."""
    file = folder / f"{table.name}-{number}{schema.CLOSED_SUFFIX}"
    made = batch(table, rows, arrow)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_file(sink, made.schema, options=options) as out,
    ):
        out.write_batch(made)
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


def sample(second: float, metric: str, value: float | None, instance: str | None = None) -> Row:
    """Make a sample, ``second`` after T0."""
    row = {"time": T0 + round(second * SECOND), "metric": metric, "value": value, "flags": 0}
    return {**row, "instance": instance}


def event(second: float, kind: str, text: str, step: int | None = None) -> Row:
    """Make an event, ``second`` after T0."""
    return {"time": T0 + round(second * SECOND), "kind": kind, "text": text, "step": step}


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
