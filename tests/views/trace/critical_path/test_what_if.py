"""What-if against a scheduler that tries it: schedules are simulated before and after a change."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

#: ns: from the last thing that an activity needs until it begins; from the begin of a call that
#: waits, or from the end of what it waits for, until it returns; a thread's handover.
LATENCY, CALL, HANDOVER = 400, 800, 1_200
STREAMS = (7, 20)


@dataclasses.dataclass(frozen=True)
class Item:
    """Something that a thread does: ``kind`` with its ``duration``, after a pause.

    ``launch`` submits a kernel of ``length`` to ``stream``, after an event of the other stream if
    it ``waits``; ``device`` and ``stream`` synchronize; ``op`` is work; ``backward`` has another
    thread run ``inner`` and waits for it.
    """

    kind: str
    pause: int
    duration: int = 0
    name: str = ""
    length: int = 0
    stream: int = 0
    waits: bool = False
    inner: tuple[Item, ...] = ()


@dataclasses.dataclass
class Change:
    """What takes ``factor`` times as long: an operator, a kernel, or a kind of work."""

    what: str
    name: str
    factor: float

    def host(self, duration: int, operator: str = "") -> int:
        everything = self.what == "kind" and self.name == "host"
        mine = everything or (self.what == "operator" and operator == self.name)
        return round(duration * self.factor) if mine else duration

    def kernel(self, duration: int, kernel: str, operator: str) -> int:
        mine = (
            (self.what == "kind" and self.name == "computation")
            or (self.what == "kernel" and kernel == self.name)
            or (self.what == "operator" and operator == self.name)
        )
        return round(duration * self.factor) if mine else duration


NOTHING = Change("nothing", "", 1.0)


class Schedule:
    """Runs items one after the other, and records the trace of it."""

    def __init__(self, items: list[Item], change: Change = NOTHING) -> None:
        self.change = change
        self.spans: list[dict[str, Any]] = []
        self.kernels: list[dict[str, Any]] = []
        self.ready = dict.fromkeys(STREAMS, -LATENCY - CALL)
        self.correlation = 0
        now = self.run(items, 0, 1)
        self.end = max([now, *self.ready.values()])

    def run(self, items: tuple[Item, ...] | list[Item], now: int, thread: int) -> int:
        for item in items:
            now += self.change.host(item.pause)
            begun = now
            if item.kind == "op":
                now += self.change.host(item.duration, item.name)
                self.span(item.name, begun, now, thread)
            elif item.kind == "launch":
                now = self.launch(item, now, thread)
                self.span(item.name, begun, now, thread)
            elif item.kind == "backward":
                start = now + self.change.host(HANDOVER)
                now = self.run(item.inner, start, 2) + self.change.host(HANDOVER)
            else:
                now = self.synchronize(item, now, thread)
        return now

    def span(self, name: str, start: int, end: int, thread: int, **more: Any) -> None:
        backward = {"forward_thread": 1} if thread == 2 and not more else {}
        self.spans.append(
            {"name": name, "start": start, "duration": end - start, "thread": thread,
             **backward, **more}
        )  # fmt: skip

    def call(self, name: str, start: int, end: int, thread: int) -> int:
        self.correlation += 1
        self.span(name, start, end, thread, category="runtime", correlation=self.correlation)
        return self.correlation

    def launch(self, item: Item, now: int, thread: int) -> int:
        stream = STREAMS[item.stream]
        after = self.ready[stream]
        if item.waits:
            end = now + self.change.host(CALL, item.name)
            self.call("cudaStreamWaitEvent", now, end, thread)
            now, after = end, max(self.ready.values())
        end = now + self.change.host(item.duration, item.name)
        number = self.call("cudaLaunchKernel", now, end, thread)
        start = max(end, after) + LATENCY
        kernel = f"kernel of {item.name}"
        length = self.change.kernel(item.length, kernel, item.name)
        self.kernels.append(
            {"name": kernel, "start": start, "duration": length, "correlation": number,
             "stream": stream}
        )  # fmt: skip
        self.ready[stream] = start + length
        return end

    def synchronize(self, item: Item, now: int, thread: int) -> int:
        streams = STREAMS if item.kind == "device" else (STREAMS[item.stream],)
        last = max(self.ready[stream] for stream in streams)
        end = max(now + self.change.host(CALL), last + CALL)
        name = "cudaDeviceSynchronize" if item.kind == "device" else "cudaStreamSynchronize"
        number = self.call(name, now, end, thread)
        if item.kind == "stream":
            self.kernels.append(
                {"name": "Stream Sync", "kind": "sync", "start": now, "duration": end - now,
                 "correlation": number, "stream": streams[0]}
            )  # fmt: skip
        return end

    @property
    def linked(self) -> Linked:
        return link(spans_of(self.spans), kernels_of(self.kernels))


def launching(stream: int, length: int, *, waits: bool = False, name: str = "aten::first") -> Item:
    return Item("launch", 400, 800, name, length, stream, waits)


#: Shows each delay once: of a launch, a stream, an event, a call that waits and one that does not.
BEGIN = [
    Item("op", 0, 4_000, "aten::empty"),
    launching(0, 20_000), launching(0, 8_000), launching(1, 80_000),
    launching(0, 4_000, waits=True), Item("device", 400), Item("device", 4_000),
    launching(0, 40_000), launching(1, 4_000),
    Item("stream", 400, stream=0), Item("stream", 4_000, stream=0), launching(1, 4_000),
]  # fmt: skip

#: A thread that another one hands over to does something.
END = [Item("op", 400, 800, "aten::empty")]

#: Halves of halves are whole numbers.
TIMES = st.integers(1, 25).map(lambda n: 400 * n)
NAMES = st.sampled_from(["aten::mm", "aten::add", "aten::sum"])
SIMPLE = st.one_of(
    st.builds(Item, st.just("op"), TIMES, TIMES, NAMES),
    st.builds(
        Item, st.just("launch"), TIMES, st.integers(1, 3).map(lambda n: 400 * n), NAMES,
        st.integers(1, 100).map(lambda n: 400 * n), st.integers(0, 1), st.booleans(),
    ),
)  # fmt: skip
ITEMS = st.lists(
    st.one_of(
        SIMPLE,
        SIMPLE,
        st.builds(Item, st.just("device"), TIMES),
        st.builds(Item, st.just("stream"), TIMES, stream=st.integers(0, 1)),
        st.builds(
            Item, st.just("backward"), TIMES,
            inner=st.lists(SIMPLE, min_size=1, max_size=6).map(tuple),
        ),
    ),
    max_size=25,
)  # fmt: skip
CHANGES = st.builds(
    Change,
    st.just("kind"),
    st.sampled_from(["computation", "host"]),
    st.sampled_from([0.0, 0.5, 1.0]),
) | st.builds(
    lambda what, name, factor: Change(
        what, ("kernel of " if what == "kernel" else "") + name, factor
    ),
    st.sampled_from(["operator", "kernel"]),
    NAMES,
    st.sampled_from([0.0, 0.5, 1.0]),
)


def work_of(trace: Linked, change: Change) -> Work:
    if change.what == "kind":
        return of_kind(trace, change.name)
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
