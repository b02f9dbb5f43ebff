"""The critical path over an exported trace: rows on it are marked, and arrows lead along it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import perfetto_trace
import pytest
import traces

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import chrome, critical_path, perfetto


def _document() -> dict[str, Any]:
    """Two steps in which the host waits for a kernel; nothing waits for another one."""
    document = traces.small()
    host = {"ph": "X", "pid": 41, "tid": 42, "cat": "cuda_runtime"}
    for step in range(2):
        at = 1000 + 100 * step
        document["traceEvents"] += [
            {**host, "name": "cudaLaunchKernel", "ts": at + 27, "dur": 4,
             "args": {"correlation": 20 + step}},
            {"ph": "X", "cat": "kernel", "name": "aside", "pid": 0, "tid": 9, "ts": at + 33,
             "dur": 2, "args": {"correlation": 20 + step, "device": 0, "stream": 9}},
            {**host, "name": "cudaDeviceSynchronize", "ts": at + 62, "dur": 10,
             "args": {"correlation": 30 + step}},
        ]  # fmt: skip
    return document


@pytest.fixture
def run(tmp_path: Path) -> Analyzer:
    return Analyzer(traces.write(tmp_path / "t.pt.trace.json", _document()).parent)


def test_what_is_on_the_path_is_marked_in_chromes_json(run: Analyzer, tmp_path: Path) -> None:
    paths = critical_path.paths(run, None, 1)
    (file,) = chrome.write(run, tmp_path / "out.json", paths=paths)
    events = json.loads(file.read_text())["traceEvents"]
    marked = [
        (each["name"], each["ts"] % 1000)
        for each in events
        if each.get("args", {}).get("critical") == 1
    ]
    assert sorted(marked) == [
        ("ProfilerStep#1", 100.0), ("aten::mm", 110.0), ("cudaDeviceSynchronize", 162.0),
        ("gemm", 140.0),
    ]  # fmt: skip
    arrows = [each for each in events if each.get("cat") == "critical_path"]
    # From the operator that launched the kernel to it, and back to the call that waited.
    found = [(e["ph"], e["pid"], e["tid"], round(e["ts"] % 1000, 3)) for e in arrows]
    assert found == [
        ("s", 1 << 30, 42, 119.999), ("s", 0, 7, 169.999), ("f", 0, 7, 140.0),
        ("f", 1 << 30, 42, 172.0),
    ]  # fmt: skip
    assert [each["id"] for each in arrows] == [1, 2, 1, 2]
    # Without it, nothing is.
    (plain,) = chrome.write(run, tmp_path / "plain.json")
    assert "critical" not in plain.read_text()


def test_in_perfetto_it_is_a_track_too(run: Analyzer, tmp_path: Path) -> None:
    file = tmp_path / "run.pftrace"
    perfetto.write(run, file, paths=critical_path.paths(run, None, None))
    trace = perfetto_trace.read(file)
    elements = [each for each in trace.slices if each.track[1] == "critical path"]
    path = run.critical_path()["rank 0"]
    assert [(each.start, each.end) for each in sorted(elements, key=lambda each: each.start)] == [
        (start, start + duration)
        for start, duration in path.path.select("start", "duration").rows()
    ]
    marked = {each.name for each in trace.slices if each.args.get("critical") == 1}
    assert {"gemm", "cudaDeviceSynchronize"} <= marked
    assert "aside" not in marked
    kernel = next(
        each for each in trace.slices if each.name == "gemm" and each.args.get("critical")
    )
    ids = {
        number: [each.name for each in trace.slices if number in each.flows]
        for number in kernel.flows
    }
    # One arrow from its launch, one that reaches it along the path and one that leaves it.
    assert sorted(map(len, ids.values())) == [2, 2, 2]


def test_an_unknown_step_is_an_error(run: Analyzer) -> None:
    with pytest.raises(HaiprofError, match="there is no step 7"):
        critical_path.paths(run, None, 7)
