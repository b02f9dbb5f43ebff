"""A million kernel-shaped records from the ring to the file: bytes, CPU, and equality."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from figures import Figure, Measured, Unit, at_most
from processes import KeptRecorder, cpu_seconds
from real_data import DATA
from recording import wait_recorded
from reporting import Report

RECORDS = 1_000_000
PAYLOAD = np.dtype(
    [
        ("start", "<u8"), ("duration", "<u4"), ("name", "<u4"), ("correlation", "<u8"),
        ("stream", "<u4"), ("device", "<u2"), ("registers", "<u2"), ("grid", "<u4", 3),
        ("block", "<u2", 3), ("flags", "<u2"), ("shared_memory", "<u4"),
    ]
)  # fmt: skip
TRACE = "traces/param_resnet/worker0.pt.trace.json.gz"


def kernel_names() -> tuple[list[str], str]:
    """Demangled kernel names of a real trace; made-up ones of the same kind where there is none."""
    trace = DATA / TRACE
    if trace.exists():
        with gzip.open(trace) as file:
            events = json.load(file)["traceEvents"]
        names = {e["name"] for e in events if e.get("cat", "").lower() == "kernel"}
        return sorted(n.replace("\n", " ") for n in names), "a ResNet trace"
    functors = ("AddFunctor", "MulFunctor", "FillFunctor", "CompareGT", "BUnaryFunctor")
    names = {
        f"void at::native::vectorized_elementwise_kernel<{width}, at::native::{functor}<{kind}>, "
        f"at::detail::Array<char*, {count}>>(int, at::native::{functor}<{kind}>)"
        for width in (2, 4, 8)
        for functor in functors
        for kind in ("float", "c10::Half", "c10::BFloat16")
        for count in (2, 3)
    }
    return sorted(names), "made up"


def test_a_million_kernel_records(
    benchmark: Any, report: Report, native_programs: Path, shm: Path, tmp_path: Path
) -> None:
    names, origin = kernel_names()
    (tmp_path / "names").write_text("\n".join(names) + "\n")
    recorder = KeptRecorder(shm, tmp_path / "bench")

    def record() -> float:
        before = cpu_seconds(recorder.pid)
        pusher = subprocess.Popen(
            [native_programs / "kernel_pusher", recorder.rings / "1.ring", tmp_path / "bench",
             "node", tmp_path / "names", tmp_path / "expected", str(RECORDS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        pusher.communicate(b"\n")
        assert pusher.returncode == 0
        while list(recorder.rings.glob("*.ring")):
            os.sched_yield()
        return cpu_seconds(recorder.pid) - before

    seconds = benchmark.pedantic(record, rounds=1, iterations=1)
    recorder.release()
    wait_recorded(shm, 120)

    files = sorted(tmp_path.glob("bench/node#0/kernels-*.arrow"), key=lambda p: len(p.name))
    table = pa.concat_tables(
        (pa.ipc.open_file(str(p)).read_all() for p in files), promote_options="default"
    )
    size = sum(p.stat().st_size for p in files)
    wanted = np.fromfile(tmp_path / "expected", PAYLOAD)
    assert table.num_rows == RECORDS == len(wanted)
    for column in ("start", "duration", "correlation", "stream", "registers", "shared_memory"):
        got = table[column].to_numpy()
        assert np.array_equal(got.astype(np.int64), wanted[column].astype(np.int64)), column
    for i, axis in enumerate("xyz"):
        assert np.array_equal(table[f"grid_{axis}"].to_numpy(), wanted["grid"][:, i])
        assert np.array_equal(table[f"block_{axis}"].to_numpy(), wanted["block"][:, i])
    assert table["name"].cast(pa.utf8()).to_pylist() == [names[i] for i in wanted["name"]]

    benchmark.extra_info.update(names=len(names), names_from=origin)
    on_disk, cpu = Measured(size / RECORDS), Measured(seconds / RECORDS)
    report(
        Figure("a kernel record on disk", Unit.BYTES, on_disk, target=at_most(10)),
        Figure("the recorder's CPU time for it", Unit.SECONDS, cpu),
    )
