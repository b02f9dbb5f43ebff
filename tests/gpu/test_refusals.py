"""What is in the way of recording kernels: the job does not notice, and the doctor says it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from commands import haiprof as command
from recording import wait_recorded

import haiprof

pytestmark = pytest.mark.jobs

DRIVER, CUPTI, BROKEN = "cuda", "cupti", "broken"

JOB = """
import contextlib, ctypes, sys, haiprof, torch
haiprof.start()
try:
    torch.cuda._lazy_init()
except (AssertionError, RuntimeError):
    pass  # this torch has no CUDA, or this machine has none
with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL("libcuda.so.1").fake_cuda_use(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained")
"""

CASES = {
    "no driver": ([], {}, "no NVIDIA driver"),
    "a driver that is no library": ([BROKEN, CUPTI], {}, "too short"),
    "a driver that does not start": ([DRIVER, CUPTI], {"FAKE_CUDA_INIT": "100"}, "does not start"),
    "no libcupti that can be loaded": ([DRIVER, BROKEN], {}, "no libcupti"),
    "a libcupti that is too old": ([DRIVER, CUPTI], {"FAKE_CUPTI_VERSION": "17"}, "too old"),
    "a libcupti that is newer than the driver": (
        [DRIVER, CUPTI], {"FAKE_CUPTI_ANSWERS": "cuptiGetVersion=999"}, "does not work with",
    ),
    "another tool that has CUPTI": (
        [DRIVER, CUPTI], {"FAKE_CUPTI_ANSWERS": "cuptiActivityEnable=14"}, "another tool",
    ),
    "a tool that the driver loads": (
        [DRIVER, CUPTI], {"CUDA_INJECTION64_PATH": "/opt/tool/libtool.so"}, "/opt/tool/libtool.so",
    ),
    "no privilege": (
        [DRIVER, CUPTI], {"FAKE_CUPTI_ANSWERS": "cuptiActivityEnable=35"}, "not allowed",
    ),
}  # fmt: skip


@pytest.fixture
def environment_with(
    native_build: Path, tmp_path: Path
) -> Callable[[list[str], dict[str, str]], dict[str, str]]:
    """Make an environment in which only some libraries are found."""

    def make(libraries: list[str], variables: dict[str, str]) -> dict[str, str]:
        broken = tmp_path / BROKEN
        broken.mkdir()
        for name in ("libcuda.so.1", "libcupti.so", *(f"libcupti.so.{n}" for n in (13, 12, 11.8))):
            (broken / name).touch()
        # Hides the libcupti of an installed package.
        hiding = tmp_path / "hiding"
        hiding.mkdir()
        (hiding / "sitecustomize.py").write_text("import sys; sys.modules['nvidia'] = None")
        built = {name: native_build / "tests" / "native" / name for name in (DRIVER, CUPTI)}
        places = {BROKEN: broken, **built}
        path = [str(hiding), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(str(places[name]) for name in libraries),
            "PYTHONPATH": ":".join(path),
            "CUDA_HOME": "/nowhere",
            **variables,
        }

    return make


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
@pytest.mark.parametrize(("libraries", "variables", "words"), CASES.values(), ids=CASES)
def test_the_job_goes_on_and_the_doctor_explains(
    environment_with: Callable[[list[str], dict[str, str]], dict[str, str]],
    tmp_path: Path, shm: Path, libraries: list[str], variables: dict[str, str], words: str,
) -> None:  # fmt: skip
    (tmp_path / "job.py").write_text(JOB)
    environment = environment_with(libraries, variables)
    done = command(
        "run", "--log-dir", tmp_path, "--run", "run", "--kernels", "all", "--",
        sys.executable, "job.py",
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert all(line.startswith("haiprof: ") for line in done.stderr.splitlines()), done.stderr
    wait_recorded(shm)
    run = haiprof.Analyzer(tmp_path / "run")
    assert run.steps().height >= 5
    assert run.kernels().height == 0
    lines = (
        run.events(kind="hook").filter(pl.col("text").str.contains("recorded"))["text"].to_list()
    )
    assert len(lines) == 1
    assert words in lines[0]

    report = json.loads(command("doctor", "--json", env=environment).stdout)
    [finding] = [f for f in report["findings"] if f["what"] == "GPU kernels"]
    assert finding["state"] != "ok"
    assert words in finding["found"]
    assert finding["mend"]
    assert report["ok"]  # all the rest works


def test_the_doctor_finds_a_cupti_that_works(
    environment_with: Callable[[list[str], dict[str, str]], dict[str, str]], shm: Path
) -> None:
    environment = environment_with([DRIVER, CUPTI], {})
    report = json.loads(command("doctor", "--json", env=environment).stdout)
    [finding] = [f for f in report["findings"] if f["what"] == "GPU kernels"]
    assert finding["state"] == "ok"
    assert "API version 130001" in finding["found"]
    assert not finding["mend"]


def test_the_doctor_says_where_windows_are_off(
    environment_with: Callable[[list[str], dict[str, str]], dict[str, str]], shm: Path
) -> None:
    environment = environment_with([DRIVER, CUPTI], {"FAKE_CUPTI_VERSION": "26"})
    report = json.loads(command("doctor", "--json", env=environment).stdout)
    [finding] = [f for f in report["findings"] if f["what"] == "GPU kernels"]
    assert finding["state"] == "ok"
    assert 'kernels="all"' in finding["mend"]
