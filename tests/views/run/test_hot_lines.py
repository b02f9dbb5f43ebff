"""At which lines of the job the causes take their time."""

from __future__ import annotations

import numpy as np
import polars as pl
import runs
from charged_lives import charged, span
from runs import Row

from haiprof import schema
from haiprof.views.run import hot_lines as views
from haiprof.views.run.stacks import Tree, rooted

MS = 1_000_000
SITE = "/usr/lib/python3/site-packages"


def frame(number: int, parent: int | None, function: str, file: str, line: int = 1) -> Row:
    return {"id": number, "parent": parent, "function": function, "file": file, "line": line}


FRAMES = [
    frame(0, None, "main", "/job/train.py", 9),
    frame(1, 0, "Module.__call__", f"{SITE}/torch/nn/module.py", 5),
    frame(2, 1, "Net.forward", "/job/net.py", 20),
    frame(3, 2, "relu", f"{SITE}/torch/nn/functional.py", 30),
    frame(4, 0, "loads", "/usr/lib/python3.11/json/__init__.py", 40),
    frame(5, None, "busy", "/job/watch.py", 50),
    frame(6, None, "<module>", f"{SITE}/torch/__init__.py", 60),
    frame(7, 0, "_find_and_load", "<frozen importlib._bootstrap>", 70),
]


def sampled(ms: float, node: int, thread: int = 7, samples: int = 1, **more: object) -> Row:
    row = {"start": round(ms * MS), "duration": samples * 10 * MS, "samples": samples}
    row |= {"process": 1, "thread": thread, "stack": node, "state": "running", "gil": 1}
    return {**row, **more}


def hot(rows: list[Row], slow: tuple[int, ...] = (), since: int | None = None) -> pl.DataFrame:
    """Return the lines of a life with steps of 10 ms from 10 to 60 ms, in forward but 1 ms each."""
    spans = [
        each
        for n in range(5)
        for each in (
            span(10 + 10 * n, 10, "step", "step", n),
            span(11 + 10 * n, 9, "phase", "forward", n),
        )
    ]
    life = charged(spans, 70)
    tree = Tree(_table(schema.FRAMES, FRAMES))
    placed = rooted(_table(schema.STACKS, rows), tree)
    is_slow = np.isin(np.arange(5), slow)
    found = views.hot_lines(placed, tree, life, is_slow, since, 1, 7)
    assert dict(found.schema) == views.LINES_SCHEMA
    return found


def _table(kind: schema.Table, rows: list[Row]) -> pl.DataFrame:
    table = pl.from_arrow(runs.batch(kind, rows))
    assert isinstance(table, pl.DataFrame)
    return table


def test_a_line_is_the_innermost_of_the_job_and_what_runs_there_the_innermost_of_all() -> None:
    row = hot([sampled(15, 3), sampled(25, 3)]).row(0, named=True)
    assert (row["cause"], row["line"], row["samples"]) == (
        "forward",
        "Net.forward (/job/net.py:20)",
        2,
    )
    assert (row["function"], row["package"], row["outer"]) == ("relu", "torch", "torch")
    assert hot([sampled(15, 2)]).row(0, named=True)["package"] is None


def test_a_thread_that_did_not_run_counts_in_each_cause_that_it_lasted_through() -> None:
    waits = sampled(5, 0, samples=4, state="waiting", waits_in="hrtimer_nanosleep", gil=0)
    rows = hot([waits]).select("cause", "samples").sort("cause").rows()
    assert rows == [("forward", 3), ("startup", 1)]


def test_python_and_imports_are_packages_of_their_own() -> None:
    rows = hot([sampled(15, 4), sampled(25, 7)]).sort("package")
    assert rows["package"].to_list() == ["importlib", "python"]
    assert rows["line"].unique().to_list() == ["main (/job/train.py:9)"]


def test_what_a_dataclass_generates_is_pythons() -> None:
    generated = frame(8, 0, "__create_fn__.<locals>.__repr__", "<string>", 3)
    FRAMES.append(generated)
    (row,) = hot([sampled(15, 8)]).rows(named=True)
    assert (row["line"], row["package"]) == ("main (/job/train.py:9)", "python")


