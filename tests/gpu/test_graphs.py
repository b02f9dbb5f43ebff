"""CUDA graphs: replays are timed as a whole, and end the recording of kernels unless asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from cuda_jobs import run_job
from recording import wait_recorded

import haiprof

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="needs a torch without CUDA, whose place the jobs take"
)

MS = 1_000_000
#: A job whose kernels can be recorded; `recording()` says whether they are now.
KERNELS = """
    cupti = ctypes.CDLL("libcupti.so.13")  # as a torch with CUDA has it
    def launch(name, count=1):
        cupti.fake_launch(name, ctypes.c_uint64(count))
    def launch_graph(graph, name, count):
        cupti.fake_launch_graph(ctypes.c_uint32(graph), name, ctypes.c_uint64(count))
    def recording():
        return cupti.fake_enabled() != 0
    def train_until(true):
        end = time.monotonic() + 60
        while not true() and time.monotonic() < end:
            train(1, lambda: time.sleep(0.005))
        return true()
    def open_window():
        train_until(recording)
        train(1)  # one whole step: so it stays open until there are three
        return recording()
    def within(seconds, true):
        end = time.monotonic() + seconds
        while not true() and time.monotonic() < end:
            time.sleep(0.01)
        return true()
"""


def replays(log_dir: Path) -> pl.DataFrame:
    return haiprof.Analyzer(log_dir / "run").device_spans(category="graph").sort("start")


def events_of(log_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    events = haiprof.Analyzer(log_dir / "run").events(kind=kinds).sort("time")
    return [
        {"kind": str(row["kind"]), "text": row["text"], **json.loads(row["attributes"] or "{}")}
        for row in events.to_dicts()
    ]


def test_each_replay_is_where_the_gpu_was_with_its_graph_and_step(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    train(2)
    settled()
    work("before", 100 * MS)  # the GPU lags behind, so it is never idle
    begun.clear()
    late, early = CUDAGraph(2 * MS), CUDAGraph(MS)
    class Graphed(Model):
        def forward(self, x):
            for graph in (early, late, late):
                graph.replay()
            return super().forward(x)
    train(4, model=Graphed())
    settled()
    tell(begun=[entry for entry in begun if entry[0] == "graph"])
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    found = replays(tmp_path)
    assert found["name"].to_list() == ["graph 0", "graph 1", "graph 1"] * 4
    assert found["step"].to_list() == [step for step in range(2, 6) for _ in range(3)]
    for duration, expected in zip(found["duration"].to_list(), [1, 2, 2] * 4, strict=True):
        assert duration == pytest.approx(expected * MS, rel=1e-4)
    for (_, begun), start, unsure in zip(
        job["begun"], found["start"].to_list(), found["uncertainty"].to_list(), strict=True
    ):
        assert abs(start - begun) <= unsure
    # Phases are timed beside them as ever.
    spans = haiprof.Analyzer(tmp_path / "run").device_spans(category="phase")
    assert spans.height == 18


def test_a_replay_ends_the_recording_of_kernels_and_says_so(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        KERNELS + """
    haiprof.start(sys.argv[1], run="run", kernels_period=1, budget=0)
    use_cuda()
    before = open_window()
    launch(b"eager", 10)
    graph = CUDAGraph(MS)
    graph.replay()
    ended = within(5, lambda: not recording())
    train(100, lambda: time.sleep(0.02))  # two windows more would fall into it
    begins_again = within(1.5, recording)
    graph.replay()
    tell(before=before, ended=ended, begins_again=begins_again)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert job == {"before": True, "ended": True, "begins_again": False}
    [graphs] = events_of(tmp_path, "graphs")
    assert graphs["mode"] == "windows"
    assert "the job replays CUDA graphs, so kernels are no longer recorded" in graphs["text"]
    assert 'graphs="kernels"' in graphs["text"]
    begins, ends = events_of(tmp_path, "kernels")
    assert (begins["recording"], begins["why"]) == (True, "start")
    assert (ends["recording"], ends["why"]) == (False, "graphs")
    assert haiprof.Analyzer(tmp_path / "run").kernels().height == 10
    assert replays(tmp_path)["name"].to_list() == ["graph 0"] * 2


