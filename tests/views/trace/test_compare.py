"""Comparing two traces: what changed is found, and chance is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of
from traces import files, load

from haiprof.views.trace import compare as views
from haiprof.views.trace.compare import compare, quantile, two_sided
from haiprof.views.trace.linking.linked import Linked, link

US = 1000


def run(steps: list[dict[str, int]]) -> Linked:
    """A trace in which each step runs operators for this many us each."""
    spans, now = [], 0
    for number, operators in enumerate(steps):
        begin = now
        for name, length in operators.items():
            spans.append({"name": name, "start": now * US, "duration": length * US})
            now += length
        now += 10
        spans.append(
            {"name": f"ProfilerStep#{number}", "category": "step", "step": number,
             "start": begin * US, "duration": (now - begin) * US}
        )  # fmt: skip
    return link(spans_of(spans), kernels_of([]))


def verdicts(before: Linked, after: Linked) -> dict[str, str]:
    comparison = compare(before, after)
    return {row["name"]: row["verdict"] for row in comparison.operators.iter_rows(named=True)}


def test_what_became_slower_faster_new_and_gone_is_reported() -> None:
    before = run([{"mm": 100 + n, "add": 200 + n, "relu": 50 + n, "old": 5} for n in range(6)])
    after = run([{"mm": 150 + n, "add": 120 + n, "relu": 51 - n, "new": 5} for n in range(6)])
    found = verdicts(before, after)
    assert found["mm"] == "slower"
    assert found["add"] == "faster"
    assert found["new"] == "new"
    assert found["old"] == "gone"
    comparison = compare(before, after).operators.filter(views.pl.col("name") == "mm")
    row = comparison.row(0, named=True)
    assert row["difference"] == pytest.approx(50_000)
    assert (row["before_steps"], row["after_steps"]) == (6, 6)
    assert 0 < row["uncertainty"] < 5_000
    assert row["before_count"] == row["after_count"] == 1


def test_noise_is_not_called_a_difference() -> None:
    random = np.random.default_rng(7)
    claimed = 0
    for _ in range(40):
        both = [
            run([{f"op{k}": int(random.normal(1000, 100)) for k in range(20)} for _ in range(5)])
            for _ in range(2)
        ]
        claimed += sum(verdict != "no difference shown" for verdict in verdicts(*both).values())
    # 800 comparisons of what did not change; one in twenty would be 40.
    assert claimed <= 6


def test_one_step_proves_nothing() -> None:
    comparison = compare(run([{"mm": 100}]), run([{"mm": 900}, {"mm": 901}]))
    for frame in (comparison.steps, comparison.operators):
        row = frame.row(0, named=True)
        assert row["verdict"] == "too few steps"
        assert row["uncertainty"] is None
        assert row["chance"] is None
        assert row["difference"] == pytest.approx(800_500)


def test_traces_without_steps_or_rows_are_compared() -> None:
    empty = link(spans_of([]), kernels_of([]))
    unstepped = link(spans_of([{"name": "mm", "start": 0, "duration": 9}]), kernels_of([]))
    comparison = compare(empty, unstepped)
    assert comparison.kernels.height == 0
    assert comparison.steps.select("name", "verdict").rows() == [("trace", "too few steps")]
    assert comparison.steps["difference"].to_list() == [None]
    assert comparison.operators["verdict"].to_list() == ["new"]
    assert comparison.operators["after"].to_list() == [9.0]
    slower = link(spans_of([{"name": "mm", "start": 0, "duration": 12}]), kernels_of([]))
    row = compare(unstepped, slower).operators.row(0, named=True)
    assert (row["name"], row["difference"], row["verdict"]) == ("mm", 3.0, "too few steps")
    # A trace with steps is not compared with one without.
    assert compare(run([{"mm": 5}]), slower).steps["difference"].to_list() == [None]


def test_what_does_not_run_in_a_step_is_a_sample_of_nothing() -> None:
    both = run([{"mm": 100, "log": 30}, {"mm": 100}, {"mm": 100}]), run([{"mm": 100}] * 3)
    row = compare(*both).operators.filter(views.pl.col("name") == "log").row(0, named=True)
    assert row["before"] == pytest.approx(10_000)
    assert row["before_count"] == pytest.approx(1 / 3)
    assert row["verdict"] == "gone"


def test_a_run_against_itself_shows_no_difference() -> None:
    trace = load(files("tb_resnet50_num_workers_0")[0])
    linked = link(trace.spans, trace.kernels)
    comparison = compare(linked, linked)
    for frame in (comparison.steps, comparison.operators, comparison.launches, comparison.kernels):
        assert set(frame["verdict"]) == {"no difference shown"}
        assert set(frame["difference"]) == {0.0}


def test_samples_are_the_sums_of_the_raw_events() -> None:
    trace = load(files("hta_trace_diff_control")[0])
    linked = link(trace.spans, trace.kernels)
    comparison = compare(linked, linked)
    steps = linked.steps["step"].to_list()
    kernels = linked.activities.filter(
        views.pl.col("kind").cast(views.pl.String) != "sync", views.pl.col("step").is_in(steps)
    )
    total = sum(kernels["duration"].to_list()) / len(steps)
    assert comparison.kernels["before"].sum() == pytest.approx(total)
    assert comparison.kernels["before_count"].sum() == pytest.approx(kernels.height / len(steps))
    lengths = (linked.steps["end"] - linked.steps["start"]).to_list()
    assert comparison.steps["before"].to_list() == [pytest.approx(sum(lengths) / len(lengths))]


#: From tables of Student's distribution, two-sided 5 %.
TABLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 5: 2.5706, 10: 2.2281, 30: 2.0423, 120: 1.9799}


@pytest.mark.parametrize(("freedom", "value"), TABLE.items())
def test_students_distribution_is_that_of_the_tables(freedom: int, value: float) -> None:
    of = np.array([float(freedom)])
    assert two_sided(np.array([value]), of)[0] == pytest.approx(0.05, abs=5e-6)
    assert quantile(0.05, of)[0] == pytest.approx(value, abs=1e-4)


@given(st.floats(0, 30), st.floats(1, 1e5))
def test_the_probability_falls_and_the_quantile_inverts_it(value: float, freedom: float) -> None:
    of = np.array([freedom])
    near, far = (float(two_sided(np.array([at]), of)[0]) for at in (value, value + 1))
    assert 0 <= far <= near <= 1
    if freedom == 1:
        assert near == pytest.approx(1 - 2 / math.pi * math.atan(value))
    assert two_sided(quantile(0.05, of), of)[0] == pytest.approx(0.05, rel=1e-6)
