"""Timelines of Megatron under another name: recognised by content, of one run or of several."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import other_tools
import polars as pl
import pytest
from real_data import DATA, need

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError

SPANS = ("rank", "start", "duration", "name", "step", "microbatch", "stage", "chunk")
Rows = list[dict[str, Any]]


def run_of(stages: int, threads: list[int], length: int) -> Rows:
    """One iteration of a run: a forward on each rank."""
    rows: Rows = []
    for stage in range(stages):
        for thread in threads:
            row = {"name": "forward", "pid": stage, "tid": thread}
            arguments = {"iteration": 3, "microbatch": 0, "pp_rank": stage, "model_chunk": 0}
            rows.append({**row, "ph": "B", "ts": 10 * stage, "args": {"iteration": 3}})
            rows.append({**row, "ph": "E", "ts": 10 * stage + length, "args": arguments})
    return sorted(rows, key=lambda row: (row["ts"], row["pid"]))


def spans(run: Analyzer) -> pl.DataFrame:
    return run.device_spans().with_columns(pl.col("name").cast(pl.String)).select(SPANS)


def test_two_runs_in_one_file_are_sessions_of_the_same_ranks(tmp_path: Path) -> None:
    file = tmp_path / "merged_trace.json"
    file.write_text(json.dumps(run_of(2, [1], 20) + run_of(2, [0], 5)))
    run = Analyzer(file)
    assert run.ranks == [0, 1]
    assert "contains 2 runs" in run.problems()[0]
    sessions = run.steps().select("rank", "session", "step").sort("session", "rank").rows()
    assert sessions == [(0, 1, 3), (1, 1, 3), (0, 2, 3), (1, 2, 3)]
    # The second run begins where the first ends.
    first, second = 30_000, 30_000 + 10_000
    found = spans(run).sort("start").select("rank", "start", "duration", "stage").rows()
    assert found == [
        (0, 0, 20_000, 0),
        (1, 10_000, 20_000, 1),
        (0, first, 5_000, 0),
        (1, second, 5_000, 1),
    ]
    assert run.pipeline().steps["duration"].to_list() == [30_000]


def test_threads_of_one_run_are_ranks_of_the_tensor_group(tmp_path: Path) -> None:
    file = tmp_path / "renamed.json"
    file.write_text(json.dumps({"traceEvents": run_of(2, [0, 1], 20)}))
    run = Analyzer(file)
    assert run.ranks == [0, 1, 2, 3]
    assert run.problems() == []
    assert run.device_spans().sort("rank")["stage"].to_list() == [0, 0, 1, 1]


def test_a_real_merged_trace_has_the_intervals_of_its_runs(tmp_path: Path) -> None:
    with tarfile.open(need(DATA / "other" / "formats.tar.xz")) as archive:
        archive.extract("formats/megatron_merged_trace.json", tmp_path, filter="data")
    merged = Analyzer(tmp_path / "formats" / "megatron_merged_trace.json")
    whole = merged.steps().filter(pl.col("session") == 2)["start"].min()
    # Its second run is a timeline that is there by itself, too.
    alone = other_tools.unpack("megatron", tmp_path / "data")
    alone /= "data-1-pipeline-4-tensor-1-pp-aggregated-iter10.json"
    late = spans(merged).filter(pl.col("start") >= whole).with_columns(pl.col("start") - whole)
    assert sorted(late.rows()) == sorted(spans(Analyzer(alone)).rows())
    assert spans(merged).height == 2 * late.height == 512


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"ph": "B", "args": {"iteration": 1}}, {"ph"', "is cut off or damaged"),
        ('[{"ph": "B", "args": {"iteration": 1}}]', "no event has a time, a pid and a tid"),
    ],
)
def test_a_damaged_one_fails_in_one_line(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "merged.json"
    file.write_text(content)
    with pytest.raises(HaiprofError, match=said) as error:
        Analyzer(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