def test_cupti_stays_out_of_a_job_that_replays_a_graph_in_its_first_steps(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        KERNELS + """
    haiprof.start(sys.argv[1], run="run", kernels_period=1, budget=0)
    use_cuda()
    train(15)
    CUDAGraph(MS).replay()
    train(100, lambda: time.sleep(0.01))
    with haiprof.range("mine", device=True):
        pass
    tell(recording=recording(), attached=cupti.fake_attached())
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert job == {"recording": False, "attached": 0}
    [graphs] = events_of(tmp_path, "graphs")
    assert graphs["mode"] == "windows"
    assert "the job replays CUDA graphs, so kernels are not recorded" in graphs["text"]
    assert events_of(tmp_path, "kernels", "hook") == []
    assert replays(tmp_path).height == 1
    spans = haiprof.Analyzer(tmp_path / "run").device_spans()
    assert spans.height > 300
    # CUPTI's numbers are not known without it.
    assert spans["stream"].null_count() == spans.height


@pytest.mark.parametrize("options", ['graphs="kernels"', 'kernels="all"'])
def test_kernels_of_graphs_are_recorded_when_asked_for(
    shm: Path, tmp_path: Path, native_build: Path, options: str
) -> None:
    program = f"""
    haiprof.start(sys.argv[1], run="run", kernels_period=1, budget=0, {options})
    use_cuda()
    graph = CUDAGraph(MS)
    def step():
        graph.replay()
        launch_graph(5, b"in graph", 1)
        time.sleep(0.02)
    train(100, step)
    again = within(3, recording)
    launch_graph(5, b"late", 1)
    tell(again=again)
    """
    job = run_job(KERNELS + program, tmp_path, native_build)
    wait_recorded(shm)
    assert job == {"again": True}
    assert events_of(tmp_path, "graphs") == []
    kernels = haiprof.Analyzer(tmp_path / "run").kernels()
    assert kernels.filter(pl.col("name").cast(pl.String) == "late")["graph"].to_list() == [5]
    assert replays(tmp_path).height == 100


def test_who_asks_for_all_kernels_but_not_those_of_graphs_gets_them_until_a_replay(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        KERNELS + """
    haiprof.start(sys.argv[1], run="run", kernels="all", graphs="replays")
    use_cuda()
    before = within(5, recording)
    CUDAGraph(MS).replay()
    ended = within(5, lambda: not recording())
    # CUPTI goes on recording those of graphs if they were enabled before there was a context.
    launch_graph(5, b"not recorded", 100)
    tell(before=before, ended=ended)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert job == {"before": True, "ended": True}
    [graphs] = events_of(tmp_path, "graphs")
    assert graphs["mode"] == "all"
    assert haiprof.Analyzer(tmp_path / "run").kernels().height == 0


def test_graphs_that_are_not_torchs_are_seen_by_their_kernels(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        KERNELS + """
    haiprof.start(sys.argv[1], run="run")
    use_cuda()
    before = open_window()
    launch_graph(9, b"in graph", 1)
    tell(before=before, ended=within(5, lambda: not recording()))
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert job == {"before": True, "ended": True}
    assert len(events_of(tmp_path, "graphs")) == 1
    assert replays(tmp_path).is_empty()


def test_a_job_without_graphs_is_recorded_as_ever(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        KERNELS + """
    haiprof.start(sys.argv[1], run="run", kernels_period=1, budget=0)
    use_cuda()
    began = train_until(recording)  # a window ends with a step
    ended = train_until(lambda: not recording())
    tell(began=began, ended=ended, again=train_until(recording))
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert job == {"began": True, "ended": True, "again": True}
    assert events_of(tmp_path, "graphs") == []
    assert {event["why"] for event in events_of(tmp_path, "kernels")} <= {"start", "window", "stop"}


def test_the_next_recording_looks_for_graphs_anew(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        KERNELS + """
    graph = CUDAGraph(MS)
    for run in ("first", "run"):
        haiprof.start(sys.argv[1], run=run)
        use_cuda()
        before = open_window()
        graph.replay()
        ended = within(5, lambda: not recording())
        haiprof.stop()
    tell(before=before, ended=ended)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert job == {"before": True, "ended": True}
    assert replays(tmp_path)["name"].to_list() == ["graph 0"]


def test_torch_has_its_function_back_afterwards_and_graphs_are_not_kept_alive(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        """
    import weakref
    original = CUDAGraph.replay
    haiprof.start(sys.argv[1], run="run", kernels="off")
    untouched = CUDAGraph.replay is original  # before CUDA is used
    use_cuda()
    replaced = CUDAGraph.replay is not original
    named = CUDAGraph.replay.__qualname__ == original.__qualname__
    graph = CUDAGraph(MS)
    bound = graph.replay
    graph.replay()
    settled()
    haiprof.stop()
    back = CUDAGraph.replay is original
    recorded = calls("cuEventRecord")
    bound()
    quiet = calls("cuEventRecord") == recorded
    alive = weakref.ref(graph)
    del graph, bound
    tell(untouched=untouched, replaced=replaced, named=named, back=back, quiet=quiet,
         collected=alive() is None)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert all(job.values()), job
    assert replays(tmp_path).height == 1


def test_a_replay_that_raises_raises_and_has_no_time(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        KERNELS + """
    class Broken(CUDAGraph):
        pass
    def replay(self):
        if self.ns == 0:
            raise RuntimeError("not captured")
        work("graph", self.ns)
    CUDAGraph.replay = replay
    haiprof.start(sys.argv[1], run="run", kernels="all", graphs="replays")
    use_cuda()
    raised = 0
    for _ in range(150):
        try:
            Broken(0).replay()
        except RuntimeError as error:
            raised += str(error) == "not captured"
    before = within(5, recording)
    Broken(MS).replay()
    tell(raised=raised, before=before, events=calls("cuEventCreate"))
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert (job["raised"], job["before"]) == (150, True)
    assert job["events"] < 50  # the same ones again and again
    assert replays(tmp_path).height == 1


def test_a_replay_within_a_capture_is_left_alone(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    graph = CUDAGraph(MS)
    here.stream = new_stream()
    cuda.fake_cuda_capture(ctypes.c_void_p(here.stream), 1)
    graph.replay()
    cuda.fake_cuda_capture(ctypes.c_void_p(here.stream), 0)
    here.stream = 0
    graph.replay()
    tell(broken=cuda.fake_cuda_broken_captures())
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert job == {"broken": 0}
    assert replays(tmp_path).height == 1


def test_very_many_replays_are_not_all_paid_for(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    job = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    graph = CUDAGraph(1000)
    begin = time.monotonic()
    while time.monotonic() < begin + 2:
        for _ in range(100):
            graph.replay()
        time.sleep(0.01)
    counts = _core.gpu_counts()
    with haiprof.range("mine", device=True):
        pass
    tell(replays=counts["replays"], left_out=counts["replays_left_out"])
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    timed = job["replays"] - job["left_out"]
    assert job["replays"] > 3000
    assert 300 < timed < 250 * 3 + 200
    assert replays(tmp_path).height == pytest.approx(timed, abs=5)
    [gpu] = events_of(tmp_path, "gpu")
    assert f"{job['left_out']} replays of CUDA graphs to keep the cost down" in gpu["text"]
    assert haiprof.Analyzer(tmp_path / "run").device_spans(name="mine").height == 1


def test_a_torch_without_cuda_is_left_alone(shm: Path, tmp_path: Path) -> None:
    job = run_job(
        """
    original = CUDAGraph.replay
    haiprof.start(sys.argv[1], run="run")
    work = lambda name, ns: None
    try:
        torch.cuda._lazy_init()
    except (AssertionError, RuntimeError):
        pass
    tell(untouched=CUDAGraph.replay is original)
    """,
        tmp_path, None,
    )  # fmt: skip
    wait_recorded(shm)
    assert job == {"untouched": True}
