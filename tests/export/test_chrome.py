"""Chrome's JSON of a run: read back it gives the same tables, and it is what viewers expect."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import chrome
from haiprof.export.json_members import microseconds


def _rows(run: Analyzer, table: schema.Table, at: int) -> pl.DataFrame:
    columns = [column.name for column in table.columns]
    frame = run.read(run.run.processes[at], table, columns)
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String)).sort(columns)


@pytest.mark.parametrize("run", traces.runs())
def test_what_is_read_back_is_what_was_exported(tmp_path: Path, run: str) -> None:
    opened = Analyzer(traces.files(run)[0].parent)
    files = chrome.write(opened, tmp_path / "out")
    assert len(files) == len(opened.run.processes)
    again = Analyzer(tmp_path / "out")
    assert again.problems() == []
    for at, (before, after) in enumerate(
        zip(opened.run.processes, again.run.processes, strict=True)
    ):
        assert (after.rank, after.world_size) == (before.rank, before.world_size)
        assert after.gpus == before.gpus
        assert before.trace is not None
        assert after.trace is not None
        assert after.trace.distributed == before.trace.distributed
        for name, table in schema.TABLES.items():
            assert _rows(again, table, at).equals(_rows(opened, table, at)), (name, before.label)


def test_a_run_of_ours_is_read_back_with_its_kernels_steps_and_phases(tmp_path: Path) -> None:
    opened = Analyzer(runs.make_gpu_run(tmp_path / "run", ranks=2))
    labels: list[str] = []
    files = chrome.write(opened, tmp_path / "out", on_process=labels.append)
    assert labels == ["rank 0", "rank 1"]
    assert [file.name for file in files] == ["rank_0.json.gz", "rank_1.json.gz"]
    again = Analyzer(tmp_path / "out")
    assert again.problems() == []
    assert again.ranks == [0, 1]
    columns = ("start", "duration", "kind", "name", "device", "stream", "correlation")
    for at in (0, 1):
        kernels = _rows(opened, schema.KERNELS, at)
        assert kernels.height == 70
        assert _rows(again, schema.KERNELS, at).select(columns).equals(kernels.select(columns))
        spans = _rows(opened, schema.SPANS, at)
        wanted = spans.select(
            "start",
            "duration",
            "thread",
            pl.when(pl.col("category") == "step")
            .then(pl.format("ProfilerStep#{}", "step"))
            .otherwise("name")
            .alias("name"),
            # A trace has ranges of the user where haiprof knows phases.
            pl.col("category").replace({"phase": "user", "dataloader": "user"}),
            pl.when(pl.col("category") == "step").then("step").alias("step"),
        )
        found = _rows(again, schema.SPANS, at).select(wanted.columns)
        assert found.sort(wanted.columns).equals(wanted.sort(wanted.columns))
        device = ("start", "duration", "name", "device", "stream")
        assert (
            _rows(again, schema.DEVICE_SPANS, at)
            .select(device)
            .sort(device)
            .equals(_rows(opened, schema.DEVICE_SPANS, at).select(device).sort(device))
        )
        counted = ("time", "metric", "value")
        assert (
            _rows(again, schema.SAMPLES, at)
            .select(counted)
            .sort(counted)
            .equals(_rows(opened, schema.SAMPLES, at).select(counted).sort(counted))
        )


def test_a_file_is_plain_json_with_what_tools_look_for(tmp_path: Path) -> None:
    name = 'a"b\\\n\u202e</script>'
    run = runs.write_run(tmp_path / "run")
    process = runs.write_process(run, rank=3, world_size=4)
    row = {**runs.span(0.0000015, 1, "op", name), "shapes": "no json;", "stack": name}
    row |= {"attributes": json.dumps({"of": name})}
    odd = {**runs.span(5, 1, "user", "odd"), "attributes": '{"loss": NaN}', "types": "null"}
    runs.write_closed(process, schema.SPANS, [row, odd])
    kernel = runs.activity(1, 1, blocks_per_sm=float("inf"), occupancy=float("nan"), bandwidth=0.5)
    runs.write_closed(process, schema.KERNELS, [kernel])
    bad = [runs.sample(1, "a.b.c", value) for value in (float("nan"), float("inf"), 2.5)]
    runs.write_closed(process, schema.SAMPLES, bad)
    runs.write_closed(process, schema.EVENTS, [runs.event(1, "mark", name)])
    file = tmp_path / "one.json"
    assert chrome.write(Analyzer(run), file) == [file]
    text = file.read_text()
    # HTA finds a file's rank by this, blank included.
    assert '"rank": 3' in text
    document = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    events: list[dict[str, Any]] = document["traceEvents"]
    (op,) = [event for event in events if event.get("cat") == "cpu_op"]
    assert op["name"] == op["args"]["Call stack"] == name
    assert op["args"]["Input Dims"] == "no json;"
    assert op["args"]["attributes"] == {"of": name}
    (user,) = [event["args"] for event in events if event["name"] == "odd"]
    assert user == {"attributes": '{"loss": NaN}', "Input type": None}
    (ran,) = [event["args"] for event in events if event.get("cat") == "kernel"]
    assert ran == {"device": 0, "stream": 7, "memory bandwidth (GB/s)": 0.5}
    start = document["baseTimeNanoseconds"] + round(op["ts"] * 1000)
    assert (start, op["dur"]) == (runs.T0 + 2, 1000.0)
    assert [event["args"] for event in events if event["ph"] == "C"] == [{"value": 2.5}]
    (mark,) = [event for event in events if event.get("cat") == "event"]
    assert mark["args"]["text"] == name
    names = {event["args"].get("name") for event in events if event["ph"] == "M"}
    assert {"rank 3", "thread 1"} <= names


def test_times_before_the_epoch_of_a_file_are_negative() -> None:
    ns = pl.DataFrame({"ns": [-1, -1500, 0, 999, 1_000_001]})
    texts = ns.select(microseconds(pl.col("ns"))).to_series().to_list()
    assert texts == ["-0.001", "-1.500", "0.000", "0.999", "1000.001"]


def test_a_file_holds_one_process(tmp_path: Path) -> None:
    opened = Analyzer(runs.make_run(tmp_path / "run", ranks=2))
    with pytest.raises(HaiprofError, match=r"these are 2: choose one with --rank, or give a"):
        chrome.write(opened, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()
    chrome.write(opened, tmp_path / "out.json.gz", rank=1)
    with gzip.open(tmp_path / "out.json.gz") as file:
        assert json.load(file)["distributedInfo"] == {"rank": 1, "world_size": 2}


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    opened = Analyzer(runs.make_gpu_run(tmp_path / "run"))
    for name in ("a", "b"):
        chrome.write(opened, tmp_path / name)
    first, second = (tmp_path / name / "rank_0.json.gz" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
