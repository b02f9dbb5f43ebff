"""Ten million kernels that haiprof recorded itself: how soon their analysis is there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pyarrow as pa
import pytest
import runs
from figures import Figure, Measured, Unit, at_most, least
from reporting import Report

from haiprof import schema

RECORDS, STEPS = 10_000_000, 1000
#: Of a step of 100 ms, ms; kernels begin every 10 µs.
PHASES = (("dataloader", 5.0), ("forward", 35.0), ("backward", 45.0), ("optimizer", 10.0))
#: As recorders close them: rows of a file, and of a record batch of it.
FILE_ROWS, BATCH_ROWS = 625_000, 1 << 16
NAMES = 300
MOST_SECONDS = 3.0
VIEWS = ("overview", "kernels", "temporal")


def kernels(first: int, rows: int, seed: int) -> pa.Table:
    """Kernels ``first`` and following: 4 to 20 µs each, every tenth on a second stream beside."""
    random = np.random.default_rng(seed)
    number = np.arange(first, first + rows)
    beside = number % 10 == 9
    columns = {
        "start": runs.T0 + number * 10_000 + random.integers(0, 1000, rows),
        "duration": np.where(beside, 20_000, random.integers(4000, 9000, rows)),
        "kind": random.choice(3, rows, p=(0.96, 0.03, 0.01)),
        "name": np.minimum(random.geometric(0.02, rows) - 1, NAMES - 1),
        "device": np.zeros(rows),
        "stream": np.where(beside, 20, 7),
        "correlation": number,
        "grid_x": random.integers(1, 4096, rows),
        "grid_y": np.ones(rows),
        "grid_z": np.ones(rows),
        "block_x": random.choice((64, 128, 256), rows),
        "block_y": np.ones(rows),
        "block_z": np.ones(rows),
        "registers": random.choice((16, 32, 128, 255), rows),
        "shared_memory": random.choice((0, 16384, 98304), rows),
    }
    words = {
        "kind": ["kernel", "memcpy", "memset"],
        "name": [f"_Z{len(f'gemm_{i}')}gemm_{i}PfS_S_" for i in range(NAMES)],
    }
    arrow = schema.arrow_schema(schema.KERNELS)
    arrays = []
    for field in arrow:
        if field.name not in columns:
            arrays.append(pa.nulls(rows, field.type))
        elif field.name in words:
            codes = pa.array(columns[field.name].astype(np.uint32))
            arrays.append(pa.DictionaryArray.from_arrays(codes, words[field.name]))
        else:
            arrays.append(pa.array(columns[field.name].astype(field.type.to_pandas_dtype())))
    return pa.table(arrays, schema=arrow)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run of one rank that recorded every kernel of a thousand steps."""
    folder = runs.write_process(runs.write_run(tmp_path / "run"), ended_ns=runs.T0 + 10**12)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for number, first in enumerate(range(0, RECORDS, FILE_ROWS)):
        table = kernels(first, min(FILE_ROWS, RECORDS - first), number)
        file = folder / f"{schema.KERNELS.name}-{number}{schema.CLOSED_SUFFIX}"
        with (
            pa.OSFile(str(file), "wb") as sink,
            pa.ipc.new_file(sink, table.schema, options=options) as out,
        ):
            out.write_table(table, BATCH_ROWS)
    spans = runs.loop(STEPS, PHASES, rest=5)
    phases = [span for span in spans if span["name"] in ("forward", "backward", "optimizer")]
    device = [{**span, "device": 0, "stream": 7, "uncertainty": 500} for span in phases]
    begun = runs.recording_begins(0, "start", "all")
    runs.write_closed(folder, schema.SPANS, spans)
    runs.write_closed(folder, schema.DEVICE_SPANS, device)
    runs.write_closed(folder, schema.EVENTS, [begun])
    yield tmp_path / "run"
    shutil.rmtree(tmp_path)


def test_ten_million_kernels(benchmark: Any, report: Report, run: Path) -> None:
    def analyse() -> list[peers.Run]:
        asked = ("--views", ",".join(VIEWS))
        return [peers.drive(Path(sys.executable), peers.HAIPROF, run, *asked) for _ in range(5)]

    results = benchmark.pedantic(analyse, rounds=1, iterations=1)
    size = sum(file.stat().st_size for file in run.glob("*/kernels-*.arrow"))
    benchmark.extra_info.update(
        records=RECORDS,
        seconds=sorted(round(each.work_s, 3) for each in results),
        cpu_seconds=sorted(round(each.cpu_s, 3) for each in results),
        rows=results[0].rows,
    )
    assert results[0].rows["kernels by name"] >= NAMES
    took, cpu = least([each.work_s for each in results]), least([each.cpu_s for each in results])
    memory = Measured(max(each.peak_bytes for each in results))
    kernels_of = f"{RECORDS / 1e6:g} million own kernels"
    report(
        Figure(f"{kernels_of}: three views", Unit.SECONDS, took, target=at_most(MOST_SECONDS)),
        Figure(f"{kernels_of}: CPU time", Unit.SECONDS, cpu),
        Figure(f"{kernels_of}: peak memory", Unit.BYTES, memory),
        Figure(f"{kernels_of}: each on disk", Unit.BYTES, Measured(size / RECORDS)),
    )
