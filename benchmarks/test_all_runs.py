"""How soon ``haiprof runs`` compares ten thousand runs, and what making a row anew costs.

The runs of the first are folders of documents; their index is filled with the row of one whole run,
so that it is as large as that of whole ones.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from commands import HAIPROF
from figures import Figure, Measured, Unit, at_most, median_in_range
from reporting import Report
from runs import SECOND, T0, make_gpu_run, write_node, write_process, write_run

from haiprof.answers import all_runs as module
from haiprof.answers.all_runs import all_runs
from haiprof.answers.run_row import Row, row_of

RUNS: Final = 10_000
RANKS: Final = 2
ROUNDS: Final = 5
#: s, of the whole command.
LONGEST: Final = 5.0
#: Runs that are summed up anew, and steps of each of their ranks.
ANEW, STEPS = 20, 1000
#: What was written before can be relied on.
OLD: Final = 1_600_000_000


def aged(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (OLD, OLD))


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return how long work takes: on the wall, and of a CPU with its children's, s."""

    def used() -> float:
        each = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in each)

    begun, before = time.perf_counter(), used()
    work()
    return time.perf_counter() - begun, used() - before


def test_ten_thousand_runs(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "logs"
    for number in range(RUNS):
        run = write_run(logs / f"user{number % 50}" / f"train-{number}", created_ns=T0 + number)
        write_node(run)
        for rank in range(RANKS):
            write_process(run, rank, world_size=RANKS, ended_ns=T0 + 3600 * SECOND)
    aged(logs)
    whole = row_of(make_gpu_run(tmp_path / "whole", ranks=RANKS))

    def quick(folder: Path) -> Row:
        return {**whole, "run": folder.name, "gpu_hours_lost": float(folder.name.split("-")[1])}

    monkeypatch.setattr(module, "row_of", quick)
    all_runs(logs)
    (index,) = logs.glob(".haiprof-runs-*.parquet")
    kept = index.stat()

    def asked() -> None:
        command = [*HAIPROF, "runs", logs, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)["runs"]
        assert len(found) == RUNS
        assert found[0]["run"] == f"train-{RUNS - 1}"

    times = [timed(asked) for _ in range(ROUNDS)]
    assert index.stat().st_mtime_ns == kept.st_mtime_ns  # no row was made anew
    walls, cpus = ([each[number] for each in times] for number in (0, 1))
    what = f"haiprof runs, {RUNS} runs of {RANKS} ranks, with their index"
    report(
        Figure(what, Unit.SECONDS, median_in_range(walls), target=at_most(LONGEST)),
        Figure(f"{what}, CPU time", Unit.SECONDS, median_in_range(cpus)),
        Figure(f"{what}: its size for a run", Unit.BYTES, Measured(kept.st_size / RUNS)),
    )


def test_a_row_made_anew(report: Report, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for number in range(ANEW):
        make_gpu_run(logs / f"train-{number}", ranks=RANKS, steps=STEPS)
    all_runs(logs / "train-0")  # imports
    found: list[pl.DataFrame] = []
    wall, cpu = timed(lambda: found.append(all_runs(logs)))
    (rows,) = found
    assert (rows.height, rows["problem"].null_count()) == (ANEW, ANEW)
    what = f"making the row of a run anew, {RANKS} ranks of {STEPS} steps"
    report(
        Figure(what, Unit.SECONDS, Measured(wall / ANEW)),
        Figure(f"{what}, CPU time", Unit.SECONDS, Measured(cpu / ANEW)),
    )
