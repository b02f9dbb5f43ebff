"""The Analyzer on deep traces: of several ranks and sessions, and of other runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import runs
import traces
from polars.testing import assert_frame_equal

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.answers.rank_columns import WHO
from haiprof.errors import HaiprofError
from haiprof.export import csv
from haiprof.sources import tables
from haiprof.views.trace import idle, kernels, operators, overlap, overview, temporal
from haiprof.views.trace.as_other_tools import msprof_step_trace
from haiprof.views.trace.linking.linked import Linked, link


def collective(rank: int, start: float, length: float) -> list[dict[str, Any]]:
    """An all-reduce, as torch.profiler writes it."""
    args = {"Collective name": "allreduce", "In msg nelems": 256, "Out msg nelems": 256,
            "dtype": "Float", "Group size": 3, "Process Group Name": "0",
            "Process Group Ranks": "[0, 1, 2]"}  # fmt: skip
    ids = {"External id": 90, "correlation": 91}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    host = {"ph": "X", "pid": 41, "tid": 42}
    return [
        {**host, "cat": "cpu_op", "name": "record_param_comms", "ts": start - 30, "dur": 20,
         "args": {**args, "External id": 90}},
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start - 20, "dur": 5,
         "args": ids},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": start,
         "dur": length, "args": {**args, **ids, "device": 0, "stream": 20}},
    ]  # fmt: skip


def write(folder: Path, rank: int, session: int = 1, slower: float = 1.0) -> None:
    """One session of a rank: two steps and an all-reduce, in which rank 2 comes last."""
    document = traces.small(rank, begin=10_000 * session)
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel":
            event["dur"] *= slower
    length = 3 if rank == 2 else 30
    document["traceEvents"] += collective(rank, 10_000 * session + 190 - length, length)
    traces.write(folder / f"rank{rank}.{session}000.pt.trace.json", document)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three ranks, of which the first was profiled twice."""
    for rank in range(3):
        write(tmp_path / "t", rank)
    write(tmp_path / "t", 0, session=2)
    return tmp_path / "t"


FRAMES: dict[str, Callable[..., pl.DataFrame]] = {
    "operators": Analyzer.operators,
    "modules": Analyzer.modules,
    "flames": Analyzer.flames,
    "temporal": Analyzer.temporal,
    "idle": Analyzer.idle,
    "overlap": Analyzer.overlap,
    "launches": Analyzer.launches,
    "queue_length": Analyzer.queue_length,
    "bandwidth": Analyzer.bandwidth,
    "kernel_kinds": Analyzer.kernel_kinds,
    "hardware_counters": Analyzer.hardware_counters,
    "sequences": Analyzer.sequences,
    "step_trace": Analyzer.step_trace,
    "op_statistics": Analyzer.op_statistics,
    "recommendations": Analyzer.recommendations,
}
RECORDS = {"overview": Analyzer.overview, "memory": Analyzer.memory}
EVERY_RANK = {"operators", "temporal", "idle", "overlap", "step_trace", "op_statistics",
              "kernel_kinds", "queue_length", "launches", "recommendations"}  # fmt: skip


def assert_says_whose_rows_they_are(frame: pl.DataFrame) -> None:
    assert frame.columns[0] == "rank"
    assert frame.columns[-3:] == ["node", "pid", "session"]
    assert {name: frame.schema[name] for name in WHO} == WHO


@pytest.mark.parametrize("name", FRAMES)
def test_each_frame_says_whose_rows_they_are(folder: Path, name: str) -> None:
    run = Analyzer(folder)
    every, one = FRAMES[name](run), FRAMES[name](run, 0)
    for frame in (every, one):
        assert_says_whose_rows_they_are(frame)
    if name in EVERY_RANK:
        who = every.select("rank", "session").unique().rows()
        assert sorted(who) == [(0, 1), (0, 2), (1, 1), (2, 1)]
        assert sorted(one.select("rank", "session").unique().rows()) == [(0, 1), (0, 2)]
    assert one.height == every.filter(rank=0).height


@pytest.mark.parametrize("name", RECORDS)
def test_each_frame_of_a_record_says_so_too(folder: Path, name: str) -> None:
    run = Analyzer(folder)
    for every, one in zip(RECORDS[name](run), RECORDS[name](run, 1), strict=True):
        assert_says_whose_rows_they_are(every)
        assert one.height == every.filter(rank=1).height


def linked(run: Analyzer) -> dict[tuple[int | None, int], Linked]:
    by_process = {}
    for process in run.run.processes:
        frames = {name: tables.read_table(process.folder, table).frame
                  for name, table in tables.schema.TABLES.items()}  # fmt: skip
        assert process.trace is not None
        by_process[process.rank, process.trace.span] = link(
            *(frames[name] for name in ("spans", "kernels", "collectives", "flows"))
        )
    return by_process


