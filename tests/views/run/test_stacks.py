"""Sampled stacks: their phases, their texts, and their flame graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import runs
from hypothesis import given
from hypothesis import strategies as st
from runs import FRAMES, Row, span, stack

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.common.frame_texts import short_file
from haiprof.errors import HaiprofError
from haiprof.views.run.stacks import (
    STACKS_SCHEMA,
    Tree,
    described,
    flame,
    placed,
    weighed,
)


def table(kind: schema.Table, rows: list[Row]) -> pl.DataFrame:
    """Return rows as a table of a process is read."""
    frame = pl.from_arrow(runs.batch(kind, rows))
    assert isinstance(frame, pl.DataFrame)
    return frame


def tree(rows: list[Row] = FRAMES) -> Tree:
    return Tree(table(schema.FRAMES, rows))


def found(stacks: list[Row], spans: list[Row], nodes: list[Row] = FRAMES) -> pl.DataFrame:
    its = tree(nodes)
    return described(placed(table(schema.STACKS, stacks), its, table(schema.SPANS, spans)), its)


def test_a_sample_has_the_phase_that_began_last_around_it() -> None:
    spans = [
        span(0, 100, "step", "step", 7),
        span(0, 40, "phase", "forward", 7),
        span(50, 40, "phase", "backward", 7),
        span(60, 10, "phase", "forward", 7),  # computed again, as checkpoints have it
    ]
    moments = {10.0: "forward", 45.0: None, 55.0: "backward", 65.0: "forward", 75.0: "backward"}
    rows = found([stack(at, 2) for at in [*moments, 150.0]], spans)
    assert rows["phase"].to_list() == [*moments.values(), None]
    assert rows["step"].to_list() == [7, 7, 7, 7, 7, None]
    assert dict(rows.schema) == STACKS_SCHEMA


def test_a_thread_that_waits_through_several_phases_is_in_none() -> None:
    spans = [span(0, 350, "phase", "forward"), span(350, 350, "phase", "backward")]
    rows = found([stack(10, 1, samples=3), stack(10, 1, samples=6)], spans)
    assert rows["phase"].to_list() == ["forward", None]


def test_stacks_are_texts_with_the_outermost_frame_first() -> None:
    nodes: list[Row] = [
        *FRAMES,
        {"id": 4, "parent": 2, "function": "a;b\nc", "line": 7,
         "file": "/x/.venv/lib/python3.11/site-packages/torch/nn/f.py"},
    ]  # fmt: skip
    (row,) = found([stack(0, 4)], [], nodes).to_dicts()
    assert row["stack"] == (
        "<module> (/job/train.py:30);Model.forward (/job/model.py:12);a,b c (torch/nn/f.py:7)"
    )
    assert (row["function"], row["line"]) == ("a;b\nc", 7)


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("/usr/lib/python3.11/threading.py", "threading.py"),
        ("/opt/lib/python3.13t/asyncio/base.py", "asyncio/base.py"),
        ("/v/lib/python3.10/site-packages/torch/optim/sgd.py", "torch/optim/sgd.py"),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", "yaml/loader.py"),
        ("/home/me/train.py", "/home/me/train.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)
def test_files_are_named_within_their_package(file: str, short: str) -> None:
    assert short_file(file) == short


def test_haiprofs_own_threads_are_left_out() -> None:
    nodes: list[Row] = [
        *FRAMES,
        {"id": 4, "parent": None, "function": "Background._work",
         "file": "/v/lib/python3.11/site-packages/haiprof/common/threads.py", "line": 50},
        {"id": 5, "parent": 4, "function": "Server._run", "file": "/v/haiprof/s.py", "line": 9},
    ]  # fmt: skip
    assert found([stack(0, 5), stack(0, 2)], [], nodes)["function"].to_list() == ["Model.forward"]


def test_a_flame_graph_adds_up() -> None:
    samples = [stack(0, 1), stack(100, 2, state="waiting"), stack(200, 2), stack(300, 3)]
    its = tree()
    graph = flame(placed(table(schema.STACKS, samples), its, table(schema.SPANS, [])), its)
    rows = graph.select("parent", "depth", "function", "total", "self", "running", "samples").rows()
    ms = runs.MS
    assert rows == [
        (None, 0, "<module>", 400 * ms, 0, 0, 0),
        (0, 1, "load", 100 * ms, 100 * ms, 100 * ms, 1),
        (0, 1, "Model.forward", 200 * ms, 200 * ms, 100 * ms, 2),
        (0, 1, "backward", 100 * ms, 100 * ms, 100 * ms, 1),
    ]


def test_what_has_no_samples_is_not_drawn_and_numbers_stay_whole() -> None:
    its = tree()
    graph = flame(placed(table(schema.STACKS, [stack(0, 3)]), its, table(schema.SPANS, [])), its)
    assert graph.select("path", "parent", "function").rows() == [
        (0, None, "<module>"),
        (1, 0, "backward"),
    ]


def test_by_function_lines_are_one() -> None:
    nodes: list[Row] = [{**row, "id": row["id"]} for row in FRAMES]
    nodes += [{**FRAMES[0], "id": 4, "line": 31}, {**FRAMES[2], "id": 5, "parent": 4, "line": 13}]
    its = tree(nodes)
    samples = placed(
        table(schema.STACKS, [stack(0, 2), stack(100, 5)]), its, table(schema.SPANS, [])
    )
    assert flame(samples, its).height == 4
    graph = flame(samples, its, "function")
    assert graph.select("function", "line", "total").rows() == [
        ("<module>", None, 200 * runs.MS),
        ("Model.forward", None, 200 * runs.MS),
    ]


#: Of :func:`runs.stack`.
PID = 1000


def weights(stacks: list[Row], spans: list[Row]) -> list[float]:
    """Return what each sample weighs by its phase, ms."""
    phases = table(schema.SPANS, spans)
    samples = placed(table(schema.STACKS, stacks), tree(), phases)
    found = weighed(samples, phases, PID)
    assert found.drop("duration").equals(samples.drop("duration"))
    return [each / runs.MS for each in found["duration"].to_list()]


def test_phases_share_the_samples_as_they_shared_the_time() -> None:
    """Of 600 ms, forward has 330, backward inside it 90, and 180 are in no phase."""
    spans = [span(-100, 420, "phase", "forward"), span(110, 90, "phase", "backward")]
    samples = [stack(0, 2), stack(120, 3), stack(210, 2), stack(330, 1), stack(400, 1)]
    assert weights(samples, spans) == [137.5, 75, 137.5, 75, 75]
    others = [stack(0, 2, thread=7), stack(100, 2, process=1007)]
    assert weights([*samples, *others], spans) == [137.5, 75, 137.5, 75, 75, 100, 100]
    # Nothing is known of time that was not sampled, nor of how a sample is shared by phases.
    through = span(530, 30, "phase", "forward"), span(600, 70, "phase", "optimizer")
    later = span(900, 500, "phase", "forward")
    every = [*samples, stack(500, 2, samples=3)]
    assert weights(every, [*spans, *through, later]) == [137.5, 75, 137.5, 75, 75, 300]
    assert weights(samples, []) == [100] * 5
    assert weights([], spans) == []


@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.sampled_from(["forward", "backward", ""])),
        min_size=1,
        max_size=30,
    ),
    st.lists(st.integers(0, 99), min_size=1, max_size=100),
)
def test_weights_are_as_the_times_of_phases_wherever_samples_fall(
    phases: list[tuple[int, str]], moments: list[int]
) -> None:
    ends = np.cumsum([took for took, _ in phases]).tolist()
    timed = [(end - took, end, name) for end, (took, name) in zip(ends, phases, strict=True)]
    its = table(schema.SPANS, [span(a, b - a, "phase", name) for a, b, name in timed if name])
    starts = [100 * number + moment for number, moment in enumerate(moments)]
    samples = table(schema.STACKS, [stack(start, 1) for start in starts])
    found = weighed(placed(samples, tree(), its), its, PID)
    weight = {name: sum(rows["duration"]) for (name,), rows in found.group_by("phase")}
    first, last = starts[0] - 100, starts[-1] + 100
    took: dict[object, int] = {}
    for begin, end, name in timed:
        took[name] = took.get(name, 0) + max(min(end, last) - max(begin, first), 0)
    took[None] = last - first - took.get("forward", 0) - took.get("backward", 0)
    seen = sum(took[name] for name in weight)
    assert sum(weight.values()) == pytest.approx(100 * len(starts) * runs.MS, abs=len(starts))
    for name, ns in weight.items():
        share = took[name] / seen if seen else 1.0
        assert ns == pytest.approx(100 * len(starts) * runs.MS * share, abs=len(starts))


HUGE = st.sampled_from([0, 1, 2**62, 2**63 - 1, -(2**62), -(2**63)])


@given(st.lists(st.tuples(HUGE, HUGE), max_size=6), st.lists(st.tuples(HUGE, HUGE), max_size=6))
def test_no_times_however_damaged_lose_a_sample(
    samples: list[tuple[int, int]], phases: list[tuple[int, int]]
) -> None:
    spans = [{**span(0, 0, "phase", "forward"), "start": a, "duration": b} for a, b in phases]
    stacks = [{**stack(0, 2), "start": a, "duration": b} for a, b in samples]
    its = table(schema.SPANS, spans)
    found = weighed(placed(table(schema.STACKS, stacks), tree(), its), its, PID)
    assert found.height == len(samples)
    assert found["duration"].null_count() == 0


def test_without_samples_there_is_nothing() -> None:
    assert found([], [], []).height == 0
    none = tree([])
    assert flame(placed(table(schema.STACKS, []), none, table(schema.SPANS, [])), none).height == 0


@given(
    st.lists(st.tuples(st.integers(-3, 12), st.integers(0, 12), st.integers(0, 3)), max_size=14),
    st.lists(st.integers(-1, 16), max_size=20),
)
def test_no_tree_however_damaged_fails_or_loses_time(
    nodes: list[tuple[int, int, int]], stacks: list[int]
) -> None:
    rows: list[Row] = [
        {"id": number, "parent": parent if parent >= 0 else None, "function": f"f{name}",
         "file": "f.py", "line": name or None}
        for parent, number, name in nodes
    ]  # fmt: skip
    its = tree(rows)
    known = {number for _, number, _ in nodes}
    samples = [stack(100.0 * n, max(node, 0)) for n, node in enumerate(stacks)]
    there = placed(table(schema.STACKS, samples), its, table(schema.SPANS, []))
    assert there.height == sum(max(node, 0) in known for node in stacks)
    graph = flame(there, its)
    whole = there["duration"].sum()
    assert graph["self"].sum() == whole
    assert graph.filter(pl.col("parent").is_null())["total"].sum() == whole
    parents = graph["parent"].drop_nulls().to_numpy()
    assert (parents < np.flatnonzero(graph["parent"].is_not_null().to_numpy())).all()
    assert described(there, its).height == there.height


def test_a_run_answers_by_rank_phase_and_window(tmp_path: Path) -> None:
    run = Analyzer(runs.make_gpu_run(tmp_path / "r", ranks=2))
    every = run.stacks()
    assert every["rank"].unique().sort().to_list() == [0, 1]
    assert every.height == 24
    of_one = run.stacks(0, phase=["forward", "backward"])
    assert set(of_one["phase"]) == {"forward", "backward"}
    assert set(of_one["function"]) == {"Model.forward", "backward"}
    assert run.flame(0, phase="forward")["function"].to_list() == ["<module>", "Model.forward"]
    with pytest.raises(HaiprofError, match="phase"):
        run.stacks(phase="foward")
    with pytest.raises(HaiprofError, match="by='lines'"):
        run.flame(by="lines")  # type: ignore[arg-type]
    part = run.between(0.0, 0.3).stacks(0)
    assert part.height == 3
    assert part["start"].max() < runs.T0 + 300 * runs.MS
