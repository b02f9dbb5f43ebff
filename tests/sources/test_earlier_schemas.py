"""Runs that recorders of earlier schemas wrote: they open, and answer as those of this one.

Each is of a loop of twelve steps on a CPU, its documents without what names a machine. There are
runs of the first schema, which lacks all that was added since, and of the one before summaries of
steps.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import haiprof

from haiprof import schema
from haiprof.analyzer import Analyzer

RUNS = Path(__file__).with_name("earlier_schemas")


def minors() -> list[int]:
    return sorted(int(path.name.rpartition(".")[2]) for path in RUNS.iterdir())


def test_the_first_schema_is_among_them() -> None:
    assert 0 in minors()
    assert schema.MINOR not in minors()


@pytest.mark.parametrize("minor", minors())
def test_a_run_of_an_earlier_schema_answers(minor: int) -> None:
    run = Analyzer(RUNS / f"schema-{schema.MAJOR}.{minor}")
    assert run.problems() == []
    assert run.ranks == [0]
    assert run.steps()["step"].to_list() == list(range(12))
    phases = run.phases(rank=0).filter(category="phase")
    assert set(phases["name"].cast(str)) == {"dataloader", "forward", "backward", "optimizer"}
    assert set(phases["step"]) == set(range(12))
    assert run.samples("loss", rank=0)["value"].to_list() == [0.5]
    assert "done" in run.events(kind="mark")["text"].to_list()
    assert run.headline()[0].startswith("12 steps, median ")
    assert run.goodput().summary["wall_ns"].item() > 0
    assert run.ledger(rank=0).height > 0
    assert run.processes()["state"].to_list()[0] == "closed"


@pytest.mark.parametrize("minor", minors())
def test_commands_take_it(minor: int, tmp_path: Path) -> None:
    run = RUNS / f"schema-{schema.MAJOR}.{minor}"
    report = tmp_path / "report.html"
    done = haiprof("report", run, "-o", report)
    assert done.returncode == 0, done.stderr
    assert report.stat().st_size > 10_000
    assert haiprof("diagnose", run).returncode == 0
    assert "ended 0:00:0" in haiprof("top", "--once", run).stdout