def test_what_no_line_of_the_job_calls_has_none() -> None:
    assert hot([sampled(15, 6)])["line"].to_list() == [None]


def test_another_thread_with_the_gil_blocks_one_that_waits() -> None:
    waits = sampled(15, 2, state="waiting", waits_in="futex_wait_queue", gil=0)
    has_it = sampled(15.2, 5, thread=8)
    (row,) = hot([waits, has_it]).rows(named=True)
    assert row["blocked_by"] == "busy (/job/watch.py:50)"
    (runs_on,) = hot([sampled(15, 2, gil=0), has_it]).rows(named=True)
    assert runs_on["blocked_by"] is None
    (later,) = hot([waits, sampled(55, 5, thread=8)]).rows(named=True)
    assert later["blocked_by"] is None


def test_what_another_thread_does_while_one_waits_is_known() -> None:
    waits = sampled(15, 2, state="waiting", waits_in="futex_wait_queue", gil=0)
    (row,) = hot([waits, sampled(15.2, 5, thread=8, gil=0)]).rows(named=True)
    assert (row["beside"], row["blocked_by"]) == ("busy (/job/watch.py:50)", None)
    idle = sampled(15.2, 5, thread=8, gil=0, state="waiting", waits_in="futex_wait_queue")
    (row,) = hot([waits, idle]).rows(named=True)
    assert row["beside"] is None


def test_a_time_that_is_sampled_more_often_counts_as_long_as_it_lasts() -> None:
    usual = [sampled(11 + 10 * n, 2) for n in range(4)]
    closer = [sampled(51 + n, 3, duration=MS) for n in range(8)]
    rows = hot([*usual, *closer])
    assert dict(rows.select("function", "samples").rows()) == {"Net.forward": 4, "relu": 1}
    only = hot(closer)
    assert only["samples"].to_list() == [8]


def ready(ms: float, node: int) -> Row:
    return sampled(ms, node, state="ready")


def test_a_sample_that_ran_stands_for_those_whose_moment_the_scheduler_chose() -> None:
    """There are as many samples as before, and those that wait are not more of them."""
    runs = [sampled(12 + n / 8, 2) for n in range(40)]
    waits = [sampled(12 + n / 8, 4, state="waiting", gil=0) for n in range(20)]
    rows = hot([*runs, *waits, *(ready(12 + n / 8, 3) for n in range(30))])
    by_function = rows.group_by("function").agg(pl.col("samples").sum())
    assert dict(by_function.rows()) == {"Net.forward": 70, "loads": 20}


def test_of_the_start_and_where_too_few_ran_they_count_as_they_are() -> None:
    start = [ready(n / 5, 3) for n in range(40)]
    rows = hot([*start, *(sampled(12 + n / 8, 2) for n in range(40))])
    assert dict(rows.select("cause", "function").rows()) == {
        "startup": "relu", "forward": "Net.forward",
    }  # fmt: skip
    few = hot([*(sampled(12 + n / 8, 2) for n in range(9)), ready(15, 3)])
    assert dict(few.select("function", "samples").rows()) == {"Net.forward": 9, "relu": 1}


def test_processes_of_the_loader_are_workers_and_have_the_cause_of_the_rank() -> None:
    worker = sampled(15, 2, thread=20, process=20)
    helper = sampled(15, 2, thread=21, process=20)
    (row,) = hot([worker, helper]).rows(named=True)
    assert (row["worker"], row["cause"], row["samples"]) == (True, "forward", 1)


def test_samples_of_slow_steps_are_marked() -> None:
    rows = hot([sampled(15, 2), sampled(25, 2), sampled(35, 2)], slow=(1,))
    assert rows.select("slow", "samples").sort("slow").rows() == [(False, 2), (True, 1)]


def test_what_is_outside_of_the_life_is_left_out() -> None:
    assert hot([sampled(-5, 2), sampled(75, 2), sampled(10**9, 2)]).height == 0
    assert hot([]).height == 0


def test_samples_of_steps_that_take_longer_to_the_end_are_marked() -> None:
    rows = hot([sampled(15, 2), sampled(25, 2), sampled(35, 2)], since=1)
    assert rows.select("later", "samples").sort("later").rows() == [(False, 1), (True, 2)]
