"""Runs that recorders of earlier schemas wrote: they open, and answer as those of this one.

``earlier_schemas`` has one of each, from the first on, of the last commit that wrote it:
``record_schema.py`` recorded it. Who raises ``schema.MINOR`` runs that before, and commits the run
of the schema that was. Every question here is asked of a run of this schema, too, recorded now.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import perfetto_trace
import polars as pl
import pytest
import recording
from commands import haiprof

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.export import csv, perfetto

HERE = Path(__file__).parent
RUNS = HERE / "earlier_schemas"
#: All but the dataloader's are of the model, whose work each step does.
PHASES = {"dataloader", "forward", "backward", "optimizer"}
NAMES = [f"schema-{schema.MAJOR}.{minor}" for minor in range(schema.MINOR)]
NOW = "now"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runs of each earlier schema, and one of this schema."""
    now = tmp_path_factory.mktemp("runs") / NOW
    program = [sys.executable, "-P", HERE / "record_schema.py", now]
    subprocess.run(program, check=True, timeout=300, cwd=now.parent)
    return {**{name: RUNS / name for name in NAMES}, NOW: now}


@pytest.fixture(params=[*NAMES, NOW])
def run(request: pytest.FixtureRequest, runs: dict[str, Path]) -> Path:
    return runs[request.param]


def documents(run: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_bytes()) for path in run.rglob("*.json")]


def test_there_is_a_run_of_each_earlier_schema() -> None:
    """Is MINOR raised, and the run of the schema before not here: see the top of this file."""
    assert sorted(path.name for path in RUNS.iterdir()) == sorted(NAMES)
    for name in NAMES:
        versions = {document["version"] for document in documents(RUNS / name)}
        assert versions == {name.removeprefix("schema-")}


def test_none_names_a_machine_and_all_are_small(run: Path) -> None:
    files = [path for path in run.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 120_000
    assert {document["host"] for document in documents(run) if "host" in document} == {"n0"}
    assert {path.name for path in run.iterdir()} == {"n0", "n0#0", "run.json"}
    for path in run.glob("*/frames-*.arrow"):
        for file in recording.read_table(path.parent, "frames")["file"].unique().to_pylist():
            assert file.startswith(("/job/", "/python/", "<"))


def test_it_answers(run: Path) -> None:
    found = Analyzer(run)
    assert found.problems() == []
    assert found.ranks == [0]
    assert found.steps()["step"].to_list() == list(range(12))
    phases = found.phases(rank=0).filter(category="phase")
    assert set(phases["name"].cast(str)) == PHASES
    assert set(phases["step"]) == set(range(12))
    assert found.samples("loss", rank=0)["value"].to_list() == [0.5]
    assert found.samples("cpu.util.percent").height > 0
    assert "done" in found.events(kind="mark")["text"].to_list()
    assert found.headline()[0].startswith("12 steps, median ")
    assert found.goodput().summary["wall_ns"].item() > 0
    assert found.ledger(rank=0).height > 0
    assert found.processes()["state"].to_list() == ["closed", "closed"]


def test_a_table_that_it_lacks_is_empty(run: Path) -> None:
    """It is known to this version, so a question may name it."""
    found = Analyzer(run)
    assert found.sql("SELECT count(*) FROM spans WHERE name = 'forward'").item() == 12
    rows = found.sql("SELECT count(*) FROM step_parts").item()
    assert (rows > 0) is (run.name == NOW)


def test_it_is_reported_diagnosed_and_shown(run: Path, tmp_path: Path) -> None:
    report = Analyzer(run).report(tmp_path / "report.html")
    assert report.stat().st_size > 10_000
    done = haiprof("diagnose", run, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["format"] == "haiprof-findings"
    assert "ended 0:00:0" in haiprof("top", "--once", run).stdout


def test_it_is_exported(run: Path, tmp_path: Path) -> None:
    found = Analyzer(run)
    perfetto.write(found, tmp_path / "run.pftrace")
    names = [each.name for each in perfetto_trace.read(tmp_path / "run.pftrace").slices]
    for phase in PHASES:
        assert names.count(phase) >= 12
    csv.write(found, tmp_path / "views")
    steps = pl.read_csv(tmp_path / "views" / "steps.csv")
    assert steps["step"].to_list() == list(range(12))


def test_it_is_compared_with_one_of_this_schema(run: Path, runs: dict[str, Path]) -> None:
    for before, after in ((run, runs[NOW]), (runs[NOW], run)):
        changes = Analyzer(before).changes(Analyzer(after))
        assert {"step", *PHASES} <= set(changes.phases["name"])
        assert {12} == {*changes.phases["before_samples"], *changes.phases["after_samples"]}


def test_all_are_listed_together(tmp_path: Path) -> None:
    # `haiprof runs` keeps there what it has read.
    shutil.copytree(RUNS, tmp_path / "logs")
    for command in ("ls", "runs"):
        done = haiprof(command, tmp_path / "logs", env={**os.environ, "COLUMNS": "200"})
        assert (done.returncode, done.stderr) == (0, "")
        for name in NAMES:
            [line] = [line for line in done.stdout.splitlines() if name in line]
            assert "ended" in line
