"""A small training job."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path


class Training:
    """A convolutional network of 136 000 weights and its data, one step at a time."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.data = torch.utils.data.TensorDataset(
            torch.randn(4096, 1, 16, 16), torch.randint(10, (4096,))
        )
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 64, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        # One epoch that does not end.
        draws = torch.utils.data.RandomSampler(self.data, replacement=True, num_samples=1 << 40)
        self.batches = iter(torch.utils.data.DataLoader(self.data, batch_size=64, sampler=draws))

    def steps(self, count: int) -> list[float]:
        """Run ``count`` steps and return the time of each, s."""
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            x, y = next(self.batches)
            self.optimizer.zero_grad()
            self.loss(self.model(x), y).backward()
            self.optimizer.step()
            times.append(time.perf_counter() - begin)
        return times

    def run(self, seconds: float) -> int:
        """Train for ``seconds`` and return the number of steps."""
        steps, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            steps += len(self.steps(1))
        return steps


def keep_freed_memory() -> None:
    """Have malloc keep what is freed.

    Else what a tensor costs in page faults depends on what lies above it in the heap by chance, and
    the time of a step jumps by 10 % whenever anything else is allocated or freed.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    libc = ctypes.CDLL(None)
    for parameter, size in ((trim_threshold, 2**30), (top_pad, 2**26), (mmap_threshold, 2**25)):
        assert libc.mallopt(parameter, size) == 1


def rss_mib() -> float:
    """This process's resident memory, MiB."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return int(rollup.partition("Rss:")[2].split()[0]) / 1024
