"""Runs of up to 1 024 ranks with 100 000 kernels each: time and memory, wherever the work is done.

Held as ratios, so that a slow machine passes too: a rank takes as long among many as among few,
and the process that asks grows by no more than a few times what the answer itself is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import many_ranks
import polars as pl
import pytest
import traces
from figures import (
    Figure,
    Measured,
    Reference,
    Target,
    Unit,
    added_at_most,
    at_most,
    ratio_at_most,
)
from peers import DRIVERS
from reporting import Report

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.answers import gpu
from haiprof.answers.one_process import read_events
from haiprof.runs import ROLE_RANK
from haiprof.views.run import gpu_use

DRIVER = DRIVERS / "drive_ranks.py"
FEW, MANY = 32, 128
ALL = 1024
QUESTIONS = ("show_overview", "kernel_totals", "distributed", "stragglers")
#: The first is of this process; the others' answers are to be equal to its.
EXECUTORS = ("threads", "processes", "dask")
#: Overview of all ranks by processes, s.
LONGEST = 20
#: A rank of many may take so much longer than one of few: the machine has other things to do. Work
#: that grew with the square of the ranks would take four times as long, or eight.
SLOWER = 2
#: What is kept of a rank for any question, and how many times the room of its own part of the
#: answer is needed to put that together, in bytes.
KEPT, TIMES = 64 << 10, 3
#: What the allocators keep for themselves, and what waits to be fetched, whatever the ranks.
ROOM = 64 << 20
#: Linked traces that threads of the asking process keep, of however many ranks.
CACHE = 1 << 30


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Give the run of so many ranks and the job that it is of; each is made once."""
    (first, *_) = traces.files("dlrm_8rank")
    real = many_ranks.real_steps(first.parent)

    @lru_cache
    def write_run(ranks: int) -> tuple[many_ranks.Job, Path]:
        job = many_ranks.Job(real, ranks)
        return job, job.write(tmp_path_factory.mktemp("ranks") / str(ranks))

    return write_run


def ask(run: Path, question: str, executor: str, report: Path) -> dict[str, Any]:
    """Ask in a fresh process; the frames of the answer lie beside ``report``."""
    command = [sys.executable, DRIVER, report, run, question, executor]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr[-4000:]
    by_ranks: dict[str, Any] = json.loads(report.read_text())
    return by_ranks


def frames(report: Path) -> list[pl.DataFrame]:
    """The answer's frames, of questions that are answered by frames."""
    return [pl.read_ipc(file) for file in sorted(report.parent.glob(f"{report.name}.*.arrow"))]


def same(one: Path, other: Path) -> bool:
    """Whether two answers are equal, to the last bit of each number."""
    texts = [report.with_name(f"{report.name}.txt") for report in (one, other)]
    if all(text.exists() for text in texts):
        return texts[0].read_text() == texts[1].read_text()
    pairs = list(zip(frames(one), frames(other), strict=True))
    return bool(pairs) and all(a.schema == b.schema and a.equals(b) for a, b in pairs)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_rank_costs_as_much_among_many(
    benchmark: Any, report: Report, runs_of: Any, tmp_path: Path, question: str
) -> None:
    report(*_compare(benchmark, runs_of, tmp_path, question, FEW, MANY))


@pytest.mark.large
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_thousand_ranks(
    benchmark: Any, report: Report, runs_of: Any, tmp_path: Path, question: str
) -> None:
    figures = _compare(benchmark, runs_of, tmp_path, question, MANY, ALL)
    if question == "show_overview":
        took = benchmark.extra_info[f"processes, {ALL} ranks"]["seconds"]
        what = f"{question} of {ALL:,} ranks of {many_ranks.KERNELS:,} kernels, two processes"
        figures.append(Figure(what, Unit.SECONDS, Measured(took), target=at_most(LONGEST)))
    report(*figures)


def test_steps_are_summed_up_as_kernels_say(runs_of: Any) -> None:
    _, run = runs_of(FEW)
    for process in [p for p in Analyzer(run).run.processes if p.role == ROLE_RANK][:3]:
        events = read_events(process, "kernels", "graphs")
        recorded = gpu.read_gpu(process, None, events)
        kernels, spans, phases = recorded.kernels, recorded.spans, recorded.phases
        by_kernels = gpu_use.use(kernels, spans, phases, recorded.typical)
        assert gpu.summed_use(process, events) == by_kernels


