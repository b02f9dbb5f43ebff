"""Training jobs of the GPU suite, for any device; a small one of each for a machine without GPU.

A step is launched, never waited for: whoever measures waits once, at the end of many. Where there
is no GPU but the library of tests/native/doubles that stands in for CUPTI, jobs launch kernels
there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import time
from collections.abc import Callable
from typing import Any


@functools.cache
def stand_in() -> Any:
    """The library that stands in for CUPTI, when it is the one that is found by name; or None."""
    try:
        library = ctypes.CDLL("libcupti.so.13")
        library.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    except (OSError, AttributeError):
        return None
    return library


def torch_profiler(device: str) -> Any:
    """torch.profiler that records what the device does, and nothing else."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[getattr(ProfilerActivity, "CUDA" if device == "cuda" else "CPU")])


class Machine:
    """The device that a job runs on: ``cuda``, or ``cpu`` to try the suite's own code."""

    def __init__(self, device: str) -> None:
        """Raises RuntimeError when there is no such device."""
        import torch

        self.device = device
        self.cuda = device == "cuda"
        if self.cuda:
            # is_available() hides why not; this says it.
            torch.zeros(1, device="cuda")
        elif stand_in() is not None:
            # As a job that begins to use the GPU; this torch knows none.
            with contextlib.suppress(AssertionError, RuntimeError):
                torch.cuda._lazy_init()
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL("libcuda.so.1").fake_cuda_use(0)
        if "haiprof" in sys.modules:
            # It looks for the first context every 5 ms, and records all kernels from then on.
            time.sleep(0.05)

    def pretend(self, count: int) -> None:
        """Launch so many kernels in the library that stands in for CUPTI, where there is no GPU."""
        if not self.cuda and stand_in() is not None:
            stand_in().fake_launch(b"pretended", count)

    def wait(self) -> None:
        """Wait until everything that was launched has ended."""
        import torch

        if self.cuda:
            torch.cuda.synchronize()

    def marker(self) -> Any:
        """Return a new mark in the current stream; ``between`` tells the time of two."""
        import torch

        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        """Seconds on the device from one mark to another; both must have been reached."""
        if not self.cuda:
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3

    def timed(self, work: Callable[[], Any]) -> float:
        """Seconds that work takes, to the end of what it launches; nothing may be under way."""
        begin = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - begin

    def timed_on_device(self, work: Callable[[], Any]) -> float:
        """Seconds that work takes on the device."""
        begin = self.marker()
        work()
        end = self.marker()
        self.wait()
        return self.between(begin, end)


class Training:
    """A model, its data and its optimizer."""

    def __init__(
        self, machine: Machine, model: Any, loss: Callable[[Any], Any], **how: Any
    ) -> None:
        import torch

        self.machine = machine
        self.model = model.to(machine.device)
        self._loss = loss
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True, **how)
        self._autocast = torch.autocast(machine.device, dtype=torch.bfloat16)

    def forward(self) -> Any:
        self.machine.pretend(10)
        with self._autocast:
            return self._loss(self.model)

    def step(self) -> None:
        self.forward().backward()
        self.machine.pretend(20)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def steps_for(self, seconds: float) -> tuple[int, float]:
        """Train for about so long; return the number of steps and the time of one, s."""
        begin = time.perf_counter()
        self.steps(2)
        self.machine.wait()
        each = max((time.perf_counter() - begin) / 2, 1e-4)
        count = max(3, round(seconds / each))
        return count, self.machine.timed(lambda: self.steps(count)) / count


class GraphTraining(Training):
    """The same with the whole step in a CUDA graph."""

    def __init__(self, training: Training) -> None:
        import torch

        self.machine = training.machine
        self.model, self.optimizer = training.model, training.optimizer
        if not self.machine.cuda:
            self._replay: Callable[[], Any] = training.step
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            training.steps(3)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            training.step()
        self._replay = lambda: graph.replay()  # looked up each time: it may be hooked

    def step(self) -> None:
        self._replay()


def transformer(machine: Machine, size: str = "medium", **how: Any) -> Training:
    """An encoder; ``medium`` takes some 25 ms on an H200, ``small`` is bound by its launches."""
    import torch
    from torch import nn

    if not machine.cuda:
        size = "tiny"
    width, depth, length, batch, words = {
        "medium": (1024, 8, 512, 16, 32000),
        "small": (256, 4, 128, 16, 1000),
        "tiny": (32, 2, 8, 2, 100),
    }[size]
    layer = nn.TransformerEncoderLayer(
        width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    model = nn.Sequential(
        nn.Embedding(words, width),
        nn.TransformerEncoder(layer, depth, enable_nested_tensor=False),
        nn.Linear(width, words),
    )
    data = torch.randint(words, (batch, length), device=machine.device)

    def loss(network: Any) -> Any:
        return nn.functional.cross_entropy(network(data).flatten(0, 1), data.flatten())

    return Training(machine, model, loss, **how)


def _bottleneck(inside: int, width: int, stride: int) -> Any:
    from torch import nn

    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            out = 4 * width
            self.path = nn.Sequential(
                nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
            )  # fmt: skip
            self.around = (
                nn.Identity() if inside == out and stride == 1
                else nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False),
                                   nn.BatchNorm2d(out))
            )  # fmt: skip
            self.end = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            return self.end(self.path(x) + self.around(x))

    return Bottleneck()


def resnet50(machine: Machine) -> Training:
    """ResNet-50 on made-up pictures, channels last, in bfloat16."""
    import torch
    from torch import nn

    batch, side = (128, 224) if machine.cuda else (2, 32)
    layers: list[Any] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    inside = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            layers.append(_bottleneck(inside, width, 2 if stage and not block else 1))
            inside = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, side, side, device=machine.device)
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), device=machine.device)
    return Training(machine, model, lambda network: nn.functional.cross_entropy(network(x), y))


def graph(machine: Machine) -> Training:
    """A small transformer whose step is a CUDA graph."""
    return GraphTraining(transformer(machine, "small", capturable=machine.cuda))


def compiled(machine: Machine) -> Training:
    """A small transformer that torch.compile has compiled."""
    import torch

    training = transformer(machine, "small")
    training.model = torch.compile(training.model)
    return training


def _fsdp(machine: Machine) -> Training:
    from gpu.sharded import sharded  # which is made of what is here

    return sharded(machine)


MODELS: dict[str, Callable[[Machine], Training]] = {
    "transformer": transformer,
    "small": lambda machine: transformer(machine, "small"),
    "resnet50": resnet50,
    "graph": graph,
    "compiled": compiled,
    "fsdp": _fsdp,
}


def training(model: str, machine: Machine) -> Training:
    """Make a job whose kernels are the same in every process."""
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return MODELS[model](machine)


class Launches:
    """Kernels so small that launching them is all there is."""

    #: In one graph.
    NODES = 1000

    def __init__(self, machine: Machine) -> None:
        import torch

        self.machine = machine
        self._x = torch.zeros(32, device=machine.device)
        self.replay: Callable[[], Any] = lambda: self.eager(self.NODES)
        if machine.cuda:
            self.eager(10)
            machine.wait()
            cuda_graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(cuda_graph):
                self.eager(self.NODES)
            self.replay = lambda: cuda_graph.replay()

    def eager(self, count: int) -> None:
        """Launch so many kernels one after another."""
        if not self.machine.cuda and stand_in() is not None:
            return self.machine.pretend(count)
        add = self._x.add_
        for _ in range(count):
            add(1.0)

    def replays(self, count: int) -> None:
        """Launch so many graphs of ``NODES`` kernels."""
        for _ in range(count):
            self.replay()
