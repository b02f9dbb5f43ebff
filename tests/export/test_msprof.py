"""Summaries and timelines in msprof's manner: their sums are those of the views and tables."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.export import msprof

_ASKED = ("step_trace", "step_trace_time", "op_statistic", "op_summary", "api_statistic")


def _read(file: Path) -> pl.DataFrame:
    return pl.read_csv(file, null_values="N/A", infer_schema_length=None)


@pytest.fixture(scope="module")
def job() -> Analyzer:
    return Analyzer(traces.files("dlrm_8rank")[0].parent)


def test_summaries_are_those_of_the_views(tmp_path: Path, job: Analyzer) -> None:
    written = msprof.write_summary(job, tmp_path / "out")
    assert sorted(written) == sorted((tmp_path / "out").iterdir())
    sheets = {file.stem: _read(file) for file in written}
    assert set(sheets) == {*_ASKED, "communication_statistic"}
    for sheet in sheets.values():
        assert sheet["Rank"].unique().sort().to_list() == job.ranks
    ran = job.kernels(kind=("kernel", "memcpy", "memset"))
    tasks = sheets["op_summary"]
    assert tasks.height == ran.height
    assert tasks["Task Duration(us)"].sum() * 1000 == pytest.approx(ran["duration"].sum())
    assert tasks["Task Wait Time(us)"].min() == 0
    operators, known = sheets["op_statistic"], job.op_statistics()
    assert operators["Total Time(us)"].sum() * 1000 == pytest.approx(known["total"].sum())
    assert operators["Count"].sum() == ran.height
    for _, each in operators.group_by("Rank"):
        assert each["Ratio(%)"].sum() == pytest.approx(100)
    steps, trace = sheets["step_trace_time"], job.step_trace()
    assert steps["Stage"].to_list() == (trace["duration"] / 1000).to_list()
    parts = ("Computing", "Communication(Not Overlapped)", "Free")
    assert steps.select(pl.sum_horizontal(parts))["Computing"].to_list() == pytest.approx(
        steps["Stage"].to_list()
    )
    iterations = sheets["step_trace"]
    assert iterations["Data Aug Bound(us)"].null_count() == len(job.ranks)
    calls = job.spans(category="runtime")
    apis = sheets["api_statistic"]
    assert apis["Time(us)"].sum() * 1000 == pytest.approx(calls["duration"].sum())
    assert apis["Count"].sum() == calls.height
    communication = sheets["communication_statistic"].filter(Rank=0)
    assert communication["Total Time(us)"].sum() == 5798


def test_json_holds_the_same(tmp_path: Path, job: Analyzer) -> None:
    for form in ("csv", "json"):
        msprof.write_summary(job, tmp_path / form, rank=2, form=form)  # type: ignore[arg-type]
    for name in _ASKED:
        rows = json.loads((tmp_path / "json" / f"{name}.json").read_text())
        sheet = _read(tmp_path / "csv" / f"{name}.csv")
        assert [list(row) for row in rows] == [sheet.columns] * sheet.height
        for column in sheet.columns:
            if sheet[column].dtype.is_float() and isinstance(rows[0][column], float):
                values = [row[column] for row in rows]
                assert values == pytest.approx(sheet[column].to_list())


def test_a_timeline_has_every_row(tmp_path: Path, job: Analyzer) -> None:
    files = msprof.write_timeline(job, tmp_path / "json", rank=0)
    assert [file.name for file in files] == ["rank_0.json"]
    events = json.loads(files[0].read_text())["traceEvents"]
    (sheet,) = (_read(file) for file in msprof.write_timeline(job, tmp_path / "csv", 0, "csv"))
    wanted = {
        "host": job.spans(rank=0)["duration"].sum(),
        "device": job.kernels(rank=0)["duration"].sum(),
    }
    on_device = sheet["Device_id"].is_not_null()
    assert sheet.filter(~on_device)["Duration(us)"].sum() * 1000 == pytest.approx(wanted["host"])
    assert sheet.filter(on_device)["Duration(us)"].sum() * 1000 == pytest.approx(wanted["device"])
    assert sum(event["ph"] == "X" for event in events) == sheet.height


def test_a_run_of_ours_without_kernels_has_its_steps_only(tmp_path: Path) -> None:
    run = Analyzer(runs.make_run(tmp_path / "run"))
    written = msprof.write_summary(run, tmp_path / "out")
    assert [file.stem for file in written] == ["step_trace", "step_trace_time"]
    assert _read(written[1]).height == run.steps().height


def test_what_nobody_knows_is_na(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    process = runs.write_process(run)
    rows = [runs.activity(0, 1, "k"), runs.activity(3, 1, "k"), runs.activity(0, 9, stream=8)]
    rows[0] |= {"grid_x": 4, "grid_y": 3, "grid_z": 2, "op_type": "MatMul", "unit": "AI_CORE"}
    runs.write_closed(process, schema.KERNELS, rows)
    msprof.write_summary(Analyzer(run), tmp_path / "out")
    lines = (tmp_path / "out" / "op_summary.csv").read_text().splitlines()
    assert lines[1].endswith(f"0,7,N/A,k,MatMul,AI_CORE,{runs.T0 // 1000}.000,1000.0,0.0,24")
    by = {line.split(",")[2] + line.split(",")[8]: line for line in lines[1:]}
    assert by["71000.0"].split(",")[9] in ("0.0", "2000.0")
    assert lines[-1].split(",")[5] == "N/A"
