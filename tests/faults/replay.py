"""Replays a trace of torch.profiler with other work in it: what comes later moves as it would.

The threads of a process have one clock, which pauses where work is put in. An activity of a device
begins when it has been launched and what it waited for has ended, with the delay that it was
recorded with: what precedes it on its stream, and what ended on another stream just before. A call
that waited for the device goes on when what it waited for has ended. A collective of several ranks
ends when all have begun it and as long after that as recorded. A replay without changes gives each
event its own time.

Times are ns since the first event of all ranks.
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Interval = tuple[int, int]
#: Work on another stream that ended so shortly before is what was waited for.
AWAITED = 20_000
#: What a device needs between two kernels of a stream, and after a launch.
BETWEEN, AFTER_LAUNCH = 2_000, 5_000
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_WAITS = re.compile(r"^cuda(Device|Stream|Event)Synchronize$|^cudaMemcpy")
_COMMUNICATES = re.compile(r"(?i)nccl")


@dataclasses.dataclass(eq=False)
class Activity:
    """What a device did, and the call that launched it."""

    event: Event
    start: int
    end: int
    call: Event
    launched: int
    returned: int
    collective: tuple[str, int] | None = None

    @property
    def lane(self) -> tuple[Any, Any]:
        """The device and the stream."""
        return self.event["pid"], self.event["tid"]

    @property
    def communicates(self) -> bool:
        """Whether it is a collective's."""
        return _COMMUNICATES.search(self.event["name"]) is not None


class Trace:
    """One rank's trace; ``events`` have ``start`` and ``end`` beside what was recorded."""

    def __init__(self, document: Event, base: int) -> None:
        self.header = {k: v for k, v in document.items() if k != "traceEvents"}
        self.events: list[Event] = document["traceEvents"]
        self.rank = int((document.get("distributedInfo") or {}).get("rank", 0))
        self.base = base
        for event in self.events:
            if "ts" in event:
                event["start"] = _ns(event["ts"]) - base
                event["end"] = event["start"] + _ns(event.get("dur", 0))
        calls = {
            event["args"]["correlation"]: event
            for event in self.of("cuda_runtime", "cuda_driver")
            if "correlation" in event.get("args", {})
        }
        self.activities = [
            Activity(event, event["start"], event["end"], call, call["start"], call["end"])
            for event in self.of(*_DEVICE)
            if (call := calls.get(event["args"].get("correlation")))
        ]
        self.activities.sort(key=lambda each: (each.launched, each.start))
        self.steps = sorted(
            (event["start"], event["end"])
            for event in self.of("user_annotation")
            if event["name"].startswith("ProfilerStep#")
        )
        count: Counter[str] = Counter()
        for each in sorted(self.activities, key=lambda each: each.start):
            if each.communicates:
                name = each.event["name"]
                each.collective = (name, count[name])
                count[name] += 1

    def of(self, *categories: str) -> list[Event]:
        """Return the intervals of these categories."""
        return [e for e in self.events if e.get("ph") == "X" and e.get("cat") in categories]

    def idle(self) -> int:
        """Return how long its devices did nothing, from the first activity to the last one."""
        return between(united((each.start, each.end) for each in self.activities))


def _ns(microseconds: Any) -> int:
    return int(Decimal(microseconds) * 1000)


def read(files: Sequence[Path]) -> list[Trace]:
    """Read the traces of a job's ranks, whose clocks must be one."""
    documents = []
    for file in files:
        text = file.read_bytes()
        text = gzip.decompress(text) if file.suffix == ".gz" else text
        documents.append(json.loads(text, parse_float=Decimal, strict=False))
    return made(documents)


def made(documents: Sequence[Event]) -> list[Trace]:
    """Return the traces of documents, which become theirs."""
    first = min(
        _ns(event["ts"])
        for document in documents
        for event in document["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") != "Trace"
    )
    return [Trace(document, first) for document in documents]


def united(intervals: Any) -> list[Interval]:
    """Return intervals as disjoint ones, sorted."""
    result: list[Interval] = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def between(disjoint: Sequence[Interval]) -> int:
    """Return how long it is between intervals, in all, ns."""
    return sum(after[0] - before[1] for before, after in itertools.pairwise(disjoint))


def without(some: Sequence[Interval], others: Sequence[Interval]) -> int:
    """Return how long disjoint intervals last outside of others, ns."""
    inside = sum(
        max(0, min(end, high) - max(start, low)) for start, end in some for low, high in others
    )
    return sum(end - start for start, end in some) - inside


