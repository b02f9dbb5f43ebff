"""``--workers`` and ``--dask``: the same report, made elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
from commands import haiprof, only_line

pytestmark = pytest.mark.jobs

_RANKS = 6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.make_run(tmp_path_factory.mktemp("logs") / "run", ranks=_RANKS)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """A Dask cluster of two workers on this machine."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield str(cluster.scheduler_address).removeprefix("tcp://")


def written(run: Path, file: Path, *words: str) -> str:
    """The report, without what changes each time: when it was written."""
    done = haiprof("report", run, "-o", file, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "", file.read_text("utf-8"))


def test_processes_of_this_machine_make_the_same_report(run: Path, tmp_path: Path) -> None:
    here = written(run, tmp_path / "here.html")
    assert f"rank {_RANKS - 1}" in here
    assert written(run, tmp_path / "there.html", "--workers", "2") == here


def test_a_dask_cluster_makes_the_same_report(run: Path, tmp_path: Path, scheduler: str) -> None:
    here = written(run, tmp_path / "here.html")
    assert written(run, tmp_path / "there.html", "--dask", scheduler) == here


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "0"], "--workers 0: give a number from 1 to 1024"),
        (["--workers", "2", "--dask", "a:1"], "--workers and --dask: give one of them"),
    ],
)
def test_what_cannot_be_is_one_line(run: Path, words: list[str], said: str) -> None:
    done = haiprof("report", run, *words)
    assert done.returncode == 1
    assert only_line(done) == f"haiprof: {said}"


def test_a_scheduler_that_is_not_there_is_one_line(run: Path) -> None:
    pytest.importorskip("distributed")
    done = haiprof("report", run, "--dask", "127.0.0.1:1")
    assert done.returncode == 1
    assert only_line(done).startswith("haiprof: --dask 127.0.0.1:1: no scheduler answers")
