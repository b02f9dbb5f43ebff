"""Python jobs on a GPU that is not there: libraries stand in for NVIDIA's."""

from __future__ import annotations

import os
from pathlib import Path

from recording import python

JOB = """
    import contextlib, ctypes, os, sys, time, haiprof
    if "LD_LIBRARY_PATH" in os.environ:
        cupti = ctypes.CDLL("libcupti.so.13")  # as a torch with CUDA has it
    def launch(name, count):
        cupti.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
        cupti.fake_launch(name, count)
    def use_gpu():
        cuda = ctypes.CDLL("libcuda.so.1")
        assert cuda.cuInit(0) == 0
        assert cuda.fake_cuda_use(0) == 0
    def use_cuda():
        # Returns once kernels are recorded, if they are to be.
        import torch
        from haiprof import _core
        original = torch.cuda._lazy_init
        try:
            torch.cuda._lazy_init()
        except (AssertionError, RuntimeError):
            pass  # this torch has no CUDA, or this machine has none
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libcuda.so.1").fake_cuda_use(0)
        while _core.gpu_tracing() and not cupti.fake_enabled():
            time.sleep(0.001)
        return original, torch.cuda._lazy_init
"""


def run(
    program: str, log_dir: Path, native_build: Path | None, *, code: int = 0, **variables: str
) -> str:
    """Run a job with the stand-ins in its library path; return what it wrote on stderr.

    Args:
        program: what the job does, after the lines of ``JOB``.
        log_dir: its first argument.
        native_build: where the stand-ins were built; None for none.
        code: what it is to end with.
        variables: more of its environment.
    """
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"} | variables
    if native_build is not None:
        places = (native_build / "tests" / "native" / name for name in ("cuda", "cupti"))
        environment["LD_LIBRARY_PATH"] = ":".join(map(str, places))
    job = python(JOB + program, str(log_dir), env=environment, cwd=log_dir)
    _, err = job.communicate(timeout=120)
    assert job.returncode == code, err
    return str(err)
