"""The content of a deep trace, its place, and its rows in ``events``."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import haiprof, the_run
from deep_jobs import JOB, Left, environment, run_job, start_job
from recording import python, read_table, wait_recorded

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def left() -> Iterator[Left]:
    """A traced job, which said that it is rank 3 of 8."""
    place = Path(tempfile.mkdtemp(prefix="haiprof-test-", dir="/dev/shm"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("HAIPROF_")]:
            patch.delenv(name)
        patch.setenv("HAIPROF_SHM_DIR", str(place))
        ranks = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}
        yield run_job("train(30)", place, place / "logs", trace=1, ranks=ranks)[0]
    shutil.rmtree(place)


def test_the_file_is_named_after_the_process_and_its_beginning(left: Left) -> None:
    (file,) = left.files
    end = left.end()
    assert file.name == f"{left.folder.name}.{end['begin_ns'] // 1_000_000}.pt.trace.json.gz"
    assert re.fullmatch(r".*#3\.\d{13}\.pt\.trace\.json\.gz", file.name)
    assert end["file"] == f"{left.folder.name}/{file.name}"
    assert file.stat().st_size == end["file_bytes"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_it_has_the_steps_that_haiprof_counts_and_one_more(left: Left) -> None:
    end = left.end()
    assert end["why"] == "it is complete"
    assert end["steps"] == 4
    assert left.numbers() == list(range(end["first_step"], end["first_step"] + 4))
    own = {
        s["step"]: s for s in reversed(read_table(left.folder, "spans").to_pylist())
        if s["category"] == "phase" and s["name"] == "optimizer"
    }  # fmt: skip
    base = int(left.trace["baseTimeNanoseconds"])
    for step in left.steps():
        # The first work of the optimizer in haiprof's step of that number is in this annotation.
        start = own[int(step["name"].partition("#")[2])]["start"] - base
        assert step["ts"] * 1e3 - 1e6 < start < (step["ts"] + step["dur"]) * 1e3
    assert abs(end["begin_ns"] - (base + left.steps()[0]["ts"] * 1e3)) < 1e9


def test_it_has_operators_with_shapes_calls_memory_and_modules(left: Left) -> None:
    linear = [e for e in left.events("cpu_op") if e["name"] == "aten::addmm"]
    assert len(linear) == 2 * 4
    assert linear[0]["args"]["Input Dims"][1:3] == [[8, 16], [16, 32]]
    calls = left.events("python_function")
    assert {e["name"] for e in calls} >= {"nn.Module: Linear_0", "nn.Module: ReLU_0"}
    assert any(re.fullmatch(r"<string>\(\d+\): train", e["name"]) for e in calls)
    memory = [e for e in left.trace["traceEvents"] if e["name"] == "[memory]"]
    assert len(memory) > 4 * 4
    assert {e["args"]["Device Type"] for e in memory} == {0}
    assert left.end()["contents"] == ["memory", "modules", "shapes", "stacks"]


def test_no_thread_of_ours_is_in_it(left: Left) -> None:
    calls = left.events("python_function")
    assert {e["tid"] for e in calls} == {e["tid"] for e in left.steps()}
    assert not any("haiprof/common/threads.py" in e["name"] and "_work" in e["name"] for e in calls)


def test_tools_find_all_that_they_need(left: Left) -> None:
    events = left.trace["traceEvents"]
    assert all(isinstance(e["name"], str) for e in events)
    spans = [e for e in events if e["ph"] == "X"]
    for span in spans:
        assert isinstance(span["cat"], str)
        assert isinstance(span["ts"], (int, float))
        assert isinstance(span["dur"], (int, float))
    # Tools look for the rank with this very expression, and take the first.
    assert re.findall(r'"rank":\s+(\d+)', left.text)[0] == "3"
    assert left.trace["distributedInfo"]["world_size"] == 8
    assert {e["cat"] for e in left.steps()} == {"user_annotation"}
    assert len(left.steps()) >= 2
    for op in left.events("cpu_op"):
        assert isinstance(op["args"]["External id"], int)
    flows = left.events("fwdbwd")
    assert {e["ph"] for e in flows} == {"s", "f"}
    assert all(isinstance(e["id"], int) for e in flows)
    for event in (e for e in events if e["name"] == "[memory]"):
        assert event["ph"] == "i"
        wanted = {"Device Type", "Device Id", "Addr", "Bytes", "Total Allocated", "Total Reserved"}
        assert wanted <= event["args"].keys()


def test_the_rows_say_what_it_took(left: Left) -> None:
    assert left.states() == ["recording", "done"]
    end = left.end()
    assert end["text"] == f"a deep trace of 4 whole steps in {left.files[0].name}: it is complete"
    assert end["begin_ns"] < end["end_ns"]
    for part in ("start_ms", "stop_ms", "save_ms", "step_ms", "step_before_ms"):
        assert end[part] > 0, part
    assert end["step_ms"] * 4 <= (end["end_ns"] - end["begin_ns"]) / 1e6 + 1
    # As torch has written it: with the calls of our own threads.
    assert 0 <= end["json_bytes"] - len(left.text.encode()) < 20_000
    head = left.trace["haiprof"]
    assert head["why"] == "it is complete"
    assert head["begin_ns"] == end["begin_ns"]


def test_the_other_tables_go_on_meanwhile(left: Left) -> None:
    steps = [
        s["step"] for s in read_table(left.folder, "spans").to_pylist() if s["category"] == "step"
    ]
    assert len(steps) == 30
    assert set(left.numbers()) < set(steps)


def test_call_stacks_are_written_where_they_are_wanted(shm: Path, tmp_path: Path) -> None:
    left, _ = run_job("train(12)", shm, tmp_path, trace=1, trace_steps=1, trace_with="callstacks")
    (op, *_) = (e for e in left.events("cpu_op") if e["name"] == "aten::addmm")
    assert "Input Dims" not in op["args"]
    assert "train" in op["args"]["Call stack"]
    assert not [e for e in left.trace["traceEvents"] if e["name"] == "[memory]"]
    assert len(left.steps()) == 2


@pytest.mark.jobs
def test_the_example_is_traced_by_the_command(shm: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import _haiprof_boot\n_haiprof_boot.arm()\n"
        + (ROOT / "examples" / "train_digits.py")
        .read_text()
        .replace("from __future__ import annotations\n", "")
    )
    words = ["--log-dir", "logs", "--trace-steps", "2", "train.py", "--epochs", "1"]
    done = haiprof("trace", *words, "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    left = Left(next(the_run(tmp_path / "logs").glob("*#0")))
    assert "haiprof: deep trace of 3 steps, ending it took" in done.stderr
    assert len(left.steps()) == 3
    names = {e["name"] for e in left.events("user_annotation")}
    assert "Optimizer.step#Adam.step" in names
    assert any(n.startswith("enumerate(DataLoader)#") for n in names)


def test_hai_platforms_variables_make_a_trace_of_a_time(shm: Path, tmp_path: Path) -> None:
    program = "until_traced(lambda: (train(), time.sleep(0.005)))"
    left, _ = run_job(program, shm, tmp_path, trace=1, warmup=0.5, time=4)
    end = left.end()
    assert end["why"] in ("it is complete", "the recording ended")
    # Starting the recorder and the profiler comes off its time.
    assert 0.5e9 < end["end_ns"] - end["begin_ns"] < 12e9
    assert end["steps"] == len(left.steps()) > 4


LOOP = """
    until = time.monotonic() + 16
    while time.monotonic() < until:
        train()
        time.sleep(0.005)
