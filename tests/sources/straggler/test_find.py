"""Traces of the straggler study: how they are found, checked and laid out in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError

META = """\
trial_name: X
run_id: 0
dp_size: 2   # replicas
dsp_size: 1
pp_size: 1
tp_size: 4
vpp_size: 1
world_size: 8
"""
COLUMNS = {
    "dp_rank": pl.Int8(), "stage": pl.Int8(), "rank": pl.Int16(), "step": pl.Int64(),
    "optype": pl.Categorical(), "start_ts": pl.Float32(), "duration": pl.Float32(),
    "seq_id": pl.Int32(), "mc": pl.Int8(), "mb_id": pl.Int8(), "gmc": pl.Int16(),
}  # fmt: skip
Row = tuple[Any, ...]
ROWS: list[Row] = [
    (0, 0, 0, 5, "forward-compute", 0.0, 0.5, 0, 0, 3, 0),
    (0, 0, 0, 5, "optimizer", 0.5, 0.25, 0, -1, -1, -1),
    (1, 0, 4, 5, "forward-compute", 0.25, 1.0, 0, 0, 3, 0),
    (0, 0, 0, 9, "forward-compute", 0.0, 0.5, 0, 0, 3, 0),
    (1, 0, 4, 9, "forward-compute", 0.0, 0.5, 0, 0, 3, 0),
]


def write(
    folder: Path, rows: list[Row] = ROWS, meta: str | None = META, name: str = "trace-X.parquet"
) -> Path:
    folder.mkdir(exist_ok=True)
    pl.DataFrame(rows, COLUMNS, orient="row").write_parquet(folder / name)
    if meta is not None:
        (folder / "meta-X.yaml").write_text(meta)
    return folder / name


@pytest.mark.parametrize("whole_folder", [False, True])
def test_steps_follow_each_other(tmp_path: Path, whole_folder: bool) -> None:
    file = write(tmp_path / "t")
    run = Analyzer(file.parent if whole_folder else file)
    assert run.ranks == [0, 4]
    assert run.problems() == []
    assert run.run.name == ("t" if whole_folder else "trace-X")
    columns = ("rank", "name", "start", "duration", "step", "microbatch", "stage", "chunk")
    s = 1_000_000_000
    assert run.device_spans().with_columns(pl.col("name").cast(pl.String)).select(columns).sort(
        "start", "rank"
    ).rows() == [
        (0, "forward-compute", 0, s // 2, 5, 3, 0, 0),
        (4, "forward-compute", s // 4, s, 5, 3, 0, 0),
        (0, "optimizer", s // 2, s // 4, 5, None, 0, None),
        (0, "forward-compute", 5 * s // 4, s // 2, 9, 3, 0, 0),
        (4, "forward-compute", 5 * s // 4, s // 2, 9, 3, 0, 0),
    ]
    assert run.steps(rank=4).select("step", "start", "duration").rows() == [
        (5, 0, 5 * s // 4),
        (9, 5 * s // 4, s // 2),
    ]
    assert {process.world_size for process in run.run.processes} == {8}


def test_without_the_sizes_of_groups_one_line_says_so(tmp_path: Path) -> None:
    run = Analyzer(write(tmp_path, meta=None))
    (line,) = run.problems()
    assert "trace-X.parquet: has no meta-X.yaml beside it" in line
    assert run.ranks == [0, 4]


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        (META.replace("dp_size: 2", "dp_size: 3").replace("world_size: 8", "world_size: 12"),
         "meta-X.yaml: dp_size: 3, but trace-X.parquet has 2"),
        (META.replace("world_size: 8", "world_size: 9"), "world_size: 9: .* is 8"),
        (META.replace("dp_size: 2 ", "dp_size: two "), "dp_size: 'two': give a number"),
        (META + "dp_size", "line 9, 'dp_size': write it as name: value"),
        (META + "#" * 70_000, "is larger than 64 KiB"),
    ],
)  # fmt: skip
def test_sizes_that_contradict_the_trace_are_refused(tmp_path: Path, meta: str, says: str) -> None:
    with pytest.raises(HaiprofError, match=says):
        Analyzer(write(tmp_path, meta=meta))


def test_sequence_parallel_ranks_may_count_as_replicas(tmp_path: Path) -> None:
    meta = META.replace("dp_size: 2   # replicas", "dp_size: 1").replace(
        "dsp_size: 1", "dsp_size: 2"
    )
    assert Analyzer(write(tmp_path, meta=meta)).problems() == []


def test_impossible_operations_are_left_out_and_counted(tmp_path: Path) -> None:
    bad: list[Row] = [
        (0, 0, 0, 5, "forward-compute", float("nan"), 0.5, 0, 0, 3, 0),
        (0, 0, 0, 5, "forward-compute", 0.0, float("inf"), 0, 0, 3, 0),
        (0, 0, 0, 5, "forward-compute", 0.0, -0.5, 0, 0, 3, 0),
        (0, 0, -1, 5, "forward-compute", 0.0, 0.5, 0, 0, 3, 0),
        (0, 0, 0, -5, "forward-compute", 0.0, 0.5, 0, 0, 3, 0),
        (0, 0, 0, 5, None, 0.0, 0.5, 0, 0, 3, 0),
        (None, 0, 0, 5, "optimizer", 0.0, 0.5, 0, 0, 3, 0),
    ]
    run = Analyzer(write(tmp_path, [*ROWS, *bad]))
    (line,) = run.problems()
    assert "7 operations have no rank, stage, step, name or time" in line
    assert run.device_spans().height == len(ROWS)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "has no operation with a rank, a step and a time"),
        ([*ROWS, (2, 0, 4, 5, "optimizer", 0.0, 0.5, 0, 0, 3, 0)], "contradict each other"),
        ([(1 - row[0], *row[1:]) for row in ROWS], "contradict each other"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(tmp_path: Path, rows: list[Row], says: str) -> None:
    with pytest.raises(HaiprofError, match=says):
        Analyzer(write(tmp_path, rows))


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    file = write(tmp_path)
    pl.read_parquet(file).with_columns(pl.col("step").cast(pl.String)).write_parquet(file)
    with pytest.raises(HaiprofError, match="column step is String: write integers"):
        Analyzer(file)


def test_several_traces_in_a_folder_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, name="trace-Y.parquet")
    with pytest.raises(HaiprofError, match=r"2 traces of jobs: trace-X\.parquet, trace-Y\.parquet"):
        Analyzer(tmp_path)


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b""])
def test_what_only_looks_like_a_trace_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trace-X.parquet").write_bytes(content)
    with pytest.raises(HaiprofError) as error:
        Analyzer(tmp_path / "trace-X.parquet")
    assert len(str(error.value).splitlines()) == 1


def test_a_cut_trace_is_one_line(tmp_path: Path) -> None:
    file = write(tmp_path)
    whole = file.read_bytes()
    # Its description at the end is whole, what it describes is not.
    file.write_bytes(whole[:4] + bytes(300) + whole[304:])
    with pytest.raises(HaiprofError) as error:
        Analyzer(file)
    assert len(str(error.value).splitlines()) == 1


def test_other_parquet_files_are_none(tmp_path: Path) -> None:
    pl.DataFrame({"rank": [1]}).write_parquet(tmp_path / "trace-X.parquet")
    with pytest.raises(HaiprofError, match=r"trace-X\.parquet"):
        Analyzer(tmp_path / "trace-X.parquet")
