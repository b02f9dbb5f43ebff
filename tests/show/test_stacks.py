"""Stacks in the report: lines with most time by phase, and flame graphs."""

from __future__ import annotations

from pathlib import Path

import runs
from runs import FRAMES, Row, span, stack

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.show.grid import NOTHING


def make(folder: Path, rows: list[Row], problem: str | None = None) -> Analyzer:
    """Make a run of one rank; its steps are a second of forward and one of backward."""
    run = runs.write_run(folder / "r")
    known = {"hz": 10, "torn": 0, "dropped": 0, "cut": 0, "problem": problem}
    process = runs.write_process(run, stacks=known)
    runs.write_node(run)
    steps = range(20)
    spans = [span(2000 * n, 1000, "phase", "forward", n) for n in steps]
    spans += [span(2000 * n + 1000, 1000, "phase", "backward", n) for n in steps]
    spans += [span(2000 * n, 2000, "step", "step", n) for n in steps]
    runs.write_closed(process, schema.SPANS, spans)
    runs.write_closed(process, schema.FRAMES, FRAMES)
    if rows:
        runs.write_closed(process, schema.STACKS, rows)
    return Analyzer(run)


def test_lines_with_most_time_are_listed_by_phase(tmp_path: Path) -> None:
    forward = [stack(2000.0 * n + 500, 2 if n % 4 else 1) for n in range(20)]
    backward = [stack(2000.0 * n + 1500, 3, state="waiting") for n in range(20)]
    shown = make(tmp_path, forward + backward).show_one_rank(0)
    (grid,) = [g for g in shown.grids if g.title == "Lines with most time"]
    assert [tuple(row) for row in grid.rows] == [
        ("forward", "50 %", "Model.forward (/job/model.py:12)", NOTHING, "75 %", "100 %", "15"),
        ("forward", "50 %", "load (/job/data.py:88)", NOTHING, "25 %", "100 %", "5"),
        ("backward", "50 %", "backward (/job/train.py:40)", NOTHING, "100 %", "0 %", "20"),
    ]
    (figure,) = [f for f in shown.details if "training thread" in f.layout.annotations[0].text]
    labels = list(figure.data[0].labels)
    assert labels[:3] == ["all", "forward", "&lt;module&gt; (/job/train.py:30)"]
    assert sum(figure.data[0]["values"]) == 4000.0


def test_shares_of_a_few_samples_are_not_given(tmp_path: Path) -> None:
    shown = make(tmp_path, [stack(2000.0 * n + 500, 2) for n in range(9)]).show_one_rank(0)
    assert not [g for g in shown.grids if g.title == "Lines with most time"]


def test_workers_have_a_graph_of_their_own(tmp_path: Path) -> None:
    stacks = [stack(2000.0 * n + 500, 1, process=1234, thread=1234) for n in range(20)]
    # Threads of a worker that feed its queue wait all the time, and tell nothing.
    stacks += [stack(2000.0 * n + 500, 3, process=1234, thread=1235) for n in range(20)]
    shown = make(tmp_path, stacks).show_one_rank(0)
    (figure,) = [f for f in shown.details if f.data[0].type == "icicle"]
    assert "forked" in figure.layout.annotations[0].text
    (grid,) = [g for g in shown.grids if g.title == "Lines with most time"]
    assert [tuple(row) for row in grid.rows] == [
        ("workers", NOTHING, "load (/job/data.py:88)", NOTHING, "100 %", "100 %", "20"),
    ]


def test_a_line_of_a_library_is_named_with_the_jobs_own(tmp_path: Path) -> None:
    analyzer = make(tmp_path, [stack(2000.0 * n + 500, 4) for n in range(20)])
    library = "/v/lib/python3.11/site-packages/torch/nn.py"
    node: Row = {"id": 4, "parent": 2, "function": "linear", "file": library, "line": 7}
    runs.write_closed(analyzer.run.processes[0].folder, schema.FRAMES, [*FRAMES, node])
    shown = Analyzer(tmp_path / "r").show_one_rank(0)
    (grid,) = [g for g in shown.grids if g.title == "Lines with most time"]
    assert grid.rows[0][2:4] == ("linear (torch/nn.py:7)", "model.py:12")


def test_why_there_are_none_is_said(tmp_path: Path) -> None:
    shown = make(tmp_path, [], "the memory of the process may not be read").show_one_rank(0)
    assert "Python stacks: the memory of the process may not be read." in shown.lines
    assert not [f for f in shown.details if f.data[0].type == "icicle"]


def test_names_are_escaped_in_the_report(tmp_path: Path) -> None:
    evil = [{**row, "function": "<script>alert(1)</script>"} for row in FRAMES]
    analyzer = make(tmp_path, [stack(2000.0 * n + 500, 2) for n in range(20)])
    runs.write_closed(analyzer.run.processes[0].folder, schema.FRAMES, evil)
    page = Analyzer(tmp_path / "r").report(tmp_path / "r.html").read_text()
    assert "<script>alert(1)" not in page
    assert "alert(1)" in page
