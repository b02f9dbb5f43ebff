"""What-if against a scheduler that tries it: schedules are simulated before and after a change."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import BEGIN, END, ITEMS, NAMES, Change, Item, Schedule
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.critical_path.path import (
    CriticalPath,
    critical_path,
    of_step,
    window,
    window_of_step,
)
from haiprof.views.trace.critical_path.what_if import (
    Replay,
    Work,
    candidates,
    of_kernel,
    of_kind,
    of_operator,
    what_if,
)
from haiprof.views.trace.linking.linked import Linked, link
from haiprof.views.trace.linking.runtime_calls import SYNCHRONISES

CHANGES = (
    st.builds(
        Change,
        st.just("kind"),
        st.sampled_from(["computation", "host"]),
        st.sampled_from([0.0, 0.5, 1.0]),
    )
    | st.just(Change("unblocked", "", 1.0))
    | st.builds(
        lambda what, name, factor: Change(
            what, ("kernel of " if what == "kernel" else "") + name, factor
        ),
        st.sampled_from(["operator", "kernel"]),
        NAMES,
        st.sampled_from([0.0, 0.5, 1.0]),
    )
)


def work_of(trace: Linked, change: Change) -> Work:
    if change.what == "kind":
        return of_kind(trace, change.name)
    if change.unblocked:
        return Work(unblocked=trace.matches(SYNCHRONISES))
    try:
        of = {"operator": of_operator, "kernel": lambda *a: of_kernel(*a)}[change.what]
        return of(trace, change.name)
    except ValueError:
        return Work()


def elsewhere(trace: Linked, path: CriticalPath) -> Work:
    """All work of which nothing is on the path."""
    calls = np.ones(len(trace.start), bool)
    calls[path.path["op"].drop_nulls().to_numpy()] = False
    launched = path.path.filter(pl.col("kind").cast(pl.String) == "launch")["activity"]
    calls[trace.runtime[launched.to_numpy()]] = False
    activities = np.ones(trace.activities.height, bool)
    activities[path.path["activity"].drop_nulls().to_numpy()] = False
    return Work(activities, calls)


@given(ITEMS, CHANGES)
@settings(max_examples=150, deadline=None)
def test_a_replay_is_what_a_scheduler_makes_of_the_changed_schedule(
    items: list[Item], change: Change
) -> None:
    measured = Schedule(BEGIN + items + END)
    trace = measured.linked
    replay = Replay(trace, window(trace))
    assert replay.before == measured.end
    assert replay.after(Work()) == measured.end
    changed = Schedule(BEGIN + items + END, change)
    assert replay.after(work_of(trace, change), change.factor) == changed.end
    path = critical_path(trace)
    assert path.path["duration"].sum() == measured.end
    assert path.length == measured.end
    # What is not on the path may take no time: it hides behind what is.
    assert replay.after(elsewhere(trace, path)) == measured.end


STEPS = [
    # The host runs ahead: it launches two steps of 300 µs on the device in 100 µs each.
    {"name": "ProfilerStep#1", "category": "step", "step": 1, "start": 0, "duration": 100_000},
    {"name": "aten::mm", "start": 10_000, "duration": 80_000},
    {"name": "cudaLaunchKernel", "category": "runtime", "start": 20_000, "duration": 10_000,
     "correlation": 1},
    {"name": "ProfilerStep#2", "category": "step", "step": 2, "start": 100_000,
     "duration": 100_000},
    {"name": "aten::mm", "start": 110_000, "duration": 80_000},
    {"name": "cudaLaunchKernel", "category": "runtime", "start": 120_000, "duration": 10_000,
     "correlation": 2},
]  # fmt: skip
ON_DEVICE = [
    {"start": 35_000, "duration": 300_000, "correlation": 1},
    {"start": 336_000, "duration": 300_000, "correlation": 2},
]


def test_a_step_does_not_become_shorter_than_its_host() -> None:
    trace = link(spans_of(STEPS), kernels_of(ON_DEVICE))
    second = Replay(trace, window_of_step(trace, 2))
    assert second.before == 301_000
    computation = of_kind(trace, "computation")
    assert second.after(computation, 0.5) == 151_000
    # Of its own it would take 1 µs, but the host needs 100 for each step.
    assert second.after(computation) == 100_000
    assert second.after(of_kind(trace, "host")) == 301_000
    # What belongs to the other step does not change this one.
    first = Replay(trace, window_of_step(trace, 1))
    assert first.before == 335_000
    assert first.after(computation) == 100_000
    assert first.after(of_kind(trace, "host")) == 305_000


def test_candidates_are_on_the_path() -> None:
    trace = link(spans_of(STEPS), kernels_of(ON_DEVICE))
    found = candidates(trace, of_step(trace, 1))
    assert [(what, name) for what, name, _ in found] == [
        ("kind", "computation"), ("kind", "host"), ("operator", "aten::mm"), ("kernel", "gemm"),
    ]  # fmt: skip
    rows = what_if(trace, window_of_step(trace, 1), found, [0.5]).rows()
    assert rows[:2] == [
        ("kind", "computation", 0.5, 335_000, 185_000, 150_000),
        ("kind", "host", 0.5, 335_000, 320_000, 15_000),
    ]
    assert rows[2][-1] == 150_000 + 5_000 + 5_000
    assert rows[3][1:] == ("gemm", *rows[0][2:])


def test_an_operator_takes_with_it_what_it_calls_and_launches() -> None:
    trace = link(spans_of(STEPS), kernels_of(ON_DEVICE))
    work = of_operator(trace, "aten::mm")
    assert work.activities is not None
    assert work.calls is not None
    assert work.activities.tolist() == [True, True]
    named = trace.ops["name"].cast(pl.String).to_numpy()
    assert sorted(named[work.calls]) == ["aten::mm"] * 2 + ["cudaLaunchKernel"] * 2
    with pytest.raises(ValueError, match=r"no operator 'aten::nm': did you mean 'aten::mm'"):
        of_operator(trace, "aten::nm")
    with pytest.raises(ValueError, match="no kernel 'conv'"):
        of_kernel(trace, "conv")
    assert np.array_equal(of_kernel(trace, "gem").activities, [True, True])
