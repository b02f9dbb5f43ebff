"""The pipeline in the report: the lanes of one step, and what is said of bubbles and stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import runs
from page_documents import decoded, texts_in

from haiprof.analyzer import Analyzer
from haiprof.show import pipeline
from haiprof.show.page import pipeline as page_pipeline
from haiprof.show.page.context import context

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


def test_the_page_has_the_jobs_of_each_rank_and_the_same_tables(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    found = context(Analyzer(two_ranks(tmp_path / "logs")))
    sections: list[Any] = page_pipeline.sections(found)
    assert [each["kind"] for each in sections] == ["text", "lanes", "table", "table", "table"]
    first, second = sections[1]["lanes"]
    blobs = found.columns.encoded()
    assert [first["names"][int(n)] for n in decoded(first["name_of"], blobs)] == [
        *("forward of microbatch 0", "forward of microbatch 1"),
        *("backward of microbatch 0", "backward of microbatch 1", "sync of microbatch 1"),
    ]
    assert np.allclose(decoded(second["length"], blobs), [0.02, 0.04, 0.02, 0.04], rtol=1e-4)
    begins = decoded(second["from"], blobs)
    assert np.allclose(begins - begins[0], [0, 0.02, 0.06, 0.08], atol=2e-6)
    assert sections[2]["title"] == "Stages, the critical one first"
