"""Plants faults into traces of torch.profiler, and knows what they cost.

A plant is drawn from a seed: which steps, which places, which rank. It costs more than
what the trace loses already, since a recorded job is seldom healthy. What it costs is measured in
the replay itself, mostly as the time for which its devices were idle.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from faults.replay import (
    Activity,
    Change,
    Event,
    Interval,
    Replay,
    Trace,
    between,
    read,
    replayed,
    united,
    without,
)

#: The recorded jobs that a kind is planted into, one by one: little of it is lost in them already.
BUSY = ("hta_ns_resolution", "hta_trace_diff_test")
WITH_COMMUNICATION = ("hta_trace_diff_test", "hta_trace_diff_control")
WITH_PYTHON = ("tl_h100_Qwen_Qwen1_5_0_5B_Chat",)
OF_RANKS = ("dlrm_8rank",)
#: A plant costs this share of the steps, and this many times what the trace loses already.
LEAST, TIMES = 0.15, (1.3, 2.0)
_PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
MILLISECOND = 1_000_000

Lost = tuple[int, int]


@dataclasses.dataclass
class Plan:
    """What is drawn for a job: what each rank does, and what that cost in the replay.

    Attributes:
        changes: by rank.
        measure: returns the least and the most that is lost, ns, of the replays.
        ranks: who causes it, where not all do alike.
        whole: whether ``measure`` has what the recorded trace lost to the same, too.
    """

    changes: dict[int, Change]
    measure: Callable[[Sequence[Replay]], Lost]
    ranks: tuple[int, ...] = ()
    whole: bool = False


Draw = Callable[[random.Random, Sequence[Trace], int], Plan]
#: What a host does from a time on so that the device is idle for a while; returns when it goes on.
Does = Callable[[Replay, int, int], int]


def _some_steps(rng: random.Random, trace: Trace) -> list[Interval]:
    """At least half of the steps."""
    count = rng.randint((len(trace.steps) + 1) // 2, len(trace.steps))
    return sorted(rng.sample(trace.steps, count))


def _places(rng: random.Random, trace: Trace, count: int) -> list[int]:
    """Times in the steps, as many in each of some, at which no thread is in an operator."""
    active = united((e["start"], e["end"]) for e in trace.of("cpu_op", "cuda_runtime"))
    found = []
    for low, high in _some_steps(rng, trace):
        between = [end + 1 for _, end in active if low < end < high - 1]
        found += sorted(rng.sample(between, min(count, len(between))))
    return found


def _thread(trace: Trace) -> Event:
    """A span of the thread of the training loop."""
    steps = trace.of("user_annotation")
    return next(event for event in steps if event["name"].startswith("ProfilerStep#"))


def _op(trace: Trace) -> Event:
    thread = _thread(trace)
    same = (e for e in trace.of("cpu_op") if e["tid"] == thread["tid"])
    return next(same)


def _call(trace: Trace) -> Event:
    return trace.activities[0].call


def _paused(
    rng: random.Random,
    trace: Trace,
    places: Sequence[int],
    lost: int,
    does: Does,
) -> tuple[Change, Callable[[Sequence[Replay]], Lost]]:
    """Let the host do something at some places, so that the device is idle for ``lost`` in all."""
    shares = [rng.uniform(0.7, 1.3) for _ in places]
    during: list[Interval] = []

    def one(share: float) -> Callable[[Replay, int], int]:
        def work(replay: Replay, start: int) -> int:
            end = does(replay, start, int(lost * share / sum(shares)))
            during.append((start, end))
            return end

        return work

    inserts = [(at, one(share)) for at, share in zip(places, shares, strict=True)]

    def measure(replays: Sequence[Replay]) -> Lost:
        busy = united(place for place in _placed(replays[0]))
        idle = without(united(during), busy)
        # Until something runs again, it is due to the same.
        after = 0
        for _, end in during:
            following = next(((s, e) for s, e in busy if e > end), (end, end))
            after += max(0, following[0] - end)
        return idle, idle + after

    return Change(inserts=inserts), measure


def _placed(replay: Replay, chosen: Callable[[Event], bool] = lambda event: True) -> list[Interval]:
    """When activities of the device ran, also those that were added."""
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    every = [each.event for each in replay.trace.activities]
    every += [e for e in replay.added if e.get("ph") == "X" and e.get("cat") in device]
    return [replay.placed[id(event)] for event in every if chosen(event)]


def _by_pauses(count: tuple[int, int], does: Callable[[Trace, random.Random], Does]) -> Draw:
    def draw(rng: random.Random, traces: Sequence[Trace], lost: int) -> Plan:
        (trace,) = traces
        places = _places(rng, trace, rng.randint(*count))
        change, measure = _paused(rng, trace, places, lost, does(trace, rng))
        return Plan({trace.rank: change}, measure)

    return draw


def _by_copies(rng: random.Random, traces: Sequence[Trace], lost: int) -> Plan:
    """Copies for which the host waits; what is lost is their own time."""
    plan = _by_pauses((1, 3), _copies)(rng, traces, lost)

    def measure(replays: Sequence[Replay]) -> Lost:
        kernels = united(_placed(replays[0], lambda event: event["cat"] == "kernel"))
        copies = united(_placed(replays[0], lambda event: event["name"] == _PAGEABLE))
        alone = without(copies, kernels)
        return alone, alone

    return dataclasses.replace(plan, measure=measure)


def _reads(trace: Trace, rng: random.Random) -> Does:
    """``.item()`` and ``torch.cuda.synchronize()``, and work with what was returned."""
    op, like = _op(trace), trace.activities[0]

    def does(replay: Replay, start: int, idle: int) -> int:
        done = replay.launch(
            like, "cudaMemcpyAsync", start + 8000, 9000, 1800,
            name="Memcpy DtoH (Device -> Pageable)", cat="gpu_memcpy", args={"bytes": 4},
        )  # fmt: skip
        call = max(start + 18_000, done + 6000)
        replay.span(_call(trace), "cudaStreamSynchronize", start + 18_000, call)
        replay.span(op, "aten::_local_scalar_dense", start + 4000, call + 2000)
        replay.span(op, "aten::item", start, call + 4000)
        until = max(call + 12_000, replay.drained() + 5000)
        replay.span(_call(trace), "cudaDeviceSynchronize", call + 6000, until)
        return until + idle

    return does


def _copies(trace: Trace, rng: random.Random) -> Does:
    """A copy of pageable memory, for which the host waits."""
    op, like = _op(trace), trace.activities[0]
    rate = rng.uniform(3, 11)

    def does(replay: Replay, start: int, idle: int) -> int:
        replay.hold(max(replay.drained(), start + 60_000))
        done = replay.launch(
            like, "cudaMemcpyAsync", start + 30_000, None, idle,
            name=_PAGEABLE, cat="gpu_memcpy",
            args={"bytes": int(idle * rate), "memory bandwidth (GB/s)": round(rate, 3)},
        )  # fmt: skip
        replay.span(_call(trace), "cudaStreamSynchronize", done + 6000, done + 16_000)
        for depth, name in enumerate(("aten::to", "aten::_to_copy", "aten::copy_")):
            replay.span(op, name, start + 4000 * depth, done + 28_000 - 4000 * depth)
        return done + 28_000

    return does


def _allocates(trace: Trace, rng: random.Random) -> Does:
    """Blocks are returned to the driver, which waits for the device, and requested again."""
    op, call = _op(trace), _call(trace)
    each = rng.randint(200, 900) * 1000

    def does(replay: Replay, start: int, idle: int) -> int:
        at = max(start + 20_000, replay.drained())
        replay.span(call, "cudaFree", start + 10_000, at)
        until = at + idle
        while at < until:
            name = rng.choice(("cudaFree", "cudaMalloc"))
            replay.span(call, name, at, min(at + each, until) - 2000)
            at = min(at + each, until)
        replay.span(op, "aten::empty", start, until + 3000)
        return until + 3000

    return does


def _computes(trace: Trace, rng: random.Random) -> Does:
    """An operator that works on the host."""
    op = _op(trace)
    name = rng.choice(("aten::sort", "aten::randperm", "aten::index_select", "aten::cumsum"))

    def does(replay: Replay, start: int, idle: int) -> int:
        end = max(start, replay.drained()) + idle
        replay.span(op, name, start, end)
        return end

    return does


def _in_python(trace: Trace, rng: random.Random) -> Does:
    """A Python function that launches nothing."""
    thread = _thread(trace)["tid"]
    frames = [frame for frame in trace.of("python_function") if frame["tid"] == thread]
    number = max(int(event["args"]["Python id"]) for event in frames)
    file, function = rng.choice(("train", "metrics")), rng.choice(("prepare", "collect"))
    name = f"{file}.py({rng.randint(20, 300)}): {function}"

    def does(replay: Replay, start: int, idle: int) -> int:
        nonlocal number
        number += 1
        end = max(start, replay.drained()) + idle
        around = [frame for frame in frames if frame["start"] <= replay.at < frame["end"]]
        parent = max(around, key=lambda frame: frame["start"], default=None)
        ids = {"Python id": number, "Python parent id": parent and parent["args"]["Python id"]}
        replay.span(frames[0], name, start, end, **ids)
        return end

    return does


def _slow_loader(rng: random.Random, traces: Sequence[Trace], lost: int) -> Plan:
    """The next batch is not there at the begin of a step."""
    (trace,) = traces
    kind = rng.choice(("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"))
    like = _thread(trace)
    ops = united((e["start"], e["end"]) for e in trace.of("cpu_op", "cuda_runtime"))

    def does(replay: Replay, start: int, idle: int) -> int:
        end = max(start, replay.drained()) + idle
        replay.span(like, f"enumerate(DataLoader)#{kind}.__next__", start + 500, end - 500)
        return end

    places = []
    for low, high in _some_steps(rng, trace):
        free = [low + 1, *(end + 1 for _, end in ops if low < end < high)]
        places.append(next(at for at in free if not any(s <= at <= e for s, e in ops)))
    change, measure = _paused(rng, trace, places, lost, does)
    return Plan({trace.rank: change}, measure)


def _slow_start(rng: random.Random, traces: Sequence[Trace], lost: int) -> Plan:
    """Code of kernels is loaded when they are launched first."""
    (trace,) = traces
    low, high = trace.steps[0]
    seen: dict[str, Activity] = {}
    for each in trace.activities:
        if each.event["cat"] == "kernel" and each.returned - each.launched > 2:
            seen.setdefault(each.event["name"], each)
    first = [each for each in seen.values() if low < each.launched and each.returned < high]
    chosen = rng.sample(first, min(len(first), rng.randint(3, 8)))

    def does(replay: Replay, start: int, idle: int) -> int:
        end = max(start, replay.drained()) + max(idle, 2 * MILLISECOND)
        replay.hold(end)
        return end

    places = sorted(each.launched + 1 for each in chosen)
    change, measure = _paused(rng, trace, places, lost, does)
    return Plan({trace.rank: change}, measure)


def _small_kernels(rng: random.Random, traces: Sequence[Trace], lost: int) -> Plan:
    """Kernels are many small ones, and launching takes longer than they do."""
    (trace,) = traces
    chosen = [
        each
        for each in trace.activities
        if each.event["cat"] == "kernel" and not each.communicates and each.returned > each.launched
    ]
    work = sum(each.end - each.start for each in chosen)
    pause = rng.randint(15, 40) * 1000
    pieces = {id(each): rng.randint(2, 4) for each in chosen}
    # The host must take as long as the device does before any of it is lost.
    scale = (work + lost) / (pause * sum(pieces.values()))
    pieces = {key: max(2, round(count * scale)) for key, count in pieces.items()}

    def cut(each: Activity) -> tuple[int, Callable[[Replay, int], int]]:
        count = pieces[id(each)]
        lasts = (each.end - each.start) // count

        def does(replay: Replay, start: int) -> int:
            for _ in range(count - 1):
                length = min(pause - 4000, max(4000, each.returned - each.launched))
                replay.launch(each, each.call["name"], start + 2000, length, lasts)
                start += pause
            return start

        return each.returned, does

    change = Change(
        inserts=[cut(each) for each in chosen],
        lasts=lambda each: (each.end - each.start) // pieces.get(id(each), 1),
    )

    def measure(replays: Sequence[Replay]) -> Lost:
        more = _idle(replays[0]) - trace.idle()
        return more, more

    return Plan({trace.rank: change}, measure)


def _idle(replay: Replay) -> int:
    return between(united(_placed(replay)))


def _pauses(rng: random.Random, traces: Sequence[Trace], lost: int) -> Plan:
    """The device pauses between kernels that were launched in time."""
    (trace,) = traces
    stream = trace.activities[0].lane
    share = rng.uniform(0.6, 1.0)
    mine = {
        id(each)
        for each in trace.activities
        if each.lane == stream and not each.communicates and rng.random() < share
    }
    pause = min(lost // len(mine), 25_000)

    def measure(replays: Sequence[Replay]) -> Lost:
        more = _idle(replays[0]) - trace.idle()
        return more, more

    change = Change(later=lambda each: pause if id(each) in mine else 0)
    return Plan({trace.rank: change}, measure)


def _exposed(rng: random.Random, traces: Sequence[Trace], lost: int) -> Plan:
    """Collectives run alone that ran beside computing, over a slower network."""
    (trace,) = traces
    ours = [each for each in trace.activities if each.communicates]
    factor = rng.uniform(1.0, 1.5)

    def takes(each: Activity) -> int:
        return int((each.end - each.start) * (factor if each.communicates else 1))

    def measure(replays: Sequence[Replay]) -> Lost:
        names = {each.event["name"] for each in ours}
        communicates = united(_placed(replays[0], lambda event: event["name"] in names))
        others = united(_placed(replays[0], lambda event: event["name"] not in names))
        alone = without(communicates, others)
        return alone, alone

    changes = {trace.rank: Change(lasts=takes, alone=lambda each: each.communicates)}
    while measure(replayed(traces, changes))[0] < lost:
        factor *= 1.25
    return Plan(changes, measure, whole=True)


def _slow_rank(rng: random.Random, traces: Sequence[Trace], lost: int) -> Plan:
    """Kernels of one rank take longer, and the others wait for it."""
    slow = rng.choice(traces)
    took = sum(e.end - e.start for e in slow.activities if not e.communicates)
    factor = 1 + lost / took

    def stretched(each: Activity) -> int:
        return int((each.end - each.start) * (1 if each.communicates else factor))

    def measure(replays: Sequence[Replay]) -> Lost:
        late = _kept_waiting(replays, slow.rank)
        return late, late

    changes = {slow.rank: Change(lasts=stretched)}
    # A part of it is hidden: where the rank's device was idle, or the rank had been early.
    while measure(replayed(traces, changes))[0] < lost:
        factor *= 1.25
        assert factor < 1e6, "no rank waits for another"
    return Plan(changes, measure, (slow.rank,), whole=True)


def _kept_waiting(replays: Sequence[Replay], rank: int) -> int:
    """Return how long the first to come to collectives waited for a rank that came last, ns."""
    starts: dict[Any, dict[int, int]] = defaultdict(dict)
    for replay in replays:
        for each in replay.trace.activities:
            if each.communicates:
                starts[each.collective][replay.trace.rank] = replay.placed[id(each.event)][0]
    return sum(
        times[rank] - min(times.values())
        for times in starts.values()
        if len(times) == len(replays) and max(times, key=lambda one: times[one]) == rank
    )


@dataclasses.dataclass(frozen=True)
class Fault:
    """A kind of plant, and the recorded jobs that it is planted into."""

    kind: str
    label: str
    jobs: tuple[str, ...]
    draw: Draw

    def job(self, seed: int) -> str:
        """Return the job for a seed: those for tuning and those for validation have all of them."""
        return self.jobs[seed // 2 % len(self.jobs)]


FAULTS = (
    Fault("slow_loader", "a batch is not there", BUSY, _slow_loader),
    Fault("host_sync", "results are read", BUSY, _by_pauses((1, 6), _reads)),
    Fault("host_code", "operators on the host", BUSY, _by_pauses((1, 3), _computes)),
    Fault("host_code", "Python functions", WITH_PYTHON, _by_pauses((2, 5), _in_python)),
    Fault("launch_bound", "many small kernels", BUSY[:1], _small_kernels),
    Fault("slow_start", "code is loaded", BUSY, _slow_start),
    Fault("straggler", "kernels of one rank take longer", OF_RANKS, _slow_rank),
    Fault("exposed_communication", "collectives run alone", WITH_COMMUNICATION, _exposed),
    Fault("allocator", "memory is returned", BUSY, _by_pauses((1, 4), _allocates)),
    Fault("copies", "copies of pageable memory", BUSY, _by_copies),
    Fault("false_dependency", "pauses between kernels", WITH_PYTHON, _pauses),
)
#: Why other kinds that traces are said to show are not planted.
NOT_PLANTED = {
    "no_tensor_cores": "needs the names and times of other kernels, which would be invented",
    "slow_unit": "needs traces of NPUs",
    "gpu_memory": "costs no time",
    "data_parallel": "costs no time that is known; it is found by its name",
    "waiting": "what is left where no rank is late",
    "unexplained": "what is left where no cause is known",
    "incomplete": "what is left where no cause is known",
}
KINDS = (*dict.fromkeys(fault.kind for fault in FAULTS), *NOT_PLANTED)


def stepped(traces: Sequence[Trace]) -> int:
    """Return how long the steps of a rank take at most, ns."""
    return max(sum(end - start for start, end in trace.steps) for trace in traces)


def plant(
    fault: Fault, seed: int, traces: Sequence[Trace], before: Iterable[Event], folder: Path
) -> Event:
    """Write a job with a fault; return what is true of it, as :func:`score.judge` asks.

    Args:
        fault: which.
        seed: what it is drawn from.
        traces: of the job without it.
        before: what is found in these.
        folder: where the traces go.
    """
    rng = random.Random(f"{fault.label} {seed}")
    there: dict[str, int] = {}
    for one in before:
        there.setdefault(one["kind"], one.get("lost_ns") or 0)
    whole = max(sum(end - start for start, end in trace.steps) for trace in traces)
    least = max(int(LEAST * whole), *there.values(), 0)
    plan = fault.draw(rng, traces, int(least * rng.uniform(*TIMES)))
    replays = replayed(traces, plan.changes)
    low, high = plan.measure(replays)
    if not plan.whole:
        high += there.get(fault.kind, 0)
    folder.mkdir(parents=True, exist_ok=True)
    for replay in replays:
        path = folder / f"worker{replay.trace.rank}.1700000000000.pt.trace.json"
        path.write_text(json.dumps(replay.document(), default=float), "utf-8")
    return {
        "label": fault.label, "kind": fault.kind, "also": [], "seed": seed, "measure": "replay",
        "lost_low_ns": low, "lost_high_ns": high, "time_ns": whole, "ready_ns": 0,
        "blocked_share": 0.0, "fetch_share": 0.0, "exit_code": 0, "ranks": list(plan.ranks),
        "places": [],
    }  # fmt: skip


def planted(
    data: Path,
    keep: Path,
    kinds: Iterable[str],
    seeds: Sequence[int],
    diagnose: Callable[[Path], list[Event]],
) -> Iterator[tuple[Event, list[Event]]]:
    """Plant into the recorded jobs of a folder; yield what is true and what is found of each.

    Args:
        data: has a folder ``traces`` with one of each job.
        keep: where what is planted goes.
        kinds: which.
        seeds: of each fault.
        diagnose: returns what is found in the traces of a folder.
    """
    wanted = set(kinds)
    asked: dict[str, list[tuple[Fault, int]]] = defaultdict(list)
    for fault in FAULTS:
        for seed in seeds if fault.kind in wanted else ():
            asked[fault.job(seed)].append((fault, seed))
    for job, both in asked.items():
        recorded = data / "traces" / job
        files = sorted(recorded.glob("*.json*"))
        if not files:
            raise SystemExit(f"{recorded}: there are no traces")
        traces, before = read(files), diagnose(recorded)
        for fault, seed in both:
            folder = keep / f"{fault.label} {seed}"
            yield plant(fault, seed, traces, before, folder), diagnose(folder)
