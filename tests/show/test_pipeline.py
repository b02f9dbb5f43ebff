"""The pipeline in the report: the lanes of one step, and what is said of bubbles and stages."""

from __future__ import annotations

from pathlib import Path

import runs
from page_documents import texts_in

from haiprof.analyzer import Analyzer
from haiprof.show import pipeline

MS = 1_000_000
BEGIN = 1_697_793_307_000


def write(folder: Path, rank: int, jobs: list[tuple[str, int, int, int]]) -> None:
    (folder / f"workerlog.{rank}").write_text(
        "".join(
            f"Profiler Info: Job (0), type = {kind}, micro_batch_id = {microbatch}, "
            f"job_start_time = {BEGIN + start}.000000, job_end_time = {BEGIN + end}.000000\n"
            for kind, microbatch, start, end in jobs
        )
    )


def two_ranks(folder: Path) -> Path:
    """One step of two microbatches, whose second stage takes twice as long."""
    write(
        folder, 0,
        [("forward", 0, 0, 10), ("forward", 1, 10, 20), ("backward", 0, 70, 90),
         ("backward", 1, 130, 150), ("sync", 1, 150, 151)],
    )  # fmt: skip
    write(
        folder, 1,
        [("forward", 0, 10, 30), ("backward", 0, 30, 70), ("forward", 1, 70, 90),
         ("backward", 1, 90, 130)],
    )  # fmt: skip
    return folder


def test_the_lanes_of_a_step_are_drawn(tmp_path: Path) -> None:
    section = pipeline.section(Analyzer(two_ranks(tmp_path)))
    (figure,) = section.figures
    assert [bars.name for bars in figure.data] == ["forward", "backward", "other"]
    forward = figure.data[0]
    drawn = sorted(zip(forward.y, forward.base, forward.x, forward.text, strict=True))
    assert drawn == [
        ("rank 0, stage 0", 0, 10, "0"), ("rank 0, stage 0", 10, 10, "1"),
        ("rank 1, stage 1", 10, 20, "0"), ("rank 1, stage 1", 70, 20, "1"),
    ]  # fmt: skip
    assert forward.customdata[0] == ["forward of microbatch 0", 10]
    assert "customdata[1]" in forward.hovertemplate  # x is the bar's end there, not its length
    assert list(figure.layout.yaxis.categoryarray) == ["rank 0, stage 0", "rank 1, stage 1"]


def test_what_it_says_of_bubbles_and_stages(tmp_path: Path) -> None:
    section = pipeline.section(Analyzer(two_ranks(tmp_path)))
    bubble, stages = section.lines
    # 60 and 120 of 151 ms were busy.
    assert "40 % is bubble." in bubble
    assert "1F1B: 2 stages, 2 microbatches" in bubble
    assert "33 % would be" in bubble
    assert stages.startswith("Stage 1 computes longest: 120 ms a step, 33 % above the mean")
    assert "wait most for stage 1: 90 ms a step" in stages
    assert Analyzer(tmp_path).headline() == [
        "1 step in each of 2 traces, median 136 ms",
        *section.lines,
    ]
    titles = [grid.title for grid in section.grids]
    assert titles == [
        "Stages, the critical one first",
        "Ranks by their bubble",
        "Steps by their bubble",
    ]
    assert section.grids[1].rows[0][1] == "0"


def test_the_report_has_it_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    analyzer = Analyzer(two_ranks(tmp_path / "logs"))
    text = analyzer.report(tmp_path / "report.html").read_text()
    assert "<h2>Pipeline</h2>" in text
    assert "Step 0 by rank, with the numbers of its microbatches" in text
    without = Analyzer(runs.make_run(tmp_path / "run"))
    assert pipeline.section(without).parts == []
    page = without.report(tmp_path / "other.html").read_text()
    assert "Pipeline" not in texts_in(page).splitlines()
