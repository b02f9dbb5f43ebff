"""The folder for TensorBoard's plugin: named as it wants, without what it takes amiss."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.export import tensorboard

#: The plugin's own pattern of file names.
_WORKER = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")


def _document(file: Path) -> dict[str, Any]:
    with gzip.open(file) as opened:
        document: dict[str, Any] = json.load(opened)
    return document


def test_each_rank_is_a_worker(tmp_path: Path) -> None:
    opened = Analyzer(runs.make_gpu_run(tmp_path / "run", ranks=2))
    files = tensorboard.write(opened, tmp_path / "out")
    assert sorted((tmp_path / "out").iterdir()) == sorted(files)
    workers = [found[1] for file in files if (found := _WORKER.match(file.name))]
    assert workers == ["n0_1000", "n0_1001"]
    for rank, file in enumerate(files):
        document = _document(file)
        assert document["distributedInfo"]["rank"] == rank
        assert [gpu["id"] for gpu in document["deviceProperties"]] == [0]
        steps = [e for e in document["traceEvents"] if re.fullmatch(r"ProfilerStep#\d+", e["name"])]
        assert len(steps) == opened.steps(rank=rank).height
        for event in document["traceEvents"]:
            assert isinstance(event["name"], str)
            if event["ph"] == "X":
                assert event["cat"]
                assert event["dur"] >= 0


def test_spans_of_a_worker_keep_it(tmp_path: Path) -> None:
    opened = Analyzer(traces.files("tb_resnet50_num_workers_0")[0].parent)
    files = tensorboard.write(opened, tmp_path / "out")
    found = [_WORKER.match(file.name) for file in files]
    assert len({each[1] for each in found if each}) == 1
    assert len({each[2] for each in found if each}) == 2
    again = Analyzer(tmp_path / "out")
    assert [p.trace.span for p in again.run.processes if p.trace] == [1, 2]
    assert again.operators().height == opened.operators().height


def test_what_the_plugin_takes_amiss_is_left_out(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    process = runs.write_process(run)
    rows = [runs.device_span(0, 5, name, 0) for name in ("ProfilerStep#3", "forward")]
    runs.write_closed(process, schema.DEVICE_SPANS, rows)
    memory = [
        {"time": runs.T0, "kind": kind, "device": device, "address": 1, "bytes": 8, "thread": 1}
        for kind, device in (("cpu", None), ("hip", 0), ("77", 0))
    ]
    runs.write_closed(process, schema.ALLOCATIONS, memory)
    (file,) = tensorboard.write(Analyzer(run), tmp_path / "out")
    events = _document(file)["traceEvents"]
    assert [e["name"] for e in events if e.get("cat") == "gpu_user_annotation"] == ["forward"]
    kinds = [e["args"]["Device Type"] for e in events if e["name"] == "[memory]"]
    assert kinds == [0, 1, 1]