def test_all_ranks_are_the_views_applied_one_by_one(folder: Path) -> None:
    run = Analyzer(folder)
    by_hand = {
        Analyzer.operators: operators.operators,
        Analyzer.temporal: temporal.temporal,
        Analyzer.idle: idle.idle,
        Analyzer.overlap: overlap.overlap,
        Analyzer.step_trace: msprof_step_trace.step_trace,
        Analyzer.steps: lambda one: overview.overview(one).steps,
        lambda run: run.kernels(by="name"): lambda one: kernels.kernels(one, by="name"),
    }
    for method, view in by_hand.items():
        frame = method(run)
        for (rank, session), one in linked(run).items():
            mine = frame.filter(rank=rank, session=session).drop(*WHO)
            assert_frame_equal(mine, view(one), categorical_as_str=True)


def test_other_processes_tell_the_same(folder: Path) -> None:
    here = Analyzer(folder)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        there = Analyzer(folder, executor=pool)
        for method in FRAMES.values():
            assert_frame_equal(method(there), method(here), categorical_as_str=True)
        for record in RECORDS.values():
            for theirs, mine in zip(record(there), record(here), strict=True):
                assert_frame_equal(theirs, mine, categorical_as_str=True)
        assert_frame_equal(there.stragglers(), here.stragglers(), categorical_as_str=True)
        assert list(there.critical_path()) == list(here.critical_path())
        assert there.headline() == here.headline()


def test_the_rank_that_came_last_let_the_others_wait(folder: Path) -> None:
    run = Analyzer(folder)
    late = run.stragglers().filter(session=1).sort("rank")
    assert late["rank"].to_list() == [0, 1, 2]
    assert late["caused"].to_list() == [0, 0, 27_000]
    assert late["waited"].to_list() == [27_000, 27_000, 0]
    assert late["pid"].to_list() == [p.pid for p in run.run.processes if p.trace.span == 1]  # type: ignore[union-attr]
    found = run.recommendations().filter(kind="straggler")
    assert found.select("rank", "session", "saves_ns").rows() == [(2, 1, 27_000)]
    assert "rank 2" in found["problem"][0]
    moved = run.distributed().transfers.filter(session=1)
    assert moved.group_by("rank").agg(pl.col("waiting").sum()).sort("rank").rows() == [
        (0, 27_000), (1, 27_000), (2, 0),
    ]  # fmt: skip
    assert run.distributed(1).steps["rank"].unique().to_list() == [1]


def test_workers_without_a_rank_are_distinguished(tmp_path: Path) -> None:
    for name in ("a", "b"):
        document = traces.small(None)
        document["traceEvents"] += collective(0, 1170, 20 if name == "a" else 2)
        traces.write(tmp_path / "t" / f"{name}.pt.trace.json", document)
    run = Analyzer(tmp_path / "t")
    assert list(run.compare(run)) == [p.label for p in run.run.processes]
    assert run.operators()["node"].cast(str).unique().sort().to_list() == ["a", "b"]


def test_a_step_that_one_session_has_is_found_in_it(tmp_path: Path) -> None:
    for session in (1, 2):
        document = traces.small(0, begin=1000 * session)
        for event in document["traceEvents"]:
            event["name"] = event["name"].replace("Step#1", f"Step#{10 * session}")
        traces.write(tmp_path / "t" / f"w.{session}000.pt.trace.json", document)
    run = Analyzer(tmp_path / "t")
    assert len(run.critical_path()) == 2
    assert list(run.critical_path(step=20)) == [run.run.processes[1].label]
    with pytest.raises(HaiprofError, match="99"):
        run.critical_path(step=99)
    with pytest.raises(HaiprofError, match="nowhere"):
        run.critical_path(inside="nowhere")


def test_what_less_work_would_save_is_of_the_step_that_is_asked_for() -> None:
    run = Analyzer(traces.files("hta_ns_resolution")[0].parent)
    half = run.what_if(step=103, kind="computation")
    assert half.select("step", "what", "name", "factor").rows() == [
        (103, "kind", "computation", 0.0), (103, "kind", "computation", 0.5),
    ]  # fmt: skip
    (path,) = run.critical_path(step=103).values()
    assert set(half["before"]) == {path.end - path.start}
    # The device works all the time, and the host is ahead by most of a step.
    assert half["saving"][1] / half["before"][1] > 0.4
    assert run.what_if(step=103, kind="host", factor=0)["saving"].to_list() == [0]
    assert run.what_if(step=103, operator="aten::mm", factor=1)["saving"].to_list() == [0]
    every = run.what_if()
    assert every["saving"].is_sorted(descending=True)
    assert set(every["what"]) == {"kind", "operator", "kernel"}
    with pytest.raises(HaiprofError, match="there is no operator 'aten::nothing'"):
        run.what_if(operator="aten::nothing")
    with pytest.raises(HaiprofError, match="there is no kernel 'nothing'"):
        run.what_if(kernel="nothing")
    with pytest.raises(HaiprofError, match="kind='work'"):
        run.what_if(kind="work")
    with pytest.raises(HaiprofError, match="choose one of operator=, kernel=, kind="):
        run.what_if(kind="host", kernel="gemm")


