"""GPU activity of a Python job, from the library that stands in for CUPTI to the Analyzer."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import pytest
import torch
from gpu_jobs import run
from recording import wait_recorded

import haiprof

#: A torch with CUDA is linked against all of libcupti, of which the stand-in has what haiprof uses.
needs_cpu_torch = pytest.mark.skipif(
    torch.version.cuda is not None, reason="needs a torch without CUDA"
)


def kernels(log_dir: Path) -> dict[str, int]:
    found = haiprof.Analyzer(log_dir / "run").kernels()
    assert set(found["kind"].to_list()) <= {"kernel"}
    return dict(found.group_by("name").len().iter_rows())


def texts(log_dir: Path, kind: str) -> list[str]:
    events = haiprof.Analyzer(log_dir / "run").events()
    return events.filter(pl.col("kind") == kind)["text"].to_list()


@needs_cpu_torch
def test_kernels_are_recorded_from_the_first_use_of_cuda_to_the_end(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    program = """
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels="all")
    before, after = use_cuda()
    assert before is not after and after.__module__ == "torch.cuda"
    launch(b"gemm", 1000)
    files = haiprof.flush()
    assert any(f.name.startswith("kernels") for f in files), files
    launch(b"softmax", 500)
    """
    assert run(program, tmp_path, native_build) == ""
    wait_recorded(shm)
    assert kernels(tmp_path) == {"gemm": 1000, "softmax": 500}
    [text] = texts(tmp_path, "gpu")
    assert text.startswith("1500 kernels and 0 other GPU activities; ")
    assert texts(tmp_path, "lost") == []


def test_a_driver_that_the_job_has_initialised_already_is_used_at_once(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    program = """
    use_gpu()
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels="all")
    launch(b"gemm", 10)
    haiprof.stop()
    launch(b"not recorded", 10)
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels="all")
    launch(b"again", 10)
    """
    assert run(program, tmp_path, native_build) == ""
    wait_recorded(shm)
    assert kernels(tmp_path) == {"gemm": 10, "again": 10}
    lines = texts(tmp_path, "gpu")
    assert len(lines) == 2
    assert all(text.startswith("10 kernels ") for text in lines)


@needs_cpu_torch
def test_a_recording_that_was_stopped_before_it_began_is_not_in_the_way(
    shm: Path, tmp_path: Path, native_build: Path
) -> None:
    program = """
    from haiprof.capture.session import arm
    os.environ.update(HAIPROF_LOG_DIR=sys.argv[1], HAIPROF_KERNELS="all", HAIPROF_HOOKS="0")
    arm()
    haiprof.stop()
    before, after = use_cuda()
    assert before is after
    launch(b"not recorded", 10)
    haiprof.start(sys.argv[1], run="run")
    use_cuda()
    launch(b"gemm", 10)
    """
    assert run(program, tmp_path, native_build) == ""
    wait_recorded(shm)
    assert kernels(tmp_path) == {"gemm": 10}


@needs_cpu_torch
def test_a_forked_child_leaves_the_gpu_alone(shm: Path, tmp_path: Path, native_build: Path) -> None:
    program = """
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels="all")
    use_cuda()
    launch(b"parent", 100)
    pid = os.fork()
    if pid == 0:
        with haiprof.range("child"):
            pass
        haiprof.flush()
        haiprof.stop()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    launch(b"parent", 100)
    """
    assert run(program, tmp_path, native_build) == ""
    wait_recorded(shm)
    assert kernels(tmp_path) == {"parent": 200}
    assert "child" in haiprof.Analyzer(tmp_path / "run").spans()["name"].to_list()


@pytest.mark.parametrize("version", ["22", "130000"])
@pytest.mark.parametrize("mode", ["windows", "all"])
def test_a_cupti_that_may_hang_when_switched_off_is_used_only_when_asked_for(
    shm: Path, tmp_path: Path, native_build: Path, mode: str, version: str
) -> None:
    program = f"""
    use_gpu()
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels={mode!r})
    launch(b"gemm", 10)
    """
    run(program, tmp_path, native_build, FAKE_CUPTI_VERSION=version)
    wait_recorded(shm)
    assert kernels(tmp_path) == ({"gemm": 10} if mode == "all" else {})
    lines = texts(tmp_path, "hook")
    assert len(lines) == (1 if mode == "windows" else 0)
    assert all("may hang a job when recording is switched off" in text for text in lines)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError", 1),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 15)", -15),
        ("import atexit; atexit.register(lambda: 1 / 0)", 0),
    ],
)
def test_however_a_job_ends_it_ends_as_without_and_its_kernels_are_there(
    shm: Path, tmp_path: Path, native_build: Path, end: str, code: int
) -> None:
    program = f"""
    import time
    use_gpu()
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels="all")
    launch(b"gemm", 1000)
    time.sleep(0.5)  # longer than kernels lie in CUPTI
    {end}
    """
    begin = time.monotonic()
    run(program, tmp_path, native_build, code=code)
    assert time.monotonic() - begin < 20
    wait_recorded(shm)
    assert kernels(tmp_path) == {"gemm": 1000}


@pytest.mark.parametrize("how", [pytest.param("off", marks=needs_cpu_torch), "no driver"])
def test_nothing_is_recorded_where_nothing_is_asked_for_or_there(
    shm: Path, tmp_path: Path, native_build: Path, how: str
) -> None:
    program = f"""
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels={"off" if how == "off" else "all"!r})
    use_cuda()
    if {how == "off"}:
        launch(b"gemm", 10)
    with haiprof.range("work"):
        pass
    """
    assert run(program, tmp_path, native_build if how == "off" else None) == ""
    wait_recorded(shm)
    assert kernels(tmp_path) == {}
    assert haiprof.Analyzer(tmp_path / "run").spans()["name"].to_list() == ["work"]
    lines = texts(tmp_path, "hook")
    assert len(lines) == (0 if how == "off" else 1)
    assert all("no NVIDIA driver" in text for text in lines)