@dataclasses.dataclass(frozen=True)
class Change:
    """What is other than recorded, of one rank.

    Attributes:
        inserts: the recorded time at which the host does something more, and what: called with the
            replay and the time it is then, it returns the time when the host goes on.
        lasts: how long an activity takes.
        later: how much later it begins than it could.
        alone: whether all other work of the device waits for it, and it for all other work.
    """

    inserts: Sequence[tuple[int, Callable[[Replay, int], int]]] = ()
    lasts: Callable[[Activity], int] = lambda each: each.end - each.start
    later: Callable[[Activity], int] = lambda each: 0
    alone: Callable[[Activity], bool] = lambda each: False


class _Lane:
    """A stream: the recorded and the new ends of its work, in order."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.new: list[int] = []
        self.least = 0

    def add(self, end: int, new: int) -> None:
        self.ends.append(max(end, self.ends[-1] if self.ends else end))
        self.new.append(max(new, self.new[-1] if self.new else new))


class Replay:
    """A rank's trace with a change: :meth:`document` is the trace that would have been recorded."""

    def __init__(
        self, trace: Trace, change: Change, arrived: Mapping[Any, int], reached: Mapping[Any, int]
    ) -> None:
        self.trace, self.change = trace, change
        self.added: list[Event] = []
        self.placed: dict[int, Interval] = {}
        self._arrived, self._reached = arrived, reached
        self._at, self._left, self._to = [-(2**62)], [-(2**62)], [-(2**62)]
        self._lanes: dict[Any, _Lane] = defaultdict(_Lane)
        self._number = max(each.event["args"]["correlation"] for each in trace.activities)
        self._arrows = any(event.get("cat") == "ac2g" for event in trace.events)
        #: The recorded time of what is put in.
        self.at = 0
        self._run()

    def _run(self) -> None:
        waits = [
            event
            for event in self.trace.of("cuda_runtime")
            if _WAITS.search(event["name"]) and event["end"] - event["start"] > 0
        ]
        items: list[tuple[int, int, Any]] = [
            *((each.launched, 2, each) for each in self.trace.activities),
            *((event["end"], 0, event) for event in waits),
            *((at, 1, does) for at, does in self.change.inserts),
        ]
        for at, kind, what in sorted(items, key=lambda item: item[:2]):
            if kind == 2:
                self._work(what)
            elif kind == 1:
                self.at = at
                here = self._now(at)
                self._pause(at, here, what(self, here))
            else:
                self._wait(what)

    def _now(self, at: int) -> int:
        return self._to[-1] + at - self._at[-1]

    def _pause(self, at: int, left: int, to: int) -> None:
        self._at.append(at)
        self._left.append(left)
        self._to.append(to)

    def time(self, at: int, *, end: bool = False) -> int:
        """Return when a thread is where it was at a recorded time: after a pause there, or before.

        Args:
            at: the recorded time.
            end: before.
        """
        after = (bisect_left if end else bisect_right)(self._at, at)
        if after < len(self._at) and self._at[after] == at:
            return self._left[after]
        new = self._to[after - 1] + at - self._at[after - 1]
        return min(new, self._left[after]) if after < len(self._at) else new

    def _wait(self, event: Event) -> None:
        start, end = event["start"], event["end"]
        last = newest = start
        for lane in self._lanes.values():
            place = bisect_right(lane.ends, end) - 1
            if place >= 0 and lane.ends[place] > start:
                last = max(last, lane.ends[place])
                newest = max(newest, lane.new[place])
        if last > start:
            new = max(self.time(start), newest) + end - last
            self._pause(end, new, new)

    def _work(self, each: Activity) -> None:
        delay = min(each.start - each.launched, each.returned - each.launched + AFTER_LAUNCH)
        recorded, new = each.launched + delay, self._now(each.launched) + delay
        for name, lane in self._lanes.items():
            mine = name == each.lane
            place = len(lane.ends) - 1 if mine else bisect_right(lane.ends, each.start) - 1
            if place < 0:
                continue
            gap = each.start - lane.ends[place]
            if mine or gap <= AWAITED:
                gap = min(gap, BETWEEN)
                recorded = max(recorded, lane.ends[place] + gap)
                new = max(new, lane.new[place] + gap)
        start = new + each.start - recorded + self.change.later(each)
        lane = self._lanes[each.lane]
        start = max(start, lane.least)
        alone = self.change.alone(each)
        if alone:
            start = max(start, self.drained())
        end = start + self.change.lasts(each)
        if each.collective in self._arrived:
            own = each.end - self._reached[each.collective]
            end = max(start, self._arrived[each.collective]) + max(own, 1)
        lane.add(each.end, end)
        if alone:
            for other in self._lanes.values():
                other.least = end
        self.placed[id(each.event)] = (start, end)

    # What inserts do.

    def drained(self) -> int:
        """Return when the device has done all that was launched."""
        return max((max(lane.least, *lane.new[-1:], 0) for lane in self._lanes.values()), default=0)

    def hold(self, until: int) -> None:
        """Let nothing that is launched later begin before."""
        for lane in self._lanes.values():
            lane.least = max(lane.least, until)

    def span(self, like: Event, name: str, start: int, end: int, **args: Any) -> Event:
        """Add a span of the host, with other fields as in one that was recorded."""
        event = {k: v for k, v in like.items() if k not in ("args", "start", "end")}
        event |= {"name": name, "args": args}
        self.added.append(event)
        self.placed[id(event)] = (start, end)
        return event

    def launch(
        self, each: Activity, call: str, start: int, length: int | None, lasts: int, **more: Any
    ) -> int:
        """Add a call and the work that it launches, like some that were recorded; return its end.

        Args:
            each: what it is like.
            call: name of the call.
            start: of the call.
            length: of the call; None: until the work is done.
            lasts: the work.
            more: fields of the work other than recorded; ``args`` are added to those.
        """
        self._number += 1
        ids = {"correlation": self._number}
        lane = self._lanes[each.lane]
        begin = max(start + AFTER_LAUNCH, lane.least, *lane.new[-1:])
        end = lane.least = begin + lasts
        returns = end + AFTER_LAUNCH if length is None else start + length
        made = self.span(each.call, call, start, returns, **ids)
        args = {**each.event["args"], **more.pop("args", {}), **ids}
        args.pop("External id", None)
        event = {k: v for k, v in each.event.items() if k not in ("start", "end")}
        event |= {**more, "args": args}
        self.added.append(event)
        self.placed[id(event)] = (begin, end)
        self.added += self._flows(made, event)
        return end

    def _flows(self, call: Event, event: Event) -> list[Event]:
        """The arrow from a call to its work, as the profiler writes it."""
        if not self._arrows:
            return []
        arrow = {"id": event["args"]["correlation"], "cat": "ac2g", "name": "ac2g"}
        ends = []
        for phase, at, more in (("s", call, {}), ("f", event, {"bp": "e"})):
            ends.append({"ph": phase, **arrow, "pid": at["pid"], "tid": at["tid"], **more})
            self.placed[id(ends[-1])] = (self.placed[id(at)][0],) * 2
        return ends

    # The result.

    def document(self) -> Event:
        """Return the trace that would have been recorded."""
        by_lane: dict[Any, list[Activity]] = defaultdict(list)
        begun = {}
        for each in sorted(self.trace.activities, key=lambda each: each.start):
            by_lane[each.lane].append(each)
            begun[each.event["args"]["correlation"]] = self.placed[id(each.event)][0]
        events = []
        for event in (*self.trace.events, *self.added):
            if "start" not in event and id(event) not in self.placed:
                events.append(event)
                continue
            start, end = self._where(event, by_lane, begun)
            written = {k: v for k, v in event.items() if k not in ("start", "end")}
            written["ts"] = start / 1000
            if event.get("ph") == "X":
                written["dur"] = max(end - start, 0) / 1000
            events.append(written)
        return {**self.trace.header, "baseTimeNanoseconds": 0, "traceEvents": events}

    def _where(
        self, event: Event, by_lane: Mapping[Any, list[Activity]], begun: Mapping[int, int]
    ) -> Interval:
        if id(event) in self.placed:
            return self.placed[id(event)]
        start, end = event["start"], event["end"]
        lane = by_lane.get((event.get("pid"), event.get("tid")))
        if lane is None:
            return self.time(start), self.time(end, end=True)
        if event.get("ph") != "X":
            at = begun.get(event.get("id", -1), self.time(start))
            return at, at
        inside = [each for each in lane if each.start >= start and each.end <= end]
        if not inside:
            return self.time(start), self.time(start) + end - start
        first, last = (self.placed[id(inside[place].event)] for place in (0, -1))
        return first[0], last[1]


def replayed(traces: Sequence[Trace], changes: Mapping[int, Change]) -> list[Replay]:
    """Replay all ranks of a job together; ``changes`` are by rank."""
    known: dict[Any, list[Activity]] = defaultdict(list)
    for trace in traces:
        for each in trace.activities:
            if each.collective is not None:
                known[each.collective].append(each)
    joint = {key: each for key, each in known.items() if len(each) == len(traces) > 1}
    reached = {key: max(one.start for one in each) for key, each in joint.items()}
    arrived = reached
    while True:
        replays = [
            Replay(trace, changes.get(trace.rank, Change()), arrived, reached) for trace in traces
        ]
        starts: dict[Any, int] = defaultdict(int)
        for replay in replays:
            for each in replay.trace.activities:
                if each.collective in joint:
                    start, _ = replay.placed[id(each.event)]
                    starts[each.collective] = max(starts[each.collective], start)
        if starts == arrived:
            return replays
        arrived = dict(starts)
