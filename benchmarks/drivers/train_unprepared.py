"""A training loop that knows nothing of any profiler, and when each of its steps ended.

    train_unprepared.py mlp|gpt FILE

FILE is made and mapped: the number of steps so far, and for each the time of its end
(CLOCK_MONOTONIC) and the CPU time of its thread until then, all int64, ns. Whoever looks there does
not disturb it. It trains until it is killed, or FILE is full.
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

STEPS = 1 << 18

Batch = tuple[torch.Tensor, torch.Tensor]


class Text(torch.utils.data.Dataset[Batch]):
    """Random words, which a worker makes anew each time."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Batch:
        words = torch.randint(0, 256, (65,))
        return words[:-1], words[1:]


class Block(nn.Module):
    """Attention and a perceptron, each beside what goes straight through."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = (
            self.mix(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.dense(self.between(x))


class Flat(nn.Module):
    """One prediction for each word."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def mlp() -> tuple[nn.Module, Iterator[Batch]]:
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    batch = torch.randn(64, 256), torch.randint(0, 10, (64,))

    def batches() -> Iterator[Batch]:
        while True:
            yield batch

    return model, batches()


def gpt() -> tuple[nn.Module, Iterator[Batch]]:
    model = nn.Sequential(
        nn.Embedding(256, 64),
        Block(64, 4),
        Block(64, 4),
        nn.LayerNorm(64),
        nn.Linear(64, 256),
        Flat(),
    )
    loader = torch.utils.data.DataLoader(Text(), batch_size=8, num_workers=2)
    return model, iter(loader)


def grow_interned() -> None:
    """Have Python's table of interned names take its next size now.

    It never shrinks, and takes 3.7 MiB at once when enough names have come and gone, whoever's.
    """
    for number in range(90_000):
        sys.intern(f"name {number}")


def main() -> None:
    kind, path = sys.argv[1:]
    grow_interned()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batches = {"mlp": mlp, "gpt": gpt}[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss()
    with Path(path).open("w+b") as file:
        file.truncate(8 + 16 * STEPS)
        times = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    for step in range(STEPS):
        x, y = next(batches)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        times[1 + 2 * step] = time.monotonic_ns()
        times[2 + 2 * step] = time.thread_time_ns()
        times[0] = step + 1


if __name__ == "__main__":
    main()
