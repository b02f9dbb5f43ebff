"""Overviews that ``haiprof import`` keeps: shown at once, exactly, and never another code's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import traces
from commands import haiprof, only_line
from real_data import DATA, lacking

from haiprof.analyzer import Analyzer
from haiprof.answers.deep import OverviewFrames

REAL = DATA / "traces" / "tb_resnet50_num_workers_0"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for rank in range(2):
        traces.write(tmp_path / "job" / f"rank_{rank}.json", traces.small(rank))
    assert haiprof("import", tmp_path / "job").returncode == 0
    return tmp_path / "job"


def kept(job: Path) -> list[Path]:
    return sorted(job.glob("haiprof-import/*/overview.json"))


def same(left: OverviewFrames, right: OverviewFrames) -> bool:
    return all(
        one.equals(other) and one.schema == other.schema
        for one, other in zip(left, right, strict=True)
    )


def change(file: Path, **members: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | members))


@pytest.mark.skipif(
    not REAL.is_dir(),
    reason=lacking(REAL),
)
def test_the_overview_of_a_real_run_is_what_its_traces_give(tmp_path: Path) -> None:
    out = tmp_path / "kept"
    overview = Analyzer(REAL).overview()
    assert haiprof("import", REAL, "--out", out).returncode == 0
    for table in out.glob("*/spans-*.arrow"):
        table.unlink()
    analyzer = Analyzer(out)
    assert overview.steps.height > 0
    assert same(analyzer.overview(), overview)
    assert analyzer.steps().equals(overview.steps)
    assert analyzer.operators().height == 0


def test_each_rank_has_its_own(job: Path) -> None:
    assert len(kept(job)) == 2
    for file in kept(job):
        change(file, tensor_core=0.25 if "#0" in file.parent.name else 0.5)
    assert Analyzer(job).overview().ranks["tensor_core"].to_list() == [0.25, 0.5]
    assert Analyzer(job).overview(1).ranks["tensor_core"].to_list() == [0.5]


@pytest.mark.parametrize("what", ["another code", "damaged", "of another shape", "gone"])
def test_one_that_cannot_be_trusted_is_made_anew(what: str, job: Path) -> None:
    before = Analyzer(job).overview()
    for file in kept(job):
        if what == "another code":
            change(file, code="0" * 32, tensor_core=0.25)
        elif what == "damaged":
            file.write_bytes(file.read_bytes()[:-9])
        elif what == "of another shape":
            change(file, steps={"step": ["one"]})
        else:
            file.unlink()
    assert same(Analyzer(job).overview(), before)
    done = haiprof("import", job)
    assert done.stdout == f"{job}/haiprof-import (was up to date)\n"
    assert all(json.loads(file.read_text())["code"] != "0" * 32 for file in kept(job))
    assert len(kept(job)) == 2
    assert same(Analyzer(job).overview(), before)


def test_one_that_cannot_be_kept_is_one_line(job: Path) -> None:
    first = kept(job)[0]
    first.unlink()
    first.mkdir()
    done = haiprof("import", job)
    assert (done.returncode, done.stdout) == (0, f"{job}/haiprof-import (was up to date)\n")
    assert "its overview cannot be kept (Is a directory)" in only_line(done)
    assert list(first.parent.glob(".*")) == []
