"""The same work for each rank: in order, on any executor, and without those whose work fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import runs
from new_pages import new_pages

from haiprof.analyzer import Analyzer
from haiprof.answers import over_ranks as module
from haiprof.answers.over_ranks import over_ranks
from haiprof.errors import HaiprofError
from haiprof.runs import Process


class Lazy(Executor):
    """Does the work when its result is asked for, and knows how much was ever waiting."""

    def __init__(self) -> None:
        self.waiting = self.most = 0
        self.cancelled = 0

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        lazy = self

        class Later(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                lazy.waiting -= 1
                return work(*given, **named)

            def cancel(self) -> bool:
                lazy.cancelled += 1
                return super().cancel()

        return Later()


def processes_of(folder: Path, count: int) -> list[Process]:
    run = runs.write_run(folder / "run")
    for rank in range(count):
        runs.write_process(run, rank)
    return list(Analyzer(run).run.processes)


def rank_of(process: Process) -> int | None:
    return process.rank


def odd_ones_fail(process: Process) -> int:
    assert process.rank is not None
    if process.rank % 2:
        raise ValueError(f"rank {process.rank}\nis odd")
    return process.rank


def ends_its_process(process: Process) -> None:
    os._exit(3)


@pytest.mark.parametrize("pool", [None, ThreadPoolExecutor(2), Lazy()])
def test_results_come_with_their_process_in_order(tmp_path: Path, pool: Executor | None) -> None:
    processes = processes_of(tmp_path, 5)
    notes: list[str] = []
    results = list(over_ranks(rank_of, processes, pool, notes.append))
    assert results == [(process, process.rank) for process in processes]
    assert notes == []


@pytest.mark.parametrize("pool", [None, Lazy()])
def test_a_rank_whose_work_fails_is_named_and_left_out(
    tmp_path: Path, pool: Executor | None
) -> None:
    processes = processes_of(tmp_path, 5)
    notes: list[str] = []
    results = over_ranks(odd_ones_fail, processes, pool, notes.append)
    assert [result for _, result in results] == [0, 2, 4]
    assert notes == [
        f"{processes[rank].folder}: rank {rank} is left out: ValueError: rank {rank}"
        for rank in (1, 3)
    ]


def test_where_the_work_of_all_fails_the_first_says_why(tmp_path: Path) -> None:
    processes = [p for p in processes_of(tmp_path, 6) if (p.rank or 0) % 2]
    with pytest.raises(ValueError, match="rank 1"):
        list(over_ranks(odd_ones_fail, processes, None, lambda _: None))


def test_an_executor_that_breaks_is_one_line(tmp_path: Path) -> None:
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
        pytest.raises(HaiprofError, match="the executor is broken"),
    ):
        list(over_ranks(ends_its_process, processes_of(tmp_path, 2), pool, lambda _: None))


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A client of a Dask cluster of two workers, which gives up what killed both.

    A worker is given one task at a time: what only waits at a worker that dies is blamed, too.
    """
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    config = {
        "distributed.scheduler.allowed-failures": 1,
        "distributed.scheduler.worker-saturation": 1.0,
    }
    with (
        dask.config.set(config),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as workers,
        distributed.Client(workers, set_as_default=False) as client,
    ):
        yield client


def test_a_killed_worker_of_dask_costs_what_kills_every_worker_only(
    tmp_path: Path, cluster: Any
) -> None:
    processes = processes_of(tmp_path, 6)
    once = tmp_path / "once"

    def taken(rank: int) -> Path:
        return tmp_path / f"taken-{rank}"

    # A result that is on its way from a worker when that one dies, Dask may lose. So a worker dies
    # only once those of the ranks before have arrived.
    def deadly(process: Process) -> int:
        assert process.rank is not None
        if process.rank == 5 or (process.rank == 1 and not once.exists()):
            while not all(taken(rank).exists() for rank in range(process.rank)):
                time.sleep(0.01)
            once.touch()
            os._exit(1)
        return process.rank

    notes: list[str] = []
    rows = []
    for _, result in over_ranks(deadly, processes, cluster.get_executor(pure=False), notes.append):
        rows.append(result)
        taken(rows[-1]).touch()
    assert rows == [0, 1, 2, 3, 4]
    (line,) = notes
    assert line.startswith(f"{processes[5].folder}: rank 5 is left out: KilledWorker")


def test_workers_keep_memory_for_the_next_rank(tmp_path: Path) -> None:
    processes = processes_of(tmp_path, 3)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        alone = pool.submit(new_pages, processes[0]).result()
        of_ranks = [pages for _, pages in over_ranks(new_pages, processes, pool, lambda _: None)]
    assert alone > 10_000
    assert max(of_ranks) < alone / 10


def test_who_asks_keeps_no_more_memory_than_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []
    monkeypatch.setattr(module, "keep_some", lambda: kept.append(True))
    module._prepare.cache_clear()
    with ThreadPoolExecutor(1) as pool:
        list(over_ranks(rank_of, processes_of(tmp_path, 3), pool, lambda _: None))
    assert kept == []
    module._prepare(os.getpid() + 1)
    assert kept == [True]


def test_what_is_not_wanted_any_more_is_cancelled(tmp_path: Path) -> None:
    pool = Lazy()
    results = over_ranks(rank_of, processes_of(tmp_path, 5), pool, lambda _: None)
    assert isinstance(results, Iterator)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert pool.cancelled == 4


def test_only_so_many_ranks_wait_at_a_time(tmp_path: Path) -> None:
    (process,) = processes_of(tmp_path, 1)
    pool = Lazy()
    count = sum(1 for _ in over_ranks(rank_of, [process] * 10_000, pool, lambda _: None))
    assert count == 10_000
    assert pool.most <= 1024


class Unsent(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"rank {one} of {other}")


def every_thousandth_fails(item: tuple[Process, int]) -> int:
    if item[1] % 1000 == 7:
        raise Unsent(item[1], 5000)
    return item[1]


def test_of_very_many_ranks_several_are_submitted_together(tmp_path: Path) -> None:
    (process,) = processes_of(tmp_path, 1)
    pool = Lazy()
    submitted: list[int] = []
    submit = pool.submit
    pool.submit = lambda *given, **named: submitted.append(1) or submit(*given, **named)  # type: ignore[method-assign,func-returns-value]
    items = [(process, number) for number in range(5000)]
    notes: list[str] = []
    results = list(over_ranks(every_thousandth_fails, items, pool, notes.append))
    assert [result for _, result in results] == [n for n in range(5000) if n % 1000 != 7]
    assert all(item[1] == result for item, result in results)
    assert len(submitted) == 1250
    assert len(notes) == 5
    assert notes[0].endswith("rank 0 is left out: Unsent: rank 7 of 5000")


def test_views_go_on_without_a_rank_that_breaks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Analyzer(runs.make_run(tmp_path / "run", ranks=3))
    whole = run.steps()
    from haiprof.answers import steps

    real = steps.steps

    def breaks(process: Process) -> Any:
        if process.rank == 1:
            raise MemoryError
        return real(process)

    monkeypatch.setattr(steps, "steps", breaks)
    assert run.steps().equals(whole.filter(whole["rank"] != 1))
    (line,) = [each for each in run.problems() if "left out" in each]
    assert line.endswith("rank 1 is left out: MemoryError: no reason is given")
