"""Timelines of Megatron's tracer: of all ranks in one file, and of each rank as it wrote it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import other_tools
import polars as pl
import pytest

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError

ALL = "data-1-pipeline-4-tensor-1-pp-aggregated.json"
Rows = list[dict[str, Any]]


def write(file: Path, rows: Any) -> Path:
    file.write_text(json.dumps(rows))
    return file


def scope(name: str, start: int, end: int, **arguments: Any) -> Rows:
    return [
        {"name": name, "ph": "B", "rel_ts": start},
        {"name": name, "ph": "E", "rel_ts": end, **arguments},
    ]


def iteration(pad: int, duration: int, *scopes: Rows, **arguments: Any) -> Rows:
    return [
        {"name": "iteration", "ph": "B", "pad_before": pad, **arguments},
        *(row for each in scopes for row in each),
        {"name": "iteration", "ph": "E", "rel_ts": duration - 1, "duration_wall": duration},
    ]


def test_every_interval_of_a_real_timeline_is_there(tmp_path: Path) -> None:
    folder = other_tools.unpack("megatron", tmp_path / "data")
    opened: dict[tuple[int, str], dict[str, Any]] = {}
    pairs = []
    for row in json.loads((folder / ALL).read_text()):
        key = (row["pid"], row["name"])
        if row["ph"] == "B":
            opened[key] = row
        elif row["ph"] == "E":
            begun, arguments = opened.pop(key), row["args"]
            pairs.append(
                (
                    row["pid"],
                    row["name"],
                    begun["ts"] * 1000,
                    (row["ts"] - begun["ts"]) * 1000,
                    arguments["iteration"],
                    arguments["microbatch"],
                    arguments["pp_rank"],
                    arguments["model_chunk"],
                )
            )
    run = Analyzer(folder / ALL)
    assert run.ranks == [0, 1, 2, 3]
    assert run.problems() == []
    columns = ("rank", "name", "start", "duration", "step", "microbatch", "stage", "chunk")
    spans = run.device_spans().with_columns(pl.col("name").cast(pl.String)).select(columns)
    assert sorted(spans.rows()) == sorted(pairs)
    assert len(pairs) == 5120
    steps = run.steps(rank=0)
    assert steps["step"].to_list() == list(range(20))
    assert run.events(kind="mark").height == 4 * 20 * 3


def test_the_schedule_and_the_critical_stage_of_a_real_timeline(tmp_path: Path) -> None:
    folder = other_tools.unpack("megatron", tmp_path / "data")
    found = Analyzer(folder / ALL).pipeline(step=10)
    (step,) = found.steps.to_dicts()
    assert step["schedule"] == "interleaved 1F1B"
    assert (step["stages"], step["chunks"], step["microbatches"]) == (4, 4, 8)
    assert step["ideal"] == pytest.approx(3 / 35)
    busy: dict[int, int] = defaultdict(int)
    for rank, duration in found.jobs.select("rank", "duration").iter_rows():
        busy[rank] += duration
    assert found.lanes.sort("rank")["busy"].to_list() == [busy[rank] for rank in range(4)]
    assert step["bubble"] == pytest.approx(1 - sum(busy.values()) / (4 * step["duration"]))
    # The last stage has the loss and the vocabulary besides its layers.
    assert found.stages["stage"][0] == step["critical"] == max(busy, key=lambda rank: busy[rank])
    assert found.stages.sort("waited_for", descending=True)["stage"][0] == 3


def test_the_ranks_own_timelines_are_laid_out_by_the_slowest(tmp_path: Path) -> None:
    forward, backward = {"microbatch": 0, "model_chunk": 0, "pp_rank": 0}, {"microbatch": 1}
    ranks = [
        [
            *iteration(0, 100, scope("forward", 10, 40, **forward)),
            *iteration(5, 300, scope("forward", 7, 9, **forward)),
        ],
        [
            *iteration(3, 120, scope("forward", 50, 90)),
            *iteration(4, 200, scope("backward", 1, 2, **backward)),
        ],
    ]
    for number, rows in enumerate(ranks):
        write(tmp_path / f"benchmark-data-0-pipeline-{number}-tensor-0.json", rows)
    write(tmp_path / "benchmark-data-1-pipeline-2-tensor-1-aggregated.json", [])
    run = Analyzer(tmp_path)
    spans = run.device_spans().sort("rank", "start")
    first, second = 3, 3 + 120 + 5
    assert spans.select("rank", "start", "duration", "step", "stage").rows() == [
        (0, first + 10, 30, 1, 0),
        (0, second + 7, 2, 2, 0),
        (1, first + 50, 40, 1, 1),
        (1, second + 1, 1, 2, 1),
    ]
    assert run.steps().sort("rank", "step")["start"].to_list() == [first, second] * 2


def test_a_rank_says_who_it_is(tmp_path: Path) -> None:
    me = {"g_rk": 6, "dev": 2, "pp_rk": 3, "dp_rk": 0, "tp_rk": 0}
    rows = iteration(0, 100, scope("forward", 10, 40, microbatch=1, **me), iteration=41)
    log = write(tmp_path / "benchmark-data-0-pipeline-3-tensor-0.json", rows)
    spans = Analyzer(log).device_spans()
    assert spans.select("rank", "device", "stage", "step", "microbatch").rows() == [
        (6, 2, 3, 41, 1)
    ]


def test_distances_of_older_versions(tmp_path: Path) -> None:
    rows = [
        {"name": "iteration", "ph": "B", "delta": 7},
        {"name": "forward", "ph": "B", "delta": 10},
        {"name": "backward", "ph": "B", "delta": 1},
        {"name": "backward", "ph": "E", "delta": 20},
        {"name": "forward", "ph": "E", "delta": 5},
        {"name": "iteration", "ph": "E", "delta": 4},
        {"name": "loss", "ph": "i", "delta": 4},
        {"name": "iteration", "ph": "B", "delta": 2},
        {"name": "forward", "ph": "B", "delta": 1},
        {"name": "forward", "ph": "E", "delta": 1},
        {"name": "iteration", "ph": "E", "delta": 1},
    ]
    log = write(tmp_path / "benchmark-data-0-pipeline-0-tensor-0.json", rows)
    run = Analyzer(log)
    spans = run.device_spans().sort("start")
    assert spans.select("name", "start", "duration").rows() == [
        ("forward", 17, 26), ("backward", 18, 20), ("forward", 7 + 40 + 2 + 1, 1)
    ]  # fmt: skip
    (problem,) = run.problems()
    assert "1 events outside of an iteration" in problem


def test_the_order_of_ranks_is_megatrons(tmp_path: Path) -> None:
    rows = []
    for pid in range(4):
        for tid in range(2):
            args = {"iteration": 0, "microbatch": pid, "model_chunk": tid}
            for ph, ts in (("B", pid), ("E", pid + 1.5)):
                rows.append(
                    {"name": "forward", "ph": ph, "ts": ts, "pid": pid, "tid": tid, "args": args}
                )
    file = write(tmp_path / "data-2-pipeline-2-tensor-2-pp-aggregated.json", rows)
    spans = Analyzer(file).device_spans().sort("rank")
    # tensor changes fastest, then data, then pipeline; pid is data * 2 + pipeline.
    assert spans["microbatch"].to_list() == [0, 0, 2, 2, 1, 1, 3, 3]
    assert spans["chunk"].to_list() == [0, 1] * 4
    assert spans["duration"].unique().to_list() == [1500]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "is cut off or damaged at character"),
        ("{}", "is not a list of events"),
        ("[]", "none of its events is of it"),
        ('[{"name": "forward", "ph": "B", "ts": 1, "pid": 0, "tid": 0}]', "has no interval"),
    ],
)
def test_a_timeline_that_cannot_be_read_says_why(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "data-1-pipeline-1-tensor-1-pp-aggregated.json"
    file.write_text(content)
    with pytest.raises(HaiprofError, match=said) as raised:
        Analyzer(file)
    assert "\n" not in str(raised.value)


def test_odd_rows_are_counted(tmp_path: Path) -> None:
    rows: Rows = [
        {"name": "forward", "ph": "B", "ts": 1, "pid": 0, "tid": 0},
        {"name": "forward", "ph": "E", "ts": 2, "pid": 0, "tid": 0},
        {"name": "forward", "ph": "E", "ts": 3, "pid": 0, "tid": 0},
        {"name": "forward", "ph": "B", "ts": 4, "pid": 0, "tid": 0},
        {"name": "forward", "ph": "q", "ts": 4, "pid": 0, "tid": 0},
        {"name": "forward", "ph": "B", "ts": True, "pid": 0, "tid": 0},
        {"name": "forward", "ph": "B", "ts": 1e300, "pid": 0, "tid": 0},
    ]
    file = write(tmp_path / "data-1-pipeline-1-tensor-1-pp-aggregated.json", rows)
    run = Analyzer(file)
    assert run.device_spans().height == 1
    counts = [line.split(": ")[1].split(" events ") for line in run.problems()]
    assert dict((why, int(count)) for count, why in counts) == {
        "that end what has not begun": 1,
        "that begin what does not end": 1,
        "of an unknown 'ph'": 1,
        "without a time, a pid or a tid": 2,
    }


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}-data-1-pipeline-1-tensor-1-aggregated.json", [])
    with pytest.raises(HaiprofError, match="contains 2 timelines of Megatron: a-data"):
        Analyzer(tmp_path)
    none = write(tmp_path / "data-0-pipeline-1-tensor-1-aggregated.json", [])
    with pytest.raises(HaiprofError, match="has the sizes of no job in its name"):
        Analyzer(none)
    with pytest.raises(HaiprofError, match="read from disk only"):
        Analyzer("memory://x/benchmark-data-0-pipeline-0-tensor-0.json")
