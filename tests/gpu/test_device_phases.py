"""Phases and ranges on the GPU: from a training loop and a double of the driver to the Analyzer."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

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
LONG = {"forward": 2 * MS, "backward": 3 * MS, "optimizer": 1 * MS}


def device_spans(log_dir: Path) -> pl.DataFrame:
    return haiprof.Analyzer(log_dir / "run").device_spans().sort("start")


def texts(log_dir: Path, kind: str) -> list[str]:
    events = haiprof.Analyzer(log_dir / "run").events()
    return events.filter(pl.col("kind") == kind)["text"].to_list()


@pytest.mark.parametrize("drift", ["0", "30"])
def test_phases_of_each_step_are_where_the_gpu_was(
    shm: Path, tmp_path: Path, native_build: Path, drift: str
) -> None:
    result = run_job(
        """
    train(2)  # what torch does only once
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    work("before", 400 * MS)  # the GPU lags behind, so it is never idle
    begun.clear()
    train(8)
    settled()
    tell(begun=begun)
    haiprof.stop()
    """,
        tmp_path, native_build, FAKE_CUDA_DRIFT=drift,
    )  # fmt: skip
    wait_recorded(shm)
    found = device_spans(tmp_path)
    assert set(found["category"].to_list()) == {"phase"}
    assert found["name"].to_list() == [name for name, _ in result["begun"]]
    assert found["step"].to_list() == [n // 3 for n in range(24)]
    for name, duration in found.select("name", "duration").iter_rows():
        assert duration == pytest.approx(LONG[name], rel=1e-4)
    for (_, begun), start, unsure in zip(
        result["begun"], found["start"].to_list(), found["uncertainty"].to_list(), strict=True
    ):
        assert abs(start - begun) <= unsure
    assert statistics.median(found["uncertainty"].to_list()) < MS
    assert found["device"].unique().to_list() == [0]
    assert found["microbatch"].null_count() == found["stream"].null_count() == found.height
    assert texts(tmp_path, "hook") == texts(tmp_path, "lost") == []
    assert texts(tmp_path, "gpu") == ["24 intervals timed on the GPU"]
    # The host was done long before the GPU began.
    hosts = haiprof.Analyzer(tmp_path / "run").spans().filter(pl.col("name") == "forward")
    assert hosts["start"].max() < found["start"].min()  # type: ignore[operator]


def test_the_end_waits_for_what_the_gpu_is_about_to_do(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    work("before", 20 * MS)
    train(5)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert device_spans(tmp_path).height == 15


def test_a_gpu_that_hangs_costs_its_intervals_and_no_time_worth_naming(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    result = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    train(2)
    settled()
    work("hang", 3600 * 1000 * MS)
    train(400)  # more than there are events for
    begin = time.monotonic()
    haiprof.stop()
    tell(took=time.monotonic() - begin)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert result["took"] < 5
    assert device_spans(tmp_path).height == 6
    [lost] = texts(tmp_path, "lost")
    assert "intervals the GPU had not finished" in lost


def test_events_that_are_all_waited_for_are_counted(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    result = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    work("hang", 3600 * 1000 * MS)
    for _ in range(600):
        with haiprof.range("mine", device=True):
            pass
    tell(counts=_core.gpu_counts(), events=calls("cuEventCreate"))
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    # Each takes two events of the 1024; an anchor takes a few of its own.
    assert result["counts"]["boundaries_exhausted"] == 600 - 512
    assert 1024 <= result["events"] < 1100
    assert device_spans(tmp_path).is_empty()
    [lost] = texts(tmp_path, "lost")
    assert "88 boundaries without a free CUDA event" in lost
    assert "512 intervals the GPU had not finished" in lost


def test_a_stream_that_captures_a_graph_is_left_alone(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    result = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    train(2)
    graph = here.stream = new_stream()
    cuda.fake_cuda_capture(ctypes.c_void_p(graph), 1)
    model = Model()
    loss = model(torch.ones(4))
    loss.backward()
    time.sleep(0.3)  # the collector asks for events meanwhile
    with haiprof.range("captured", device=True):
        pass
    cuda.fake_cuda_capture(ctypes.c_void_p(graph), 0)
    here.stream = 0
    train(2)
    begun = begun[:6] + begun[-6:]
    settled()
    tell(broken=cuda.fake_cuda_broken_captures())
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert result["broken"] == 0
    assert device_spans(tmp_path)["name"].to_list() == ["forward", "backward", "optimizer"] * 4
    [gpu] = texts(tmp_path, "gpu")
    assert "inside the capture of a graph" in gpu


def test_an_interval_that_changes_streams_is_left_out_and_counted(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    side = new_stream()
    with haiprof.range("main", device=True):
        work("main", MS)
        here.stream = side
        with haiprof.range("side", device=True):
            work("side", MS)
        here.stream = 0
    with haiprof.range("apart", device=True):
        here.stream = side
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert sorted(device_spans(tmp_path)["name"].to_list()) == ["main", "side"]
    [lost] = texts(tmp_path, "lost")
    assert lost == (
        "GPU intervals lost: 1 intervals that ended on another stream than they began on"
    )


def test_a_jobs_own_cuda_error_ends_the_timing_and_nothing_else(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    result = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    train(2)
    settled()
    cuda.fake_cuda_break(700)
    train(50)
    time.sleep(0.3)
    train(50)
    recorded = calls("cuEventRecord"), calls("cuStreamIsCapturing")
    train(50)
    tell(quiet=recorded == (calls("cuEventRecord"), calls("cuStreamIsCapturing")))
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert result["quiet"]
    assert device_spans(tmp_path).height == 6
    [text] = texts(tmp_path, "hook")
    assert text.startswith("phases are no longer timed on the GPU: cu")
    assert text.endswith("an illegal memory access was encountered")
    steps = haiprof.Analyzer(tmp_path / "run").spans().filter(pl.col("category") == "step")
    assert steps.height == 152


def test_an_error_of_work_under_way_is_not_taken_for_one_of_the_timing(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    cuda.fake_cuda_pend_error(700)
    train(2)
    settled()
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert device_spans(tmp_path).height == 6
    assert texts(tmp_path, "hook") == []


def test_one_hardware_queue_that_is_never_empty_costs_precision_and_nothing_else(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    result = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    def ahead():
        # The host is 100 ms ahead of the GPU, so an event on any stream waits as long.
        while begun and begun[-1][1] - time.time_ns() > 100 * MS:
            time.sleep(0.001)
    train(20, ahead)
    queries, begin = calls("cuEventQuery"), time.monotonic()
    train(600, ahead)
    polls, took = calls("cuEventQuery") - queries - 3 * 600, time.monotonic() - begin
    behind = begun[-1][1] - time.time_ns()
    resolved = _core.gpu_counts()["device_spans"]
    settled()
    tell(begun=begun, behind=behind, resolved=resolved, polls_per_s=polls / took)
    """,
        tmp_path, native_build, CUDA_DEVICE_MAX_CONNECTIONS="1",
    )  # fmt: skip
    wait_recorded(shm)
    assert result["behind"] > 20 * MS
    assert result["resolved"] > 0.9 * len(result["begun"])
    assert result["polls_per_s"] < 2000
    found = device_spans(tmp_path).select("step", "name", "start", "uncertainty").rows()
    placed = {(step, name): (start, unsure) for step, name, start, unsure in found}
    assert len(placed) == len(found) == len(result["begun"])
    free = 0  # when the GPU was done with what came before
    waited = 0
    for place, (name, began) in enumerate(result["begun"]):
        start, unsure = placed[place // 3, name]
        # Where the queue was empty, the event happened before the work was there.
        assert min(free, began) - unsure <= start <= began + unsure
        waited += began == free
        free = began + LONG[name]
    assert waited > 0.9 * len(result["begun"])
    # An event waits for 100 ms, which is all that is known of when the first was there, unless the
    # job was so late that it found the queue empty.
    assert placed[0, "forward"][1] < 300 * MS
    assert placed[619, "optimizer"][1] < 25 * MS
    assert texts(tmp_path, "hook") == texts(tmp_path, "lost") == []


def test_ranges_are_timed_on_the_gpu_when_asked_for(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    with haiprof.range("early", device=True, microbatch=0):
        pass
    use_cuda()
    work("before", 50 * MS)

    @haiprof.range("decorated", device=True, microbatch=7, chunk=0)
    def decorated(deep):
        work("decorated", MS)
        if deep:
            decorated(deep - 1)

    f = haiprof.range("F", device=True, microbatch=1, stage=3)
    with f:
        work("F", 2 * MS)
        with f:
            work("F", MS)
    decorated(1)
    with haiprof.range("host", microbatch=5):
        pass

    def other_thread():
        cuda.fake_cuda_use(0)
        here.stream = new_stream()
        with haiprof.range("thread", device=True):
            work("thread", 4 * MS)

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    found = device_spans(tmp_path)
    assert set(found["category"].to_list()) == {"user"}
    rows = sorted(found.select("name", "microbatch", "duration").iter_rows(), key=str)
    rows = [(name, batch, round(duration / MS, 2)) for name, batch, duration in rows]
    assert rows[:4] == [("F", 1, 1.0), ("F", 1, 3.0), ("decorated", 7, 1.0), ("decorated", 7, 2.0)]
    [(name, batch, duration)] = rows[4:]
    assert (name, batch) == ("thread", None)
    assert 4 <= duration < 50
    hosts = haiprof.Analyzer(tmp_path / "run").spans(category="user").sort("start")
    assert sorted(hosts["name"].to_list()) == [
        "F", "F", "decorated", "decorated", "early", "host", "thread"
    ]  # fmt: skip
    attributes = dict(hosts.unique("name").select("name", "attributes").iter_rows())
    assert json.loads(attributes["F"]) == {"microbatch": 1, "stage": 3}
    places = found.unique("name").sort("name").select("name", "stage", "chunk").rows()
    assert places == [("F", 3, None), ("decorated", None, 0), ("thread", None, None)]
    assert json.loads(attributes["host"]) == {"microbatch": 5}
    assert attributes["thread"] is None


@pytest.mark.parametrize("bad", ["-1", "'first'", "4294967295", "1.5", "True", "object()"])
def test_a_bad_microbatch_is_reported_and_left_out(
    shm: Path, tmp_path: Path, native_build: Path, bad: str
) -> None:
    program = f"""
    import io
    sys.stderr = io.StringIO()
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    with haiprof.range("F", device=True, microbatch={bad}):
        work("F", MS)
    tell(stderr=sys.stderr.getvalue())
    """
    result = run_job(program, tmp_path, native_build)
    wait_recorded(shm)
    assert "microbatch must be a whole number from 0 to 4294967294" in result["stderr"]
    assert result["stderr"].count("\n") == 1
    assert device_spans(tmp_path)["microbatch"].to_list() == [None]


def test_other_threads_run_while_the_driver_has_no_room(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    result = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    train(1)
    cuda.fake_cuda_record_takes(ctypes.c_uint64(300 * MS))
    entered = threading.Event()
    ticks = []
    def tick():
        entered.wait()
        while entered.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)
    thread = threading.Thread(target=tick)
    thread.start()
    span = haiprof.range("slow", device=True)
    entered.set()
    begin = time.monotonic()
    with span:
        end = time.monotonic()
    entered.clear()
    thread.join()
    cuda.fake_cuda_record_takes(ctypes.c_uint64(0))
    tell(took=end - begin, ticks=sum(begin < t < end for t in ticks))
    """,
        tmp_path, native_build,
    )  # fmt: skip
    assert result["took"] > 0.25
    assert result["ticks"] > 3  # none where they wait for it


def test_two_devices_of_one_process_and_their_names(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda(0)
    with haiprof.range("first", device=True):
        work("first", MS)
    cuda.fake_cuda_use(2)
    with haiprof.range("third", device=True):
        work("third", MS)
    with haiprof.range("apart", device=True):
        cuda.fake_cuda_use(0)
    """,
        tmp_path, native_build, FAKE_CUDA_DEVICES="3", FAKE_CUDA_NAME="Fake GPU MIG 1g.5gb",
    )  # fmt: skip
    wait_recorded(shm)
    found = dict(device_spans(tmp_path).select("name", "device").iter_rows())
    assert found == {"first": 0, "third": 2}
    [process] = tmp_path.glob("run/*#*/process.json")
    gpus = json.loads(process.read_text())["gpus"]
    assert [gpu["device"] for gpu in gpus] == [0, 2]
    assert gpus[1] == {
        "device": 2, "uuid": "MIG-20212223-2425-2627-2829-2a2b2c2d2e2f",
        "name": "Fake GPU MIG 1g.5gb", "memory_bytes": 80 << 30,
    }  # fmt: skip


def test_their_streams_are_those_of_the_kernels(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    run_job(
        """
    cupti = ctypes.CDLL("libcupti.so.13")  # as a torch with CUDA has it
    haiprof.start(sys.argv[1], run="run", kernels="all")
    use_cuda()
    while not cupti.fake_enabled():
        time.sleep(0.001)
    cupti.fake_launch(b"gemm", ctypes.c_uint64(10))
    train(2)
    here.stream = new_stream()
    for _ in range(2):
        with haiprof.range("side", device=True):
            pass
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    streams = dict(device_spans(tmp_path).unique("name").select("name", "stream").iter_rows())
    assert streams == {"forward": 7, "backward": 7, "optimizer": 7, "side": 13}
    kernels = haiprof.Analyzer(tmp_path / "run").kernels()
    assert set(kernels["stream"].to_list()) == {7}
    lines = texts(tmp_path, "gpu")
    assert lines[0].startswith("10 kernels and 0 other GPU activities; ")
    assert lines[1:] == ["8 intervals timed on the GPU"]


def test_a_second_recording_is_timed_as_the_first(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    run_job(
        """
    for run in ("first", "run"):
        haiprof.start(sys.argv[1], run=run, kernels="off")
        use_cuda()
        train(3)
        haiprof.stop()
        train(3)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert device_spans(tmp_path).height == 9
    assert haiprof.Analyzer(tmp_path / "first").device_spans().height == 9
    for run in ("first", "run"):
        [process] = tmp_path.glob(f"{run}/*#*/process.json")
        [gpu] = json.loads(process.read_text())["gpus"]
        assert gpu["uuid"] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_a_forked_child_times_nothing(shm: Path, tmp_path: Path, native_build: Path) -> None:
    result = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    train(2)
    with haiprof.range("across", device=True):
        pid = os.fork()
    if pid == 0:
        before = calls("cuEventRecord")
        begun.clear()
        train(2)
        with haiprof.range("child", device=True):
            pass
        haiprof.stop()
        os._exit(0 if calls("cuEventRecord") == before else 1)
    tell(child=os.waitpid(pid, 0)[1])
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert result["child"] == 0
    assert device_spans(tmp_path).filter(pl.col("name") != "across").height == 6


@pytest.mark.parametrize("how", ["os._exit(0)", "sys.exit()", "raise SystemExit(0)"])
def test_the_job_ends_as_it_likes_with_intervals_pending(
    shm: Path, tmp_path: Path, native_build: Path, how: str
) -> None:
    program = f"""
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    span = haiprof.range("never left", device=True)
    span.__enter__()
    train(2)
    settled()
    work("hang", 3600 * 1000 * MS)
    train(2)
    {how}
    """
    run_job(program, tmp_path, native_build)
    wait_recorded(shm)
    assert device_spans(tmp_path).height == 6


def test_a_thread_inside_the_driver_does_not_break_the_interpreters_end(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    # A range: torch's own operators end the process when a daemon thread runs them at that time.
    run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    def loop():
        here.stream = 0
        cuda.fake_cuda_use(0)
        while True:
            with haiprof.range("mine", device=True):
                pass
    cuda.fake_cuda_record_takes(ctypes.c_uint64(20 * MS))
    for _ in range(4):
        threading.Thread(target=loop, daemon=True).start()
    while _core.gpu_counts()["device_spans"] < 10:
        time.sleep(0.01)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    assert device_spans(tmp_path).height >= 10


@pytest.mark.parametrize("doubles", [True, False])
def test_a_job_that_uses_no_gpu_pays_for_none(
    shm: Path, tmp_path: Path, native_build: Path, doubles: bool
) -> None:
    result = run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    if cuda is None:
        work = lambda name, ns: None
    train(3)
    with haiprof.range("mine", device=True):
        pass
    libraries = open("/proc/self/maps").read()
    tell(collecting=_core.gpu_collecting(), init=calls("cuInit") if cuda else 0,
         loaded="libcuda.so" in libraries)
    """,
        tmp_path, native_build if doubles else None,
    )  # fmt: skip
    wait_recorded(shm)
    assert result == {"collecting": False, "init": 0, "loaded": doubles}
    assert device_spans(tmp_path).is_empty()
    assert texts(tmp_path, "hook") == texts(tmp_path, "gpu") == []


def test_many_calls_a_step_are_not_all_paid_for(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    result = run_job(
        """
    small = nn.Identity()
    def many():
        time.sleep(0.03)
        for _ in range(500):
            small(None)
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    train(2)
    begin = time.monotonic()
    train(50, each=many)
    tell(recorded=calls("cuEventRecord"), took=time.monotonic() - begin)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    found = device_spans(tmp_path)
    assert result["recorded"] < 700 + 1050 * result["took"]
    steps = {name: set(rows["step"].to_list()) for (name,), rows in found.group_by("name")}
    assert steps["forward"] == steps["backward"] == steps["optimizer"]
    assert len(steps["forward"]) > 5
    assert texts(tmp_path, "lost") == []
    [gpu] = texts(tmp_path, "gpu")
    assert "ends of phases to keep the cost down" in gpu


def test_evaluation_is_timed_from_its_first_call_to_its_last(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    run_job(
        """
    haiprof.start(sys.argv[1], run="run", kernels="off")
    use_cuda()
    model = Model()
    work("before", 30 * MS)
    train(2, model=model)
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(torch.ones(100, 4)):
            model(batch[0])
            time.sleep(0.005)
    """,
        tmp_path, native_build,
    )  # fmt: skip
    wait_recorded(shm)
    found = device_spans(tmp_path).filter(pl.col("name") == "eval")
    assert found.height == 100
    assert set(found["step"].to_list()) == {1}
