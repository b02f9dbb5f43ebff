"""Deep traces in the folders of a run: its Analyzer answers from them what only they contain."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import polars as pl
import pytest
import runs
import traces
from commands import haiprof

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.sources.own import open_run


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def put(folder: Path, milliseconds: int, begin: float = 1000) -> Path:
    """A trace as the process of that folder writes it: alone it does not give the rank."""
    name = f"{folder.name}.{milliseconds}.pt.trace.json.gz"
    return traces.write(folder / name, traces.small(None, begin=begin))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ranks 0 to 2 of one node with steps and kernels; 0 and 1 have traces, 0 two of them."""
    run = runs.write_run(tmp_path / "run")
    runs.write_node(run, "host")
    for rank in range(3):
        folder = runs.write_process(run, rank, "host")
        steps = [runs.span(10 * n, 9, "step", "step", step=n) for n in range(5)]
        kernels = [runs.activity(n, 0.5, "gemm") for n in range(40)]
        runs.write_closed(folder, schema.SPANS, steps)
        runs.write_closed(folder, schema.KERNELS, kernels)
    put(run / "host#0", 9, begin=9000)
    put(run / "host#0", 10, begin=12000)
    put(run / "host#1", 9, begin=9500)
    return run


def whose(frame: pl.DataFrame) -> list[tuple[object, ...]]:
    columns = frame.select(pl.col("node").cast(pl.String), "rank", "pid", "session")
    return sorted(columns.unique().rows())


WHOSE = [("host", 0, 1000, 1), ("host", 0, 1000, 2), ("host", 1, 1001, 1)]


def test_what_only_a_trace_has_is_answered_by_the_runs_ranks(run: Path) -> None:
    analyzer = Analyzer(run)
    alone = Analyzer(run / "host#1")
    for view in ("operators", "launches", "queue_length", "op_statistics", "recommendations"):
        result, expected = getattr(analyzer, view)(), getattr(alone, view)()
        assert whose(result) == WHOSE
        mine = result.filter(pl.col("rank") == 1).drop("node", "rank", "pid")
        assert mine.equals(expected.drop("node", "rank", "pid"))
    assert set(analyzer.critical_path()) == {"rank 0, span 1", "rank 0, span 2", "rank 1"}
    assert whose(analyzer.operators(1)) == WHOSE[2:]
    assert analyzer.problems() == []


def test_what_haiprof_recorded_is_answered_as_without_traces(run: Path) -> None:
    views = ("steps", "phases", "kernels", "kernel_totals", "temporal", "overlap", "kernel_kinds")
    with_traces = Analyzer(run)
    assert with_traces.operators().height > 0
    frames = {view: getattr(with_traces, view)() for view in views}
    overview = with_traces.overview()
    for file in run.rglob("*.gz"):
        file.unlink()
    without = Analyzer(run)
    assert without.deep is None
    assert without.operators().height == 0
    for view, frame in frames.items():
        assert frame.equals(getattr(without, view)()), view
    for mine, theirs in zip(overview, without.overview(), strict=True):
        assert mine.equals(theirs)


def test_the_traces_are_a_run_of_their_own_too(run: Path) -> None:
    deep = Analyzer(run).deep
    assert deep is not None
    assert deep.deep is deep
    assert deep.run.name == "run"
    assert deep.ranks == [0, 1]
    assert whose(deep.overview().ranks) == WHOSE


def test_a_rank_without_a_trace_has_no_operators(run: Path) -> None:
    analyzer = Analyzer(run)
    assert analyzer.operators(2).height == 0
    with pytest.raises(HaiprofError, match="has no rank 3: it has ranks 0 to 2"):
        analyzer.operators(3)


def test_they_are_read_once_when_a_view_of_them_is_asked_for(run: Path) -> None:
    place = run / schema.IMPORT_FOLDER
    analyzer = Analyzer(run)
    analyzer.overview()
    analyzer.samples()
    analyzer.problems()
    analyzer.headline()
    assert not place.exists()
    before = analyzer.operators()
    inode = (place / schema.RUN_FILE).stat().st_ino
    assert Analyzer(run).operators().equals(before)
    assert (place / schema.RUN_FILE).stat().st_ino == inode
    assert open_run(run).processes == analyzer.run.processes


def test_where_the_run_cannot_be_written_they_go_into_a_temporary_folder(
    run: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise HaiprofError("no room")

    monkeypatch.setattr("haiprof.sources.open.keep", full)
    analyzer = Analyzer(run)
    assert whose(analyzer.operators()) == WHOSE
    assert not (run / schema.IMPORT_FOLDER).exists()
    assert len(list(temporary.iterdir())) == 1
    del analyzer
    assert list(temporary.iterdir()) == []


def test_an_older_import_is_reported_and_replaced_by_the_command(run: Path) -> None:
    Analyzer(run).operators()
    put(run / "host#2", 11, begin=20000)
    analyzer = Analyzer(run)
    assert whose(analyzer.operators()) == [*WHOSE, ("host", 2, 1002, 1)]
    (problem,) = analyzer.problems()
    assert "is of other files, or of older ones, and was not read" in problem
    done = haiprof("import", run)
    assert (done.returncode, done.stdout) == (0, f"{run / schema.IMPORT_FOLDER}\n"), done.stderr
    analyzer = Analyzer(run)
    assert whose(analyzer.operators()) == [*WHOSE, ("host", 2, 1002, 1)]
    assert analyzer.problems() == []


def test_a_rank_that_was_started_again_goes_on_counting(run: Path) -> None:
    again = runs.write_process(run, 1, "host", pid=77, attempt=1)
    # Beside the first, under a name of its own.
    document = json.loads((again / schema.PROCESS_FILE).read_text())
    runs.write_process(run, 1, "host")
    runs.write_json(run / "host#1.77" / schema.PROCESS_FILE, document)
    put(run / "host#1.77", 12, begin=30000)
    assert whose(Analyzer(run).operators(1)) == [("host", 1, 77, 2), ("host", 1, 1001, 1)]


def test_a_damaged_trace_costs_the_run_nothing(run: Path) -> None:
    for file in run.rglob("*.gz"):
        file.write_bytes(b"no trace at all")
    analyzer = Analyzer(run)
    assert analyzer.operators().height == 0
    assert analyzer.kernels().height == 120
    (problem,) = analyzer.problems()
    assert "and 2 more traces cannot be read" in problem


def test_one_damaged_trace_of_several_is_reported(run: Path) -> None:
    (run / "host#1" / "host#1.9.pt.trace.json.gz").write_bytes(b"no trace at all")
    analyzer = Analyzer(run)
    assert whose(analyzer.operators()) == WHOSE[:2]
    (problem,) = analyzer.problems()
    assert "host#1.9.pt.trace.json.gz" in problem


def test_a_trace_whose_process_has_no_folder_is_kept(run: Path) -> None:
    traces.write(run / "host#5.123.44.pt.trace.json.gz", traces.small(5, begin=40000))
    ranks = [rank for _, rank, _, _ in whose(Analyzer(run).operators())]
    assert ranks == [0, 0, 1, 5]


def test_the_report_has_a_section_of_them(run: Path, tmp_path: Path) -> None:
    for path, expected in ((run, True), (runs.make_run(tmp_path / "other"), False)):
        text = Analyzer(path).report(tmp_path / "report.html").read_text()
        assert ("Deep trace" in text) == expected
        assert "Step time" in text
