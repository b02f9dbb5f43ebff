"""Training jobs for the GPU suite. Run as a program, one job: ``jobs.py MODEL STEPS [LOG_DIR]``.

With a log directory the job records its kernels. The last line that it prints is a JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def transformer() -> tuple[Any, Callable[[], Any]]:
    """Return a small decoder and a function that makes its loss on new data."""
    import torch
    from torch import nn

    width, words, length, batch = 256, 1000, 128, 16
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(words, width), nn.TransformerEncoder(layer, 4), nn.Linear(width, words)
    ).cuda()
    data = torch.randint(words, (batch, length), device="cuda")

    def loss() -> Any:
        return nn.functional.cross_entropy(model(data).flatten(0, 1), data.flatten())

    return model, loss


def convolutions() -> tuple[Any, Callable[[], Any]]:
    """Return a residual network of convolutions, and the same."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.inside = nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
                nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.inside(x))

    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), *(Block(64) for _ in range(16)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000),
    ).cuda()  # fmt: skip
    x, y = torch.randn(32, 3, 112, 112, device="cuda"), torch.randint(1000, (32,), device="cuda")
    return model, lambda: nn.functional.cross_entropy(model(x), y)


MODELS = {"transformer": transformer, "convolutions": convolutions}


def trainer(model: str) -> Callable[[int], list[float]]:
    """Return a function that trains a number of steps and returns the time of each, s."""
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    network, loss = MODELS[model]()
    optimizer = torch.optim.AdamW(network.parameters(), foreach=True)

    def train(steps: int) -> list[float]:
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return times

    return train


def main() -> None:
    """Train; the steps that count come after ten others."""
    import haiprof

    if sys.argv[3:]:
        haiprof.start(sys.argv[3], run="run", kernels="all", ring_mib=64)
    train = trainer(sys.argv[1])
    train(10)
    begin = time.time_ns()
    train(int(sys.argv[2]))
    end = time.time_ns()
    haiprof.stop()
    print(json.dumps({"begin": begin, "end": end}))


if __name__ == "__main__":
    main()