def _compare(
    benchmark: Any, runs_of: Any, folder: Path, question: str, few: int, many: int
) -> list[Figure]:
    """Ask of few ranks and of many, everywhere; all answers must be right, and equal."""
    asked = {ranks: runs_of(ranks)[1] for ranks in (few, many)}

    def measure() -> dict[str, dict[int, dict[str, Any]]]:
        return {
            executor: {
                ranks: ask(run, question, executor, folder / f"{executor}-{ranks}")
                for ranks, run in asked.items()
            }
            for executor in EXECUTORS
        }

    found = benchmark.pedantic(measure, rounds=1, iterations=1)
    answer = sum(frame.estimated_size() for frame in frames(folder / f"{EXECUTORS[0]}-{many}"))
    benchmark.extra_info.update(
        {
            f"{executor}, {ranks} ranks": {
                "seconds": round(each["ask_s"], 2),
                "ms_per_rank": round(1e3 * each["ask_s"] / ranks, 1),
                "peak_mib": each["peak_bytes"] >> 20,
                "worker_mib": [size >> 20 for size in each["worker_bytes"]],
            }
            for executor, by_ranks in found.items()
            for ranks, each in by_ranks.items()
        },
        kib_per_rank={
            executor: round(
                (by_ranks[many]["peak_bytes"] - by_ranks[few]["peak_bytes"]) / (many - few) / 1024
            )
            for executor, by_ranks in found.items()
        },
        answer_kib_per_rank=round(answer / many / 1024),
    )
    for executor, by_ranks in found.items():
        assert by_ranks[few]["problems"] == by_ranks[many]["problems"] == []
        workers = [len(by_ranks[ranks]["worker_bytes"]) for ranks in (few, many)]
        assert workers == ([0, 0] if executor == "threads" else [2, 2])
        assert same(folder / f"{executor}-{many}", folder / f"{EXECUTORS[0]}-{many}"), executor
    if question == "stragglers":
        job, _ = runs_of(many)
        (answered,) = frames(folder / f"{EXECUTORS[0]}-{many}")
        assert sorted(answered["rank"].head(3).to_list()) == job.stragglers
        assert answered["ratio"].head(3).sum() > 0.9
    return [
        figure
        for executor, by_ranks in found.items()
        for figure in _figures(f"{question}, {executor}", executor, by_ranks, answer)
    ]


def _figures(
    what: str, executor: str, by_ranks: dict[int, dict[str, Any]], answer: float
) -> Iterator[Figure]:
    """Time per rank, memory where it is asked, and memory of the worker that grew most."""
    few, many = by_ranks
    cache = CACHE if executor == "threads" else 0
    most = ROOM + cache + (many - few) * KEPT + TIMES * answer

    def compared(named: str, unit: Unit, values: tuple[float, float], target: Target) -> Figure:
        before, after = map(Measured, values)
        return Figure(named, unit, after, Reference(f"of {few}", before), target)

    time = by_ranks[few]["ask_s"] / few, by_ranks[many]["ask_s"] / many
    peak = by_ranks[few]["peak_bytes"], by_ranks[many]["peak_bytes"]
    yield compared(f"{what}: a rank of {many}", Unit.SECONDS, time, ratio_at_most(SLOWER))
    yield compared(f"{what}: memory, {many} ranks", Unit.BYTES, peak, added_at_most(most))
    workers = zip(*(sorted(by_ranks[ranks]["worker_bytes"]) for ranks in (few, many)), strict=True)
    grown = max(workers, key=lambda pair: pair[1] - pair[0], default=None)
    if grown is not None:
        yield compared(f"{what}: a worker, {many} ranks", Unit.BYTES, grown, added_at_most(ROOM))


def test_a_rank_whose_file_is_cut_is_named(runs_of: Any, tmp_path: Path) -> None:
    job = many_ranks.Job(runs_of(FEW)[0].real, 4)
    run = job.write(tmp_path / "run")
    (cut,) = run.glob("*#2/" + schema.KERNELS.name + "-0" + schema.CLOSED_SUFFIX)
    with cut.open("r+b") as file:
        file.truncate(cut.stat().st_size // 2)
    by_ranks = ask(run, "stragglers", "processes", tmp_path / "report")
    (answer,) = frames(tmp_path / "report")
    assert set(answer["rank"].to_list()) == {0, 1, 3}
    assert len(by_ranks["problems"]) == 1
    assert "#2" in by_ranks["problems"][0]
