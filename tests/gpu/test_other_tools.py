"""A profiler that is loaded into the job and shares its CUPTI keeps all of its records."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_jobs import run
from recording import wait_recorded

import haiprof

JOB = """
    tool = ctypes.CDLL({library!r})
    tool.other_tool_kernels.restype = ctypes.c_uint64
    use_gpu()
    {before}
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels="all")
    launch(b"gemm", 100)
    haiprof.stop()
    launch(b"late", 50)
    print(tool.other_tool_kernels(), file=sys.stderr)
"""


def recorded(log_dir: Path) -> tuple[int, list[str]]:
    found = haiprof.Analyzer(log_dir / "run")
    hooks = found.events(kind="hook")["text"].to_list()
    return found.kernels().height, [text for text in hooks if "another tool" in text]


@pytest.mark.parametrize(
    ("before", "injected", "theirs"),
    [
        ("", True, 150),
        ("assert tool.InitializeInjection() == 1", False, 150),
        ("", False, 0),
    ],
    ids=["loaded by the driver", "loaded by the job", "loaded and never used"],
)
def test_who_was_there_first_keeps_cupti(
    shm: Path, tmp_path: Path, native_build: Path, before: str, injected: bool, theirs: int
) -> None:
    library = str(native_build / "tests" / "native" / "othertool" / "libothertool.so")
    environment = {"CUDA_INJECTION64_PATH": library if injected else "none"}
    job = JOB.format(library=library, before=before)
    assert run(job, tmp_path, native_build, **environment).split() == [str(theirs)]
    wait_recorded(shm)
    kernels, refusals = recorded(tmp_path)
    if theirs:
        assert kernels == 0
        [refusal] = refusals
        assert library in refusal
    else:
        assert (kernels, refusals) == (100, [])
