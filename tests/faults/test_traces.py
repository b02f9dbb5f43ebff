"""Plants in traces: that a profiler could have written what they make, and that they are found."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from faults import bench, replay, score, traces
from faults.replay import Change, Event
from real_data import DATA, need

from haiprof import Analyzer
from haiprof.findings.kinds import KINDS

STEPS, KERNELS = 6, 30
#: What a kernel takes, how far the host is ahead, and what a collective takes, µs.
KERNEL, AHEAD, COLLECTIVE = 95, 500, 300
PERIOD = KERNEL + 2


def job(ranks: int = 1) -> list[Event]:
    """Return the traces of a job in which the devices have always something to do."""
    return [{"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": ranks},
             "traceEvents": rank_of(100 + rank)} for rank in range(ranks)]  # fmt: skip


def rank_of(pid: int) -> list[Event]:
    events: list[Event] = []
    number = 0

    def host(category: str, name: str, at: float, length: float, **args: Any) -> None:
        events.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": pid,
                       "ts": at, "dur": length, "args": args})  # fmt: skip

    def launch(name: str, stream: int, at: float, begins: float, lasts: float) -> None:
        nonlocal number
        number += 1
        host("cpu_op", "aten::mm", at, 30, **{"External id": number})
        host("cuda_runtime", "cudaLaunchKernel", at + 5, 8, correlation=number)
        events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream,
                       "ts": begins, "dur": lasts,
                       "args": {"device": 0, "stream": stream, "correlation": number}})  # fmt: skip
        for phase, where, time in (("s", (pid, pid), at + 5), ("f", (0, stream), begins)):
            events.append({"ph": phase, "id": number, "pid": where[0], "tid": where[1],
                           "ts": time, "cat": "ac2g", "name": "ac2g", "bp": "e"})  # fmt: skip

    for step in range(STEPS):
        begin = 1000 + step * KERNELS * PERIOD
        ids = {"Python id": step + 1, "Python parent id": None}
        host("user_annotation", f"ProfilerStep#{step}", begin, KERNELS * PERIOD - 1)
        host("python_function", "train.py(10): step", begin, KERNELS * PERIOD - 1, **ids)
        host("cpu_op", "aten::empty", begin + 2, 4)
        for kernel in range(KERNELS):
            at = begin + 10 + kernel * PERIOD
            launch(f"gemm_{kernel % 5}", 7, at, at + AHEAD, KERNEL)
            if kernel % 10 == 5:
                done = at + AHEAD + KERNEL
                launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, at + 40, done + 1, COLLECTIVE)
    return events


def of_fault(fault: traces.Fault) -> list[replay.Trace]:
    return replay.made(job(2 if fault.kind == "straggler" else 1))


def found(folder: Path) -> list[dict[str, Any]]:
    return [dataclasses.asdict(finding) for finding in Analyzer(folder).findings()]


def by_label(fault: traces.Fault) -> str:
    return fault.label


def test_nothing_is_wrong_without_a_plant(tmp_path: Path) -> None:
    for rank, document in enumerate(job(2)):
        (tmp_path / f"worker{rank}.1.pt.trace.json").write_text(json.dumps(document))
    assert found(tmp_path) == []


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("fault", traces.FAULTS, ids=by_label)
def test_a_plant_is_found_first_and_costs_what_is_said(
    fault: traces.Fault, seed: int, tmp_path: Path
) -> None:
    true = traces.plant(fault, seed, of_fault(fault), [], tmp_path)
    row = score.judge(true, found(tmp_path))
    assert (row.usable, row.first, row.lost) == (None, True, True), (row, true)
    assert row.ranks in (None, True)


@pytest.mark.parametrize("fault", traces.FAULTS, ids=by_label)
def test_a_plant_makes_a_trace_that_could_have_been_recorded(
    fault: traces.Fault, tmp_path: Path
) -> None:
    traces.plant(fault, 1, of_fault(fault), [], tmp_path)
    for file in tmp_path.iterdir():
        document = json.loads(file.read_text("utf-8"))
        before = next(
            one for one in job(2) if one["distributedInfo"] == document["distributedInfo"]
        ) if fault.kind == "straggler" else job()[0]  # fmt: skip
        names = Counter(event["name"] for event in document["traceEvents"])
        assert not Counter(event["name"] for event in before["traceEvents"]) - names
        consistent(document["traceEvents"])


def consistent(events: list[Event]) -> None:
    """Check the order of streams, calls and arrows, and that spans of a thread do not cross."""
    lanes: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    calls, work = {}, {}
    for event in events:
        if event["ph"] != "X":
            continue
        number = event.get("args", {}).get("correlation")
        if event["cat"] in ("kernel", "gpu_memcpy"):
            work[number] = event
        elif event["cat"] == "cuda_runtime" and number is not None:
            assert number not in calls
            calls[number] = event
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for number, event in work.items():
        assert event["ts"] >= calls[number]["ts"]
    for arrow in events:
        if arrow["ph"] in "sf":
            end = calls if arrow["ph"] == "s" else work
            assert arrow["ts"] == end[arrow["id"]]["ts"]
    for (pid, _), spans in lanes.items():
        spans.sort(key=lambda span: (span[0], -span[1]))
        around: list[float] = []
        for start, end in spans:
            while around and around[-1] <= start + 1e-3:
                around.pop()
            assert not around or (pid >= 100 and end <= around[-1] + 1e-3)
            around.append(end)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_replay_without_a_change_gives_each_event_its_own_time(ranks: int) -> None:
    for one, before in zip(replay.replayed(replay.made(job(ranks)), {}), job(ranks), strict=True):
        times = [
            [(event["name"], event["ts"] - 1000 * past, event.get("dur")) for event in events]
            for past, events in ((0, one.document()["traceEvents"]), (1, before["traceEvents"]))
        ]
        assert times[0] == times[1]


def test_what_waited_for_the_device_goes_on_when_that_is_done() -> None:
    document = job()[0]
    last = max(e["ts"] + e["dur"] for e in document["traceEvents"] if e.get("cat") == "kernel")
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 100,
            "tid": 100, "ts": last - 300, "dur": 310, "args": {}}  # fmt: skip
    document["traceEvents"].append(call)
    (trace,) = replay.made([document])
    (longer,) = replay.replayed(
        [trace], {0: Change(lasts=lambda each: 2 * (each.end - each.start))}
    )
    written = longer.document()["traceEvents"]
    done = max(e["ts"] + e["dur"] for e in written if e.get("cat") == "kernel")
    (waited,) = (e for e in written if e["name"] == "cudaDeviceSynchronize")
    assert waited["ts"] + waited["dur"] == pytest.approx(done + 10, abs=0.01)
    assert done > last + 0.9 * STEPS * KERNELS * KERNEL - 1000


def test_who_comes_late_keeps_the_other_ranks_waiting() -> None:
    ranks = replay.made(job(2))
    slow = Change(lasts=lambda each: (1 if each.communicates else 2) * (each.end - each.start))
    late, other = replay.replayed(ranks, {0: slow})
    ends = [
        [one.placed[id(each.event)][1] for each in one.trace.activities if each.communicates]
        for one in (late, other)
    ]
    assert ends[0] == ends[1]
    assert ends[0][-1] > ranks[0].activities[-1].end


def test_a_seed_draws_the_same_again_and_another_seed_something_else(tmp_path: Path) -> None:
    fault = traces.FAULTS[0]
    for name, seed in (("a", 0), ("again", 0), ("other", 1)):
        traces.plant(fault, seed, of_fault(fault), [], tmp_path / name)
    texts = [next((tmp_path / name).iterdir()).read_text() for name in ("a", "again", "other")]
    assert texts[0] == texts[1] != texts[2]


def test_every_kind_that_traces_show_has_a_plant_or_a_reason() -> None:
    assert set(traces.KINDS) == {kind for kind, what in KINDS.items() if what.trace}
    assert not {fault.kind for fault in traces.FAULTS} & set(traces.NOT_PLANTED)


def test_seeds_for_validation_have_the_same_jobs() -> None:
    for fault in traces.FAULTS:
        assert [fault.job(0), fault.job(2)] == [fault.job(1), fault.job(3)]


def test_the_page_has_a_place_for_the_score() -> None:
    text = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text("utf-8")
    begin, end = bench.MARKS_OF_TRACES
    assert text.index(begin) < text.index(end)


@pytest.mark.parametrize("kind", ["host_sync", "host_code", "false_dependency"])
def test_a_plant_in_a_recorded_trace_is_found_first(kind: str, tmp_path: Path) -> None:
    jobs = {fault.job(1) for fault in traces.FAULTS if fault.kind == kind}
    for each in jobs:
        need(DATA / "traces" / each)
    for true, said in traces.planted(DATA, tmp_path, [kind], [0], found):
        row = score.judge(true, said)
        assert (row.usable, row.first, row.lost) == (None, True, True), (row, true)
