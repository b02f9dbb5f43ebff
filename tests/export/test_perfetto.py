"""Perfetto's trace of a run holds what its tables do, by Perfetto's own definitions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import perfetto_trace
import polars as pl
import pytest
import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import perfetto

_RUNS = ["tl_mi300_resnet_act_checkpoint", "dlrm_8rank", "handmade_modern", "hta_cupti_counters"]


def _written(run: Analyzer, folder: Path, **more: object) -> perfetto_trace.Trace:
    file = folder / "run.pftrace"
    perfetto.write(run, file, **more)  # type: ignore[arg-type]
    return perfetto_trace.read(file)


def _ends(frame: pl.DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(
        frame.select(
            pl.col("name").cast(pl.String),
            "start",
            end=pl.col("start") + pl.col("duration").clip(lower_bound=0),
        ).rows()
    )


@pytest.mark.parametrize("run", _RUNS)
def test_every_row_is_a_slice_on_the_track_of_its_thread_or_stream(
    tmp_path: Path, run: str
) -> None:
    opened = Analyzer(traces.files(run)[0].parent)
    trace = _written(opened, tmp_path)
    assert len(trace.processes) == len(opened.run.processes)
    for process in opened.run.processes:
        who = f"{process.label} on {process.node}"
        spans = opened.read(process, schema.SPANS, ["name", "start", "duration", "thread"])
        kernels = opened.read(process, schema.KERNELS, _KERNELS)
        lanes: dict[str, Counter[tuple[object, ...]]] = {}
        for each in trace.slices:
            if each.track[0] == who:
                lanes.setdefault(each.track[1], Counter())[each.name, each.start, each.end] += 1
        for (thread,), rows in spans.group_by("thread"):
            assert lanes.pop(f"thread {thread}") == _ends(rows)
        for (device, stream), rows in kernels.group_by("device", "stream"):
            name = "host" if device is None else f"GPU {device}"
            assert lanes.pop(name if stream is None else f"{name}, stream {stream}") == _ends(rows)
        assert all(": user" in name or "communication" in name for name in lanes)


_KERNELS = [
    "name", "start", "duration", "device", "stream", "correlation", "grid_x", "block_x",
    "registers", "shared_memory",
]  # fmt: skip


def test_a_kernel_has_its_launch_as_arguments(tmp_path: Path) -> None:
    opened = Analyzer(traces.files("tl_mi300_resnet_act_checkpoint")[0].parent)
    trace = _written(opened, tmp_path)
    columns = ["correlation", "grid_x", "block_x", "registers", "shared_memory"]
    rows = opened.read(opened.run.processes[0], schema.KERNELS, _KERNELS)
    wanted = Counter(
        (start, *(value for value in more))
        for start, *more in rows.select("start", *columns).rows()
    )
    found = Counter(
        (each.start, *(each.args.get(name) for name in columns))
        for each in trace.slices
        if ", stream " in each.track[1] and each.category in ("kernel", "memcpy", "memset", "sync")
    )
    assert found == wanted
    assert any(each.args.get("stack") or each.args.get("shapes") for each in trace.slices)


def test_arrows_lead_from_launches_to_kernels_and_from_forward_to_backward(tmp_path: Path) -> None:
    opened = Analyzer(traces.files("tl_mi300_resnet_act_checkpoint")[0].parent)
    trace = _written(opened, tmp_path)
    ends: dict[int, list[perfetto_trace.Slice]] = {}
    for each in trace.slices:
        for flow in each.flows:
            ends.setdefault(flow, []).append(each)
    process = opened.run.processes[0]
    columns = ["start", "category", "correlation"]
    calls = opened.read(process, schema.SPANS, columns, {"category": ["runtime"]})
    kernels = opened.read(process, schema.KERNELS, ["start", "correlation"])
    wanted = set(kernels.join(calls, on="correlation").select("start_right", "start").rows())
    assert wanted
    found = {
        (begin.start, end.start)
        for begin, *rest in ends.values()
        if begin.category == "runtime"
        for end in rest
    }
    assert found == wanted
    flows = opened.read(process, schema.FLOWS, ["time", "kind", "side", "id"])
    flows = flows.filter(pl.col("kind") == "fwdbwd")
    pairs = set(
        flows.filter(pl.col("side") == "start")
        .join(flows.filter(pl.col("side") == "end"), on="id")
        .select("time", "time_right")
        .rows()
    )
    assert len(pairs) > 100
    autograd = [both for both in ends.values() if {each.category for each in both} == {"op"}]
    assert {(begin.start, end.start) for begin, end in autograd} <= pairs
    # An operator can be part of one arrow only.
    assert len(autograd) >= 0.9 * len(pairs)


def test_a_run_of_ours_has_counters_device_phases_and_events(tmp_path: Path) -> None:
    opened = Analyzer(runs.make_gpu_run(tmp_path / "run", ranks=2))
    trace = _written(opened, tmp_path)
    assert set(trace.processes) == {"rank 0 on n0", "rank 1 on n0", "node n0"}
    samples = opened.samples().with_columns(pl.col(pl.Categorical).cast(pl.String))
    assert sum(map(len, trace.counters.values())) == samples.height
    total = sum(value for rows in trace.counters.values() for _, value in rows)
    assert total == pytest.approx(samples["value"].sum())
    node = samples.filter(pl.col("rank").is_null(), pl.col("instance") == "gpu1")
    metric = node["metric"][0]
    one = node.filter(pl.col("metric") == metric).sort("time")
    track = ("node n0", f"{metric} gpu1")
    assert trace.counters[track] == one.select("time", "value").rows()
    assert trace.units[track] == metric.split(".")[-1]
    phases = trace.on("rank 1 on n0", "GPU 0, stream 7: phase")
    device = opened.device_spans(rank=1)
    assert sum(each.end - each.start for each in phases) == device["duration"].sum()
    assert [each.args["step"] for each in phases] == device.sort("start")["step"].to_list()
    assert Counter(name for _, _, name, _ in trace.instants) == Counter(
        opened.events()["kind"].cast(pl.String).to_list()
    )
    steps = [each for each in trace.on("rank 0 on n0", "thread 1") if each.category == "step"]
    assert len(steps) == opened.steps(rank=0).height
    assert {each.depth for each in steps} == {0}


def test_sampled_stacks_have_a_lane_for_each_thread(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    process = runs.write_process(run, 0)
    of_worker = runs.stack(0, 1, process=2000, thread=2000)
    of_main = [runs.stack(0, 2, 2, thread=1000), runs.stack(200, 3, thread=1000)]
    runs.write_closed(process, schema.FRAMES, runs.FRAMES)
    runs.write_closed(process, schema.STACKS, [*of_main, of_worker])
    trace = _written(Analyzer(run), tmp_path)
    main = trace.on("rank 0 on n0", "stacks, main thread")
    assert [(each.name, each.end - each.start, each.depth) for each in main] == [
        ("<module> (/job/train.py)", 300 * runs.MS, 0),
        ("Model.forward (/job/model.py)", 200 * runs.MS, 1),
        ("backward (/job/train.py)", 100 * runs.MS, 1),
    ]
    assert [each.args["samples"] for each in main] == [3, 2, 1]
    worker = trace.on("rank 0 on n0", "stacks, worker 2000")
    assert [each.name for each in worker] == ["<module> (/job/train.py)", "load (/job/data.py)"]


def test_each_stage_of_a_pipeline_has_a_lane(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    rows = [
        {
            **runs.device_span(10 * n + 100 * stage, 10, name, 0, category="pipeline"),
            "stream": None,
            "stage": stage,
            "microbatch": n,
        }
        for stage in (0, 1)
        for n, name in enumerate(("forward", "forward", "backward"))
    ]
    runs.write_closed(runs.write_process(run), schema.DEVICE_SPANS, rows)
    trace = _written(Analyzer(run), tmp_path)
    for stage in (0, 1):
        lane = trace.on("rank 0 on n0", f"GPU 0, stage {stage}")
        assert [(each.name, each.args["microbatch"]) for each in lane] == [
            ("forward", 0),
            ("forward", 1),
            ("backward", 2),
        ]
        assert {each.args["stage"] for each in lane} == {stage}


def test_replays_of_graphs_have_a_lane_beside_the_phases(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    rows = [runs.device_span(0, 10, "forward", 3)]
    rows += [runs.device_span(t, 2, "graph 0", 3, category="graph") for t in (1, 5)]
    runs.write_closed(runs.write_process(run), schema.DEVICE_SPANS, rows)
    trace = _written(Analyzer(run), tmp_path)
    lane = trace.on("rank 0 on n0", "GPU 0, stream 7: graph")
    assert [(each.name, each.end - each.start, each.args["step"]) for each in lane] == [
        ("graph 0", 2 * runs.MS, 3)
    ] * 2


def test_what_crosses_has_a_lane_below_its_thread(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    rows = [
        runs.span(0, 10, "op", "outer"),
        runs.span(5, 10, "op", "crossing"),
        runs.span(6, 2, "op", "inner"),
        runs.span(10, 0, "op", "moment"),
        runs.span(10, 5, "op", "next"),
    ]
    runs.write_closed(runs.write_process(run), schema.SPANS, rows)
    trace = _written(Analyzer(run), tmp_path)
    on = {each.name: (each.track[2:], each.depth) for each in trace.slices}
    assert on == {
        "outer": ((), 0),
        "inner": ((), 1),
        "next": ((), 0),
        "moment": ((), 1),
        "crossing": (("crossing 1",), 0),
    }
    assert {each.name: each.end - each.start for each in trace.slices} == {
        "outer": 10 * runs.MS,
        "crossing": 10 * runs.MS,
        "inner": 2 * runs.MS,
        "moment": 0,
        "next": 5 * runs.MS,
    }


def test_a_clock_moves_all_times_of_its_node(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    for rank, node in enumerate(("n0", "n1")):
        process = runs.write_process(run, rank, node, world_size=2)
        runs.write_closed(process, schema.SPANS, runs.loop(5))
        runs.write_closed(process, schema.KERNELS, runs.kernel_loop(0, 4))
        runs.write_closed(process, schema.SAMPLES, runs.host_samples(3))
        runs.write_closed(process, schema.EVENTS, [runs.event(0.01, "mark", "begin")])
    opened = Analyzer(run)
    plain = _written(opened, tmp_path)
    (tmp_path / "run.pftrace").unlink()
    moved = _written(opened, tmp_path, clock={"n1": lambda times: times + np.int64(12_345)})
    by = {"rank 0 on n0": 0, "rank 1 on n1": 12_345}
    assert {each.track[0] for each in plain.slices} == set(by)
    for before, after in zip(
        sorted(plain.slices, key=_place), sorted(moved.slices, key=_place), strict=True
    ):
        late = by[after.track[0]]
        assert (before.track, before.name) == (after.track, after.name)
        assert (after.start - before.start, after.end - before.end) == (late, late)
    assert set(plain.counters) == set(moved.counters)
    for track, values in plain.counters.items():
        assert moved.counters[track] == [(time + by[track[0]], value) for time, value in values]
    for before, after in zip(sorted(plain.instants), sorted(moved.instants), strict=True):
        assert after[1] - before[1] == by[after[0][0]]


def _place(each: perfetto_trace.Slice) -> tuple[object, ...]:
    return (each.track, each.name, each.start)


def test_processes_of_one_number_and_names_of_any_kind_stay_apart(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    name = 'a"b\\\n\u202e</script>\x00'
    for rank in (0, 1):
        process = runs.write_process(run, rank, node=f"n{rank}", pid=7, world_size=2)
        row = {**runs.span(0, 1, "op", name), "thread": 2**32 - 1}
        row |= {"attributes": json.dumps({"of": name}), "sequence": -1}
        runs.write_closed(process, schema.SPANS, [row])
    trace = _written(Analyzer(run), tmp_path)
    assert len(set(trace.processes.values())) == 2
    assert [each.name for each in trace.slices] == [name, name]
    assert {json.loads(each.args["attributes"])["of"] for each in trace.slices} == {name}
    assert {each.args["sequence"] for each in trace.slices} == {-1}


def test_one_rank_and_compressed(tmp_path: Path) -> None:
    opened = Analyzer(runs.make_gpu_run(tmp_path / "run", ranks=2))
    labels: list[str] = []
    perfetto.write(opened, tmp_path / "one.pftrace.gz", 1, on_process=labels.append)
    assert labels == ["rank 1", "node n0"]
    trace = perfetto_trace.read(tmp_path / "one.pftrace.gz")
    assert set(trace.processes) == {"rank 1 on n0", "node n0"}
    with pytest.raises(HaiprofError, match="--rank 2: the run has no such rank: it has 0, 1"):
        perfetto.write(opened, tmp_path / "two.pftrace", 2)
    assert not (tmp_path / "two.pftrace").exists()
