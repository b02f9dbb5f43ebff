"""Sampled stacks as calls over time."""

from __future__ import annotations

import polars as pl
import runs
from hypothesis import given
from hypothesis import strategies as st
from runs import FRAMES, MS, T0, Row, stack

from haiprof import schema
from haiprof.views.run.stack_calls import CALLS_SCHEMA, calls
from haiprof.views.run.stacks import Tree, rooted

#: FRAMES, and below them the same function called from two lines, and what it calls.
NODES: list[Row] = [
    *FRAMES,
    {"id": 4, "parent": 2, "function": "attend", "file": "/job/model.py", "line": 21},
    {"id": 5, "parent": 2, "function": "attend", "file": "/job/model.py", "line": 22},
    {"id": 6, "parent": 5, "function": "softmax", "file": "/job/model.py", "line": 50},
]


def found(rows: list[Row], nodes: list[Row] = NODES) -> pl.DataFrame:
    frames = pl.from_arrow(runs.batch(schema.FRAMES, nodes))
    stacks = pl.from_arrow(runs.batch(schema.STACKS, rows))
    assert isinstance(frames, pl.DataFrame)
    assert isinstance(stacks, pl.DataFrame)
    tree = Tree(frames)
    return calls(rooted(stacks, tree), tree)


def shown(rows: pl.DataFrame) -> list[tuple[str, float, float, int]]:
    return [
        (name.partition(" ")[0], (start - T0) / MS, duration / MS, depth)
        for name, start, duration, depth in rows.select(
            pl.col("name").cast(pl.String), "start", "duration", "depth"
        ).iter_rows()
    ]


def test_consecutive_samples_of_a_path_are_one_call() -> None:
    rows = found([stack(0, 1), stack(110, 4), stack(205, 6), stack(300, 5), stack(400, 1)])
    assert dict(rows.schema) == CALLS_SCHEMA
    assert shown(rows) == [
        ("<module>", 0, 500, 0),
        ("load", 0, 110, 1),
        ("Model.forward", 110, 290, 1),
        ("attend", 110, 290, 2),
        ("softmax", 205, 95, 3),
        ("load", 400, 100, 1),
    ]
    assert rows["samples"].to_list() == [5, 1, 3, 3, 1, 1]


def test_samples_that_are_far_apart_or_of_other_threads_are_calls_of_their_own() -> None:
    rows = found([stack(0, 1, 2), stack(251, 1), stack(350, 1, thread=9), stack(351, 1, process=7)])
    assert [(s, d) for _, s, d, depth in shown(rows) if depth == 1] == [
        (351, 100),
        (0, 200),
        (251, 100),
        (350, 100),
    ]


def test_without_samples_there_are_no_calls() -> None:
    rows = found([])
    assert rows.height == 0
    assert dict(rows.schema) == CALLS_SCHEMA


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 6), st.integers(1, 3), st.booleans()),
        max_size=30,
    )
)
def test_calls_nest_and_have_every_sample(drawn: list[tuple[int, int, int, bool]]) -> None:
    samples, at = [], {True: 0, False: 0}
    for pause, node, count, main in drawn:
        at[main] += pause
        samples.append(stack(at[main], node, count, thread=1 if main else 2))
        at[main] += count * 100
    rows = found(samples)
    outermost = rows.filter(pl.col("depth") == 0)
    assert outermost["samples"].sum() == sum(count for _, _, count, _ in drawn)
    for (thread,), of_thread in rows.group_by("thread"):
        open_calls: list[tuple[int, int]] = []
        for start, duration, depth in of_thread.select("start", "duration", "depth").iter_rows():
            del open_calls[depth:]
            assert len(open_calls) == depth, thread
            if open_calls:
                assert open_calls[-1][0] <= start
                assert start + duration <= open_calls[-1][1]
            open_calls.append((start, start + duration))