def test_waiting_for_a_rank_is_not_communication() -> None:
    run = Analyzer(traces.files("dlrm_8rank")[0].parent)
    slow = run.stragglers()["rank"][0]
    saved = {
        kind: dict(run.what_if(kind=kind, factor=0).select("rank", "saving").rows())
        for kind in ("communication", "waiting")
    }
    waited = run.critical_path()
    for rank, saving in saved["waiting"].items():
        path = waited[f"rank {rank}"].path
        waiting = path.filter(pl.col("kind").cast(pl.String) == "rank")["duration"].sum()
        assert 0 <= saving <= waiting
        assert (saving > 0) == (rank != slow)
        assert saved["communication"][rank] < max(saving, 100_000)
    # A kernel's waiting is not its work either.
    kernels = run.what_if(kernel="nccl", factor=0)
    assert dict(kernels.select("rank", "saving").rows()) == saved["communication"]


def test_compared_with_another_run(folder: Path, tmp_path: Path) -> None:
    for rank in (1, 2, 7):
        write(tmp_path / "later", rank, slower=2.0)
    before, after = Analyzer(folder), Analyzer(tmp_path / "later")
    assert list(before.compare(after)) == ["rank 1", "rank 2"]
    assert list(before.compare(after, 2)) == ["rank 2"]
    kernels_of = before.differences(after, of="kernels").filter(name="gemm")
    assert kernels_of["rank"].to_list() == [1, 2]
    write(tmp_path / "other", 5)
    write(tmp_path / "other", 6)
    for call in (before.compare, before.differences):
        with pytest.raises(HaiprofError, match="no rank in common"):
            call(Analyzer(tmp_path / "other"))
    with pytest.raises(HaiprofError, match="has no rank 9"):
        before.compare(after, 9)


def test_runs_of_one_trace_each_are_compared_whatever_their_names(tmp_path: Path) -> None:
    write(tmp_path / "a", 0)
    write(tmp_path / "b", 3)
    assert list(Analyzer(tmp_path / "a").compare(Analyzer(tmp_path / "b"))) == ["rank 0"]


@pytest.mark.parametrize("name", FRAMES)
def test_a_rank_that_is_not_there_is_an_error_of_one_line(folder: Path, name: str) -> None:
    with pytest.raises(HaiprofError, match=r"has no rank 9: it has ranks 0 to 2$"):
        FRAMES[name](Analyzer(folder), 9)


def test_a_run_of_our_own_tells_of_its_kernels_in_recorded_steps_only(tmp_path: Path) -> None:
    run = Analyzer(runs.make_gpu_run(tmp_path / "r", ranks=2))
    assert not run.traced
    found = run.recommendations(0)
    # Of each 12 ms of ten steps the GPU is busy for 9, one of them with communication alone. Why it
    # is idle is not known: haiprof does not record launches.
    assert found.select("kind", "saves_ns", "operator").rows() == [
        ("exposed_communication", 10_000_000, runs.ALL_REDUCE),
    ]
    idle = run.idle(0, by="device")
    assert idle["cause"].to_list() == ["unknown"]
    assert run.step_trace(0)["step"].to_list() == list(range(10, 20))
    assert run.operators().height == run.modules().height == 0
    assert run.kernels(by="name")["calls"].sum() == 2 * 70


def test_a_run_of_our_own_without_kernels_claims_nothing(tmp_path: Path) -> None:
    run = Analyzer(runs.make_gpu_run(tmp_path / "r", windows=False))
    assert run.recommendations().height == 0


def test_the_findings_of_a_run_of_our_own_are_its_recommendations(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    for rank in range(2):
        process = runs.write_process(run, rank, world_size=2)
        loads = runs.loop(400, [("dataloader", 9.0), ("forward", 2.0)])
        runs.write_closed(process, schema.SPANS, loads)
    opened = Analyzer(run)
    (finding,) = opened.findings()
    assert finding.ranks == (0, 1)
    rows = opened.recommendations()
    assert rows["rank"].to_list() == [0, 1]
    assert rows["saves_ns"].to_list() == [finding.lost_ns] * 2
    (row,) = opened.recommendations(1).to_dicts()
    assert (row["kind"], row["problem"], row["operator"]) == (
        "slow_loader", finding.problem, finding.phase,
    )  # fmt: skip
    assert row["evidence"] == "; ".join(each.sentence() for each in finding.evidence)
    assert "input 3.6 s of 4.8 s (ledger)" in row["evidence"]
    with pytest.raises(HaiprofError, match="has no rank 9"):
        opened.recommendations(9)


def test_a_trace_of_one_operator_has_every_view(tmp_path: Path) -> None:
    events = traces.small()["traceEvents"][2:3]
    traces.write(tmp_path / "t" / "w.pt.trace.json", {"schemaVersion": 1, "traceEvents": events})
    run = Analyzer(tmp_path / "t")
    for view in csv.VIEWS.values():
        view(run)
    assert run.headline() == [
        "No steps are marked in the trace of 50 µs: cpu 100 %, other 0 %",
        "No kernel ran on a GPU in what was traced",
        "Nothing was found that would make the traced steps shorter",
    ]
