"""Tables as arrays: what is closed and sound is read without a frame, and is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import runs

from haiprof import schema
from haiprof.runs import Process
from haiprof.sources import arrays, tables
from haiprof.sources.own import open_run
from haiprof.sources.table_cache import caching_tables

COLUMNS = ("start", "duration", "category", "name", "thread", "step")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    runs.write_run(tmp_path / "run")
    folder = runs.write_process(tmp_path / "run", 0)
    later = [{**row, "start": row["start"] + 10**10} for row in runs.loop(7)]
    for number, part in enumerate((runs.loop(5), later)):
        runs.write_closed(folder, schema.SPANS, part, number)
    runs.write_closed(folder, schema.SAMPLES, runs.host_samples(5))
    return tmp_path / "run"


def process(run: Path) -> Process:
    (only,) = open_run(run).processes
    return only


def plain(found: arrays.Arrays) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: v.tolist() for name, v in found.numbers.items()}
    for name, texts in found.texts.items():
        columns[name] = [None if code < 0 else texts.words[code] for code in texts.codes.tolist()]
    return columns


def of_tables(run: Path, table: schema.Table, columns: tuple[str, ...], keep: Any) -> Any:
    return plain(arrays.of_frame(tables.read(process(run), table, columns, keep).frame))


def frames_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    original = tables.read

    def counted(*args: Any, **kwargs: Any) -> tables.Read:
        asked.append(args[1].name)
        return original(*args, **kwargs)

    monkeypatch.setattr(tables, "read", counted)
    return asked


@pytest.mark.parametrize("keep", [None, {"category": ("step",)}, {"category": ("gc",)}])
def test_they_are_what_the_frame_has(run: Path, keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = of_tables(run, schema.SPANS, COLUMNS, keep)
    asked = frames_read(monkeypatch)
    found = arrays.read(process(run), schema.SPANS, COLUMNS, keep)
    assert not asked
    assert plain(found) == expected
    assert found.rows == len(expected["start"])
    assert (found.cut, found.problems) == (0, [])


def test_numbers_and_texts_that_are_null(run: Path) -> None:
    wanted = ("time", "metric", "instance", "value", "flags")
    found = arrays.read(process(run), schema.SAMPLES, wanted)
    assert plain(found) == of_tables(run, schema.SAMPLES, wanted, None)
    assert found.texts["instance"].among("nobody").sum() == 0
    assert found.texts["metric"].among("proc.rss.bytes", "proc.cpu.percent").sum() == 10


def test_a_table_without_files_has_no_rows(run: Path) -> None:
    found = arrays.read(process(run), schema.DEVICE_SPANS, ("start", "name", "step"))
    assert found.rows == 0
    assert found.numbers["start"].dtype == np.int64
    assert not found.texts["name"].among("forward").size


def test_a_damaged_file_is_read_as_a_frame(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file, _) = sorted(run.glob("*/spans-*.arrow"))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 3])
    expected = tables.read(process(run), schema.SPANS, COLUMNS)
    asked = frames_read(monkeypatch)
    found = arrays.read(process(run), schema.SPANS, COLUMNS)
    assert asked == ["spans"]
    assert plain(found) == plain(arrays.of_frame(expected.frame))
    assert (found.cut, found.problems) == (expected.cut, expected.problems)


def test_times_that_cannot_be_are_left_out_and_named(run: Path) -> None:
    (folder,) = run.glob("*#0")
    row = {**runs.loop(1)[0], "start": 2**62 + 2**61}
    runs.write_closed(folder, schema.SPANS, [row], 9)
    found = arrays.read(process(run), schema.SPANS, COLUMNS)
    assert found.numbers["start"].max() < 2**62
    assert len(found.problems) == 1


def test_within_an_answer_that_keeps_tables_each_is_read_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = of_tables(run, schema.SPANS, COLUMNS, None)
    with caching_tables():
        tables.read(process(run), schema.SPANS)
        for file in run.glob("*/spans-*.arrow"):
            file.unlink()
        assert plain(arrays.read(process(run), schema.SPANS, COLUMNS)) == expected


def test_inference_is_shown_as_frames_show_it(tmp_path: Path) -> None:
    runs.write_run(tmp_path / "run")
    folder = runs.write_process(tmp_path / "run", 0)
    rows = [
        {**row, "step": row["step"] + schema.INFERENCE,
         "category": "inference_step" if row["category"] == "step" else row["category"]}
        for row in runs.loop(4)
    ]  # fmt: skip
    runs.write_closed(folder, schema.SPANS, rows)
    found = arrays.read(process(tmp_path / "run"), schema.SPANS, COLUMNS)
    assert found.texts["category"].among("step").sum() == 4
    assert found.numbers["step"].max() == 3


def test_a_frame_of_texts_of_each_kind() -> None:
    frame = pl.DataFrame({"a": ["x", None, "y"], "b": [1.5, None, 2.0], "c": [None, 2, 3]})
    found = arrays.of_frame(frame.with_columns(pl.col("a").cast(pl.Categorical).alias("d")))
    assert plain(found)["a"] == plain(found)["d"] == ["x", None, "y"]
    assert found.numbers["c"].tolist() == [arrays.NONE, 2, 3]
    assert np.isnan(found.numbers["b"]).tolist() == [False, True, False]