"""


@pytest.mark.jobs
def test_job_options_make_a_trace_of_a_time_after_a_warmup(shm: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time\nbegun = time.time_ns()\n"
        + textwrap.dedent(JOB)
        + textwrap.dedent(LOOP)
        + "print(begun, sys.argv[1:], time.time_ns())\n"
    )
    options = "--options profile.trace=1 --options profile.warmup=4 --options profile.time=2"
    words = ["run", "train.py", "--lr", "1", "-n", "1", "--name", "v2", *options.split()]
    done = haiprof(*words, cwd=tmp_path, env={**os.environ, "HAIPROF_LOG_DIR": "logs"})
    assert done.returncode == 0, done.stderr
    begun, arguments, ended = re.fullmatch(r"(\d+) (.*) (\d+)\n", done.stdout).groups()
    assert arguments == "['--lr', '1']"
    (folder,) = (tmp_path / "logs" / "v2").glob("*#0")
    left = Left(folder)
    end = left.end()
    steps = [s for s in read_table(folder, "spans").to_pylist() if s["category"] == "step"]
    assert (
        min(s["start"] for s in steps) - int(begun) > 3e9
    )  # a process has begun before its script
    # It begins with a step, and the profiler takes its time on a busy machine.
    assert 3e8 < end["end_ns"] - end["begin_ns"] < 5e9
    assert end["begin_ns"] - min(s["start"] for s in steps) < 2e9
    assert end["steps"] == len(left.steps()) > 4
    # The job went on by itself.
    assert int(ended) - end["end_ns"] > 2e9
    # And unrecorded, once its file was written.
    assert max(s["start"] for s in steps) < left.rows[-1][0]["time"] + 3e9


def test_two_ranks_write_a_file_each(shm: Path, tmp_path: Path) -> None:
    program = """
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"],
                            rank=int(os.environ["RANK"]), world_size=2)
    model = nn.parallel.DistributedDataParallel(model)
    train(12)
    dist.barrier()
    haiprof.stop()
    sys.stdout.flush()
    os._exit(0)
    """
    jobs = [
        start_job(
            program, tmp_path, trace=1, trace_steps=2,
            ranks={"RANK": str(n), "WORLD_SIZE": "2", "STORE": str(tmp_path / "store")},
        )
        for n in range(2)
    ]  # fmt: skip
    for job in jobs:
        _, err = job.communicate(timeout=120)
        assert job.returncode == 0, err
    wait_recorded(shm)
    for n in range(2):
        (folder,) = tmp_path.glob(f"run/*#{n}")
        left = Left(folder)
        assert len(left.files) == 1
        assert re.findall(r'"rank":\s+(\d+)', left.text)[0] == str(n)
        assert left.trace["distributedInfo"]["backend"] == "gloo"
        assert len(left.steps()) == 3


@pytest.mark.parametrize(("ranks", "expected"), [("1", True), ("0,4-7", False), ("0,1-2,9", True)])
def test_only_the_ranks_that_are_named_make_one(
    shm: Path, tmp_path: Path, ranks: str, expected: bool
) -> None:
    program = """
    train(12)
    trace = haiprof.trace(steps=1)
    if trace.state == "off":
        assert trace.wait(60) is None
        with trace:
            train(2)
    print(trace.state, trace.why)
    """
    options = {"trace_steps": 1, "trace_ranks": ranks, "ranks": {"RANK": "1", "WORLD_SIZE": "9"}}
    left, out = run_job(program, shm, tmp_path, trace=1, **options)
    assert len(left.files) >= expected
    if not expected:
        assert out == "off no deep trace: rank 1 is not in trace_ranks\n"
        assert left.files == []
        assert left.rows == []


def test_a_compiled_model_is_traced_and_not_compiled_again(shm: Path, tmp_path: Path) -> None:
    program = """
    compiled = []
    def backend(graph, examples):
        compiled.append(graph)
        return graph.forward
    model = torch.compile(model, backend=backend, fullgraph=True)
    train(20)
    print(len(compiled))
    """
    left, out = run_job(program, shm, tmp_path, trace=1)
    assert out == "1\n"
    assert len(left.steps()) == 4
    assert any("Torch-Compiled Region" in e["name"] for e in left.trace["traceEvents"])


def test_a_compiled_step_of_an_optimizer_is_compiled_without_a_warning(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    import warnings
    warnings.simplefilter("error", UserWarning)
    update = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(12):
        optimizer.zero_grad()
        model(batch).sum().backward()
        update()
    """
    left, _ = run_job(program, shm, tmp_path, trace=1)
    assert len(left.steps()) == 4


