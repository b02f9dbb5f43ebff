"""Schedules of a host and a device that are simulated, and the traces of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

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
    """What takes ``factor`` times as long: an operator, a kernel, or a kind of work.

    ``unblocked``: calls do not wait for the device any more.
    """

    what: str
    name: str
    factor: float

    @property
    def unblocked(self) -> bool:
        """Whether no call waits for the device."""
        return self.what == "unblocked"

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
        end = now + self.change.host(CALL)
        if not self.change.unblocked:
            end = max(end, last + CALL)
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
