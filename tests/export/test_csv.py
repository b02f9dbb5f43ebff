"""Every view as a CSV file: of recorded traces, and where nothing can be written."""

from __future__ import annotations

import csv as plain_csv
import re
from pathlib import Path

import polars as pl
import pytest
import traces

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import csv


@pytest.mark.parametrize("run", ["tb_resnet50_num_workers_0", "hta_cpu_only", "tl_mi210_gpu_only"])
def test_the_files_hold_what_the_views_return(tmp_path: Path, run: str) -> None:
    opened = Analyzer(traces.files(run)[0].parent)
    names: list[str] = []
    written = csv.write(opened, tmp_path / "out", names.append)
    assert names == list(csv.VIEWS)
    assert sorted((tmp_path / "out").iterdir()) == sorted(written)
    for name in ("steps", "operators", "op_statistics", "recommendations"):
        file = tmp_path / "out" / f"{name}.csv"
        frame = csv.VIEWS[name](opened)
        assert file.exists() == bool(frame.height)
        if frame.height:
            read = pl.read_csv(file, infer_schema_length=None)
            assert (read.columns, read.height) == (frame.columns, frame.height)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    traces.write(tmp_path / "t" / "w.pt.trace.json", traces.small())
    (tmp_path / "file").write_text("x")
    with pytest.raises(HaiprofError, match=r"file/out: cannot be written \(.*\): choose another"):
        csv.write(Analyzer(tmp_path / "t"), tmp_path / "file" / "out")


def test_a_link_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    """Another user may have put it into a folder that all may write."""
    traces.write(tmp_path / "t" / "w.pt.trace.json", traces.small())
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "out").mkdir()
    for name in csv.VIEWS:
        (tmp_path / "out" / f"{name}.csv").symlink_to(tmp_path / "victim")
    assert csv.write(Analyzer(tmp_path / "t"), tmp_path / "out")
    assert (tmp_path / "victim").read_text() == "untouched"


FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\uff1d1+1",
    "'=1",
    "'",
]
HARMLESS = ["a=b", "-5", "+3.5e-7", "aten::mm", "", "N/A", " =x", 'say "hi", =1']


def test_no_text_is_a_formula_and_numbers_stay_numbers(tmp_path: Path) -> None:
    document = traces.small()
    events = document["traceEvents"]
    host = {"ph": "X", "cat": "cpu_op", "pid": 41, "tid": 42, "ts": 1010, "dur": 1}
    names = [name for name in FORMULAS + HARMLESS if name]
    events += [{**host, "ts": 1011 + 2 * i, "name": name} for i, name in enumerate(names)]
    events[-1]["args"] = {"Input Dims": [[1]], "Input type": ["=1+1"]}
    traces.write(tmp_path / "t" / "=1.pt.trace.json", document)
    written = csv.write(Analyzer(tmp_path / "t"), tmp_path / "out")
    for file in written:
        with file.open(newline="", encoding="utf-8") as opened:
            for row in plain_csv.reader(opened):
                for cell in row:
                    number = re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", cell)
                    assert number or not cell.startswith(tuple("=+-@\t\r\n\uff1d")), (
                        file.name,
                        cell,
                    )
    with (tmp_path / "out" / "operators.csv").open(newline="", encoding="utf-8") as opened:
        rows = list(plain_csv.DictReader(opened))
    assert {row["name"].removeprefix("'") for row in rows} >= set(names)
    assert all(int(row["host_self"]) >= 0 for row in rows)


def test_the_escape_can_be_taken_back() -> None:
    texts = [*FORMULAS, *HARMLESS, None]
    frame = pl.DataFrame({"text": texts, "number": [-1.5] * len(texts)})
    for kind in (pl.String, pl.Categorical):
        result = csv.without_formulas(frame.with_columns(pl.col("text").cast(kind)))
        assert result["number"].to_list() == frame["number"].to_list()
        cells = result["text"].cast(pl.String).to_list()
        assert cells == [f"'{text}" for text in FORMULAS] + [*HARMLESS, None]
        assert [cell and cell.removeprefix("'") for cell in cells] == texts
