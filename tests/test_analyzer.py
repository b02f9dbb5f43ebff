"""The Analyzer as a user meets it: frames, ranks, problems, executors, live runs."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.sources import tables


@pytest.fixture
def analyzer(tmp_path: Path) -> Analyzer:
    return Analyzer(runs.make_run(tmp_path / "r", ranks=3))


def test_frames_begin_with_the_rank_and_follow_the_schema(analyzer: Analyzer) -> None:
    def columns(*names: str) -> list[str]:
        return ["rank", *names, "node", "pid"]

    assert analyzer.ranks == [0, 1, 2]
    assert analyzer.steps().columns == columns("step", "start", "duration")
    phase_columns = ["step", "name", "category", "duration", "count", "start"]
    assert analyzer.phases().columns == columns(*phase_columns)
    for frame, table in (
        (analyzer.spans(), schema.SPANS),
        (analyzer.events(), schema.EVENTS),
        (analyzer.samples(), schema.SAMPLES),
        (analyzer.device_spans(), schema.DEVICE_SPANS),
    ):
        assert frame.columns == columns(*(c.name for c in table.columns))
    described = [c.name for c in schema.KERNELS.columns]
    described += ["step", "phase", "demangled", "short"]
    assert analyzer.kernels().columns == columns(*described)


def test_one_rank_is_that_rank_only(analyzer: Analyzer) -> None:
    assert analyzer.steps(1).height == 118
    assert analyzer.steps(1)["rank"].unique().to_list() == [1]
    assert analyzer.phases(1).height == 118 * 5
    assert analyzer.steps().height == 3 * 118


def test_samples_are_chosen_by_name_and_by_prefix(analyzer: Analyzer) -> None:
    assert analyzer.samples("proc.rss.bytes", 2).height == 10
    found = analyzer.samples("psi.*")
    assert found["metric"].cast(pl.String).unique().sort().to_list() == [
        "psi.cpu_some.percent",
        "psi.io_some.percent",
    ]
    assert found["rank"].null_count() == found.height


def test_one_metric_is_picked_while_it_is_read(
    analyzer: Analyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    whole = tables.read_table

    def counting(*words: Any, **more: Any) -> tables.Read:
        result = whole(*words, **more)
        read.append(result.frame.height)
        return result

    monkeypatch.setattr(tables, "read_table", counting)
    assert analyzer.samples("proc.rss.bytes").height == sum(read) == 30


def test_one_rank_is_shown_without_reading_the_others(
    analyzer: Analyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    whole = tables.read_table

    def noting(folder: Path, *words: Any, **more: Any) -> tables.Read:
        read.add(folder.name)
        return whole(folder, *words, **more)

    monkeypatch.setattr(tables, "read_table", noting)
    analyzer.show_one_rank(1)
    assert read == {"n0#1", "n0"}


def test_a_run_in_a_folder_that_is_not_utf8_is_read(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    analyzer = Analyzer(run.rename(os.fsdecode(os.fsencode(run) + b"\xff")))
    assert analyzer.steps().height == 118
    assert analyzer.processes()["folder"].str.contains("/r?/", literal=True).all()
    assert "118 steps" in analyzer.report(tmp_path / "report.html").read_text("utf-8")


def test_spans_events_and_kernels_are_chosen_by_kind(analyzer: Analyzer) -> None:
    assert analyzer.spans(0, category="phase", name=["forward", "backward"]).height == 2 * 118
    assert analyzer.events(kind="mark").height == 3
    assert analyzer.events(kind="lost").height == 0
    assert analyzer.kernels(kind="kernel").height == 0


@pytest.fixture
def on_gpus(tmp_path: Path) -> Analyzer:
    return Analyzer(runs.make_gpu_run(tmp_path / "g", ranks=2))


def test_gpu_frames_are_of_each_rank_and_keep_their_columns_when_empty(
    on_gpus: Analyzer, analyzer: Analyzer
) -> None:
    kernels = len(runs.STEP_KERNELS)
    for question, rows in (
        (Analyzer.kernels, 10 * kernels),
        (Analyzer.device_phases, 118 * 3),
        (Analyzer.device_spans, 118 * 3),
        (Analyzer.kernel_totals, 4),
        (Analyzer.kernels_recorded, 1),
        (Analyzer.overhead, 1),
    ):
        assert question(on_gpus).height == 2 * rows
        assert question(on_gpus, 1)["rank"].to_list() == [1] * rows
        assert question(analyzer).schema == question(on_gpus).schema
        assert question(analyzer).height == 0


def test_kernels_have_their_step_phase_and_readable_name(on_gpus: Analyzer) -> None:
    found = on_gpus.kernels(0, name="_ZN2at6native11adam_kernelIfEEvPT_")
    assert found["step"].to_list() == list(range(10, 20))
    assert found["phase"].cast(pl.String).unique().to_list() == ["optimizer"]
    assert found["demangled"][0] == "void at::native::adam_kernel<float>(float*)"
    assert found["short"][0] == "at::native::adam_kernel<float>"
    assert on_gpus.kernels(0, kind="memcpy").height == 0


def test_kernels_of_a_rank_that_crashed_are_shown_up_to_the_last_whole_step(
    tmp_path: Path,
) -> None:
    run = runs.make_gpu_run(tmp_path / "g")
    folder = runs.write_process(run, state="died", ended_ns=runs.T0 + 1416 * runs.MS)
    runs.write_closed(folder, schema.EVENTS, [runs.recording_begins(120)])
    (folder / "kernels-0.arrow").unlink()
    batches = [runs.kernel_loop(10, 12), runs.kernel_loop(13, 15)]
    stream = runs.write_live(folder, schema.KERNELS, batches)
    stream.write_bytes(stream.read_bytes()[:-30])
    analyzer = Analyzer(run)
    found = analyzer.kernels_recorded().row(0, named=True)
    assert (found["first_step"], found["last_step"], found["ended_by"]) == (10, 12, None)
    known = analyzer.device_phases().filter(pl.col("busy").is_not_null())
    assert known["step"].unique().sort().to_list() == [10, 11, 12]
    assert analyzer.processes().filter(pl.col("rank") == 0)["cut_files"].to_list() == [1]


def test_every_column_of_the_overhead_is_documented(on_gpus: Analyzer) -> None:
    documented = Analyzer.overhead.__doc__ or ""
    columns = [name for name in on_gpus.overhead().columns if name not in ("node", "rank", "pid")]
    assert [name for name in columns if f"``{name}``" not in documented] == []


def test_kernels_are_only_read_for_a_summary_when_they_were_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = tables.read_table

    def noting(folder: Path, table: schema.Table, *words: Any, **more: Any) -> tables.Read:
        read.append(table.name)
        return whole(folder, table, *words, **more)

    monkeypatch.setattr(tables, "read_table", noting)
    Analyzer(runs.make_gpu_run(tmp_path / "g", windows=False)).headline()
    assert "kernels" not in read
    assert "device_spans" in read


def test_progress_has_a_new_name_and_the_old_one_still_works(tmp_path: Path) -> None:
    trace = tmp_path / "rank0.pt.trace.json"
    traces.write(trace, traces.small(0))
    new: list[int] = []
    Analyzer(trace, on_bytes=new.append)
    old: list[int] = []
    with pytest.warns(DeprecationWarning, match="on_bytes"):
        Analyzer(trace, told=old.append)
    assert sum(old) == sum(new) > 0


def test_a_rank_that_is_not_there_is_one_line(analyzer: Analyzer) -> None:
    with pytest.raises(HaiprofError, match="has no rank 9: it has ranks 0 to 2"):
        analyzer.steps(9)


def test_a_run_without_ranks_is_still_read(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    runs.write_closed(runs.write_process(run, None), schema.SPANS, runs.loop(7))
    analyzer = Analyzer(run)
    assert analyzer.ranks == []
    assert analyzer.steps().height == 7
    assert analyzer.headline()[0].startswith("7 steps")


def test_a_broken_rank_is_a_problem_and_the_others_are_read(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=3)
    (run / "n0#0" / "process.json").write_text("{")
    (run / "n0#1" / "spans-0.arrow").write_bytes(b"x" * 200)
    analyzer = Analyzer(run)
    assert analyzer.ranks == [1, 2]
    assert analyzer.steps()["rank"].unique().to_list() == [2]
    problems = analyzer.problems()
    assert [p.split(": ")[0] for p in problems] == [
        str(run / "n0#0" / "process.json"),
        str(run / "n0#1" / "spans-0.arrow"),
    ]


def test_another_process_can_do_the_work(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=3, slow_rank=1)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        there = Analyzer(run, executor=pool)
        here = Analyzer(run)
        assert there.phases().equals(here.phases())
        assert there.headline() == here.headline()
        assert there.goodput().timeline.equals(here.goodput().timeline)
        assert there.efficiency().ranks.equals(here.efficiency().ranks)


def test_a_live_run_counts_the_batch_that_is_being_written(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    folder = runs.write_process(run, 0, state="live", ended_ns=None)
    stream = runs.write_live(folder, schema.SPANS, [runs.loop(3), runs.loop(3)])
    stream.write_bytes(stream.read_bytes()[:-30])
    analyzer = Analyzer(run)
    assert analyzer.processes()["cut_files"].to_list() == [1]
    assert analyzer.steps().height == 3
    assert analyzer.problems() == []


def test_analysis_imports_nothing_of_capture() -> None:
    code = (
        "import sys, haiprof.analyzer, haiprof.show.report\n"
        "bad = {'haiprof._core', 'haiprof.capture.session', 'haiprof.capture.hooks', "
        "'haiprof.recorder', 'torch'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_completing_a_name_offers_questions_only(tmp_path: Path) -> None:
    offered = dir(Analyzer(runs.make_run(tmp_path / "r")))
    assert {"steps", "phases", "findings", "metrics", "operators", "ranks", "deep"} <= set(offered)
    assert not [name for name in offered if name.startswith("_")]
    assert not {"each", "note", "read", "read_gpu", "summaries", "keep_overview"} & set(offered)


def test_rows_have_their_process_in_front_be_they_few_or_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.make_run(tmp_path / "run", ranks=3)
    found = []
    for few in (0, 10**9):
        monkeypatch.setattr("haiprof.answers.ranks._FEW_ROWS", few)
        found.append(Analyzer(run).spans())
    one, other = found
    assert one.equals(other)
    assert one.schema == other.schema
    assert one["rank"].unique().sort().to_list() == [0, 1, 2]
    assert one.height > 100