def test_without_it_nothing_of_it_is_imported(shm: Path, tmp_path: Path) -> None:
    program = """
    import haiprof, sys
    haiprof.start(sys.argv[1])
    with haiprof.range("x"):
        haiprof.step()
    assert not any(name.startswith("torch") for name in sys.modules)
    assert "haiprof.capture.trace" not in sys.modules and "ctypes" not in sys.modules
    import torch
    from torch.optim import optimizer
    assert "haiprof.capture.trace" not in sys.modules
    assert not optimizer._global_optimizer_post_hooks
    """
    process = python(program, str(tmp_path))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    wait_recorded(shm)


def test_afterwards_torch_is_as_it_was(shm: Path, tmp_path: Path) -> None:
    program = """
    import torch.autograd.profiler as ap
    from torch.optim import optimizer as module
    before = {n: getattr(ap, n) for n in ("_prepare_profiler", "_enable_profiler")}
    with haiprof.trace(steps=1) as trace:
        train(5)
    assert trace.wait() is not None
    assert before == {n: getattr(ap, n) for n in before}
    assert not module._global_optimizer_post_hooks
    from haiprof.capture import user
    assert user._listeners == []
    time.sleep(0.3)
    assert "haiprof-trace" not in [t.name for t in threading.enumerate()]
    """
    run_job(program, shm, tmp_path)


def test_the_environment_of_the_command_is_what_hai_platform_sets(
    tmp_path: Path, shm: Path
) -> None:
    variables = environment(tmp_path, trace=0)
    program = "import os; print(os.environ['HAIPROF_TRACE'], os.environ['HAIPROF_ENABLED'])"
    script = tmp_path / "show.py"
    script.write_text(program)
    done = haiprof("trace", script, env=variables)
    assert done.stdout == "1 1\n"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["options"]["trace"] is True
