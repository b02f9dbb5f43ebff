"""What was removed to stay below the limit is said, and its time is unknown, not empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import runs
from runs import MS, SECOND, T0

from haiprof import Analyzer, schema
from haiprof.show.page.build import build

GIB = 1 << 30


def thin(folder: Path, limit: int = 40 * GIB, **until_ms: float) -> None:
    """Write the note that these tables were thinned until so long after T0."""
    tables = {
        name: {"segments": 1, "rows": 1000, "bytes": 5, "until_ns": T0 + round(ms * MS)}
        for name, ms in until_ms.items()
    }
    document = {"format": schema.THINNED_FORMAT, "version": "1.7", "limit_bytes": limit}
    runs.write_json(folder / schema.THINNED_FILE, {**document, "tables": tables, "removing": []})


def missing(run: Path) -> list[str]:
    """What the report says is missing."""
    (section,) = [
        section
        for tab in build(Analyzer(run))[0]["tabs"]
        for section in tab["sections"]
        if section["id"] == "problems"
    ]
    lines: list[str] = section["lines"]  # type: ignore[typeddict-item]
    return lines


def test_the_report_and_the_overview_say_what_was_removed_and_until_when(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r", ranks=2)
    thin(run / "n0#0", kernels=150, spans=100)
    thin(run / "n0#1", kernels=151, later_table=3)
    said = [
        "Kernels of 2 of 3 processes before 2023-11-14 22:13:20 UTC were removed to stay below "
        "the limit of 40 GiB a node (storage_limit): 2000 rows",
        "Steps, phases and other spans of 1 of 3 processes before 2023-11-14 22:13:20 UTC were "
        "removed to stay below the limit of 40 GiB a node (storage_limit): 1000 rows",
        "later_table of 1 of 3 processes before 2023-11-14 22:13:20 UTC were removed to stay "
        "below the limit of 40 GiB a node (storage_limit): 1000 rows",
    ]
    assert missing(run) == said
    analyzer = Analyzer(run)
    text = str(analyzer.show_overview())
    assert all(line in text for line in said)
    assert analyzer.problems() == []
    assert [p.lost.get("records", 0) for p in analyzer.run.processes] == [0, 0, 0]


def test_nothing_is_said_where_nothing_was_removed(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    assert missing(run) == []
    assert "removed" not in str(Analyzer(run).show_overview())


def test_kernels_are_known_from_the_time_on_until_which_they_were_removed(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    whole = Analyzer(run).summaries()[0][0].gpu
    assert whole is not None
    thin(run / "n0#0", kernels=150)
    # The segments that are left begin there.
    (run / "n0#0" / "kernels-0.arrow").unlink()
    kept = [row for row in runs.kernel_loop(10, 19) if row["start"] >= T0 + 150 * MS]
    runs.write_closed(run / "n0#0", schema.KERNELS, kept, number=7)
    analyzer = Analyzer(run)
    found = analyzer.kernels_recorded().row(0, named=True)
    assert (found["start"] - T0, found["end"] - T0) == (150 * MS, 240 * MS)
    assert (found["first_step"], found["last_step"], found["steps"]) == (13, 19, 7)
    gpu = analyzer.summaries()[0][0].gpu
    assert gpu is not None
    assert (gpu.recorded, whole.recorded) == (7, 10)
    # Of a step without kernels the GPU would have been idle.
    assert gpu.busy_ns / gpu.recorded_ns == pytest.approx(0.75, abs=0.01)
    thin(run / "n0#0", kernels=500)
    assert Analyzer(run).kernels_recorded().height == 0


def test_an_interval_without_an_end_is_known_from_then_on(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    events = [runs.recording_begins(120.0)]
    runs.write_closed(run / "n0#0", schema.EVENTS, events)
    thin(run / "n0#0", kernels=150)
    found = Analyzer(run).kernels_recorded().row(0, named=True)
    assert (found["start"] - T0, found["first_step"]) == (150 * MS, 13)


def lived(run: Path, **more: Any) -> Path:
    """Write a rank that made a step a second for 20 s, and only the last ten have spans."""
    times = {"started_ns": T0, "process_started_ns": T0, "ended_ns": T0 + 20 * SECOND}
    folder = runs.write_process(run, 0, **{**times, **more})
    rows = [runs.span(1000 * n, 1000, "step", "step", n) for n in range(10, 20)]
    runs.write_closed(folder, schema.SPANS, rows, number=3)
    return folder


@pytest.mark.parametrize("live", [False, True])
def test_what_time_was_spent_on_is_said_of_the_time_that_is_known(
    tmp_path: Path, live: bool
) -> None:
    run = runs.write_run(tmp_path / "r")
    folder = lived(run, **({"state": "live", "ended_ns": None} if live else {}))
    assert Analyzer(run).goodput().summary["wall_ns"].item() == 20 * SECOND
    thin(folder, spans=10_000)
    summary = Analyzer(run).goodput().summary.row(0, named=True)
    assert (summary["begin"], summary["end"]) == (T0 + 10 * SECOND, T0 + 20 * SECOND)
    assert summary["productive_ns"] == 10 * SECOND
    assert Analyzer(run).ledger()["duration"].sum() == 10 * SECOND
    assert Analyzer(run).between(0, 5).goodput().summary.height == 0
    assert Analyzer(run).between(12, 15).goodput().summary["wall_ns"].item() == 3 * SECOND


@pytest.mark.parametrize(
    "document",
    ["{", '{"format": "haiprof-run"}', '{"tables": {"kernels": {"until_ns": 1.5}}}', "[]"],
)
def test_a_note_that_makes_no_sense_is_named(tmp_path: Path, document: str) -> None:
    run = runs.make_gpu_run(tmp_path / "r", ranks=2)
    (run / "n0#0" / schema.THINNED_FILE).write_text(document)
    analyzer = Analyzer(run)
    assert analyzer.ranks == [1]
    (line,) = analyzer.problems()
    assert schema.THINNED_FILE in line


def test_steps_and_samples_that_were_removed_are_known_by_what_was_summed_up(
    tmp_path: Path,
) -> None:
    run = runs.write_run(tmp_path / "r")
    folder = lived(run)
    rows: list[runs.Row] = []
    for number in range(20):
        start = T0 + number * SECOND
        part = {"step": number, "count": 1, "last": None, "device": None}
        for kind, name, ns in (
            ("step", "step", SECOND),
            ("phase", "dataloader", SECOND // 4),
            ("other", "other", 3 * SECOND // 4),
        ):
            rows.append({"start": start, "duration": ns, "kind": kind, "name": name, **part})
    runs.write_closed(folder, schema.STEP_PARTS, rows)
    minute = T0 // (60 * SECOND) * 60 * SECOND
    summed_up = {"instance": None, "count": 60, "min": 1.0, "mean": 2.0, "max": 8.0, "flags": 0}
    row = {"time": minute, "metric": "proc.cpu.percent", **summed_up}
    runs.write_closed(folder, schema.MINUTES, [row])
    thin(folder, spans=10_000, samples=10_000)
    analyzer = Analyzer(run)
    assert analyzer.steps()["step"].to_list() == list(range(20))
    phases = analyzer.phases().filter(name="dataloader")
    assert phases["step"].to_list() == list(range(10))
    assert set(phases["duration"]) == {SECOND // 4}
    summary = analyzer.goodput().summary.row(0, named=True)
    assert (summary["begin"], summary["end"]) == (T0, T0 + 20 * SECOND)
    assert summary["productive_ns"] == 20 * SECOND - 10 * SECOND // 4
    samples = analyzer.samples("proc.cpu.percent")
    assert samples["value"].to_list() == [2.0, 8.0]
    assert analyzer.between(3, 5).steps()["step"].to_list() == [3, 4]
    first, second = (line.partition("rows")[2] for line in missing(run))
    assert first == "; of that time steps and their parts are shown as they were summed up"
    assert second == "; of that time the mean and the greatest value of each minute are shown"
