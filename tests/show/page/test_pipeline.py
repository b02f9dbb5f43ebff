"""The pipeline in the report: the lanes of one step, and what is said of bubbles and stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import runs
from page_documents import decoded, document_in

from haiprof.analyzer import Analyzer
from haiprof.show.page import pipeline
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


def sections(folder: Path) -> list[Any]:
    return list(pipeline.sections(context(Analyzer(folder))))


def test_what_it_says_of_bubbles_and_stages(tmp_path: Path) -> None:
    text, _, *tables = sections(two_ranks(tmp_path))
    bubble, stages, *without = text["lines"]
    # 60 and 120 of 151 ms were busy.
    assert "40 % is bubble." in bubble
    assert "1F1B: 2 stages, 2 microbatches" in bubble
    assert "33 % would be" in bubble
    assert stages.startswith("Stage 1 computes longest: 120 ms a step, 33 % above the mean")
    assert "wait most for stage 1: 90 ms a step" in stages
    assert Analyzer(tmp_path).headline() == [
        "1 step in each of 2 traces, median 136 ms",
        bubble,
        stages,
    ]
    assert without[0] == "Without the delays of rank 1 a step takes 90 ms instead of 150 ms."
    assert len(without) == 3
    assert [table["title"] for table in tables] == [
        "Stages, the critical one first",
        "Ranks by their bubble",
        "Steps by their bubble",
    ]
    ranks = next(each for each in tables[1]["columns"] if each["name"] == "rank")
    assert ranks["values"][0] == "0"


def test_the_report_has_it_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    report = Analyzer(two_ranks(tmp_path / "logs")).report(tmp_path / "report.html")
    page = document_in(report.read_text("utf-8"))
    (tab,) = [each for each in page["tabs"] if each["id"] == "pipeline"]
    assert tab["sections"][1]["title"] == "Step 0 by rank, with the numbers of its microbatches"
    without = Analyzer(runs.make_run(tmp_path / "run"))
    assert pipeline.sections(context(without)) == []
    page = document_in(without.report(tmp_path / "other.html").read_text("utf-8"))
    assert "pipeline" not in [each["id"] for each in page["tabs"]]


def test_the_page_has_the_jobs_of_each_rank_and_the_same_tables(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    found = context(Analyzer(two_ranks(tmp_path / "logs")))
    made: list[Any] = list(pipeline.sections(found))
    assert [each["kind"] for each in made] == ["text", "lanes", "table", "table", "table"]
    first, second = made[1]["lanes"]
    blobs = found.columns.encoded()
    assert [first["names"][int(n)] for n in decoded(first["name_of"], blobs)] == [
        *("forward of microbatch 0", "forward of microbatch 1"),
        *("backward of microbatch 0", "backward of microbatch 1", "sync of microbatch 1"),
    ]
    assert np.allclose(decoded(second["length"], blobs), [0.02, 0.04, 0.02, 0.04], rtol=1e-4)
    begins = decoded(second["from"], blobs)
    assert np.allclose(begins - begins[0], [0, 0.02, 0.06, 0.08], atol=2e-6)
    assert made[2]["title"] == "Stages, the critical one first"
