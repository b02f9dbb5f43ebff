"""MFU, throughput, energy and the life of a job, where people look."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import event, loop, make_gpu_run, make_run, write_closed, write_process

from haiprof import Analyzer, schema
from haiprof.common.numbers import percent
from haiprof.export import csv
from haiprof.show import efficiency


def with_model(folder: Path) -> Path:
    run = make_gpu_run(folder, ranks=2)
    model = {"flops_per_step": 5e12, "tokens_per_step": 4096.0, "dtype": "bf16"}
    for rank in range(2):
        write_closed(run / f"n0#{rank}", schema.EVENTS, [event(0, "model", "", None, model)], 7)
    return run


def test_what_is_known_is_said_in_the_headline_the_overview_and_the_report(tmp_path: Path) -> None:
    run = Analyzer(with_model(tmp_path / "run"))
    mfu = run.efficiency().run["mfu"].item()
    assert mfu == pytest.approx(5e12 / 0.012 / 989.4e12)
    assert run.headline()[0].endswith("; MFU 42 %, 682 667 tokens/s")
    [line], grids = efficiency.show(run)
    assert line.startswith("MFU 42 %, 682 667 tokens/s")
    assert [grid.title for grid in grids] == ["Efficiency"]
    assert grids[0].note == "what was recomputed is not known: give the option flops"
    assert "mfu" in grids[0].heads
    assert "42 %" in grids[0].rows[0]
    page = run.report(tmp_path / "report.html").read_text("utf-8")
    assert "MFU 42 %" in page


def test_of_a_job_that_only_trained_nothing_is_said(tmp_path: Path) -> None:
    run = Analyzer(make_run(tmp_path / "run"))
    assert efficiency.show(run) == ([], [])
    assert "MFU" not in run.headline()[0]
    assert "ETTR" not in run.headline()[0]


def test_a_job_that_was_started_again_says_its_ettr_first(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    again = write_process(
        run,
        0,
        attempt=1,
        pid=77,
        started_ns=1_700_000_070_000_000_000,
        ended_ns=1_700_000_080_000_000_000,
    )
    assert again == run / "n0#0"
    later = again.rename(run / "n0#0.77")
    write_process(run, 0)
    write_closed(run / "n0#0", schema.SPANS, loop(100))
    shifted = [{**row, "start": row["start"] + 70_000_000_000} for row in loop(100)]
    write_closed(later, schema.SPANS, shifted)
    opened = Analyzer(run)
    ettr = opened.goodput().summary["ettr"].item()
    assert 0 < ettr < 1
    assert opened.headline()[0].endswith(f"; ETTR {percent(ettr)} over 2 attempts")
    [line] = efficiency.show(opened)[0]
    assert line.startswith(
        f"Of 80 s from the first start to the last end in 2 attempts, {percent(ettr)} was "
    )
    assert "shutdown 84 %, down 12 %, lost 1 %" in line
    page = opened.report(tmp_path / "report.html").read_text("utf-8")
    assert "from the first start to the last end in 2 attempts" in page


def test_both_are_written_as_csv(tmp_path: Path) -> None:
    run = Analyzer(with_model(tmp_path / "run"))
    names = {file.name for file in csv.write(run, tmp_path / "out")}
    wanted = {"efficiency_ranks.csv", "efficiency_run.csv", "goodput_summary.csv"}
    assert wanted | {"goodput_parts.csv", "goodput_timeline.csv", "goodput_attempts.csv"} <= names
