"""Training jobs on a CPU whose GPU is the double of the driver (tests/native/doubles)."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

from recording import python

#: What each job begins with: torch's view of CUDA, and a model, an optimizer and a loop that give
#: the GPU work for FORWARD, BACKWARD and UPDATE ns.
_PREAMBLE = """
    import ctypes, json, os, sys, threading, time
    import haiprof, torch
    from haiprof import _core
    from torch import nn

    cuda = ctypes.CDLL("libcuda.so.1") if "LD_LIBRARY_PATH" in os.environ else None
    MS = 1_000_000
    FORWARD, BACKWARD, UPDATE = 2 * MS, 3 * MS, 1 * MS
    begun = []  # (name, when the GPU began it)
    here = threading.local()
    here.stream = 0

    def current_stream(device):
        return here.stream

    if cuda is not None:
        torch._C._cuda_getCurrentRawStream = current_stream
        for name in ("work", "calls", "broken_captures"):
            getattr(cuda, f"fake_cuda_{name}").restype = ctypes.c_uint64

    def use_cuda(device=0):
        try:
            torch.cuda._lazy_init()
        except (AssertionError, RuntimeError):
            pass  # this torch has no CUDA, or this machine has none
        assert cuda.fake_cuda_use(device) == 0

    def new_stream():
        handle = ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(handle), 1) == 0
        return handle.value

    def work(name, ns):
        begun.append((name, cuda.fake_cuda_work(ctypes.c_void_p(here.stream), ctypes.c_uint64(ns))))

    def calls(name):
        return cuda.fake_cuda_calls(name.encode())

    class CUDAGraph:
        # What torch's is to its users: one piece of work, given to the current stream at once.
        def __init__(self, ns):
            self.ns = ns

        def replay(self):
            work("graph", self.ns)

    torch.cuda.CUDAGraph = CUDAGraph

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            work("forward", FORWARD)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            work("backward", BACKWARD)
            return gradient * 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return Layer.apply(x * self.weight).sum()

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            work("optimizer", UPDATE)
            return super().step(closure)

    def train(steps, each=lambda: None, model=None):
        model = model or Model()
        optimizer = Optimizer(model.parameters(), 0.1)
        for batch in torch.utils.data.DataLoader(torch.ones(steps, 4)):
            each()
            optimizer.zero_grad()
            model(batch[0]).backward()
            optimizer.step()

    def settled():
        # Until the GPU is through with everything, and the collector has seen it.
        while _core.gpu_counts()["device_spans"] < len(begun) and time.monotonic() < until:
            time.sleep(0.01)

    until = time.monotonic() + 20

    def tell(**values):
        print(json.dumps(values))
"""


def source(program: str) -> str:
    """Return a job as a script: what follows the preamble is ``program``."""
    return textwrap.dedent(_PREAMBLE + program)


def run_job(
    program: str, log_dir: Path, native_build: Path | None, **environment: str
) -> dict[str, Any]:
    """Run a job to its end, which must be a good one; return what it gave to ``tell()``.

    Args:
        program: what follows the preamble; ``sys.argv[1]`` is the log folder.
        log_dir: the log folder.
        native_build: where the doubles are; None leaves them out.
        environment: variables of the doubles and the job.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    if native_build is not None:
        places = (native_build / "tests" / "native" / name for name in ("cuda", "cupti"))
        inherited["LD_LIBRARY_PATH"] = ":".join(map(str, places))
    job = python(_PREAMBLE + program, str(log_dir), env=inherited | environment, warm=True)
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    assert err == ""
    document: dict[str, Any] = json.loads(out) if out else {}
    return document
