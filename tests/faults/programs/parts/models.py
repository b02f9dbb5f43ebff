"""The models of programs: a network of linear layers, and a small transformer."""

from __future__ import annotations

import torch
from parts.settings import Job
from parts.tasks import Helper
from torch import nn


class Layer(nn.Module):
    """A layer that sees to the tasks of the forward pass before it computes."""

    def __init__(self, job: Job, helper: Helper, inner: nn.Module, number: int) -> None:
        super().__init__()
        self.inner = inner
        self.first = number == job.layers // 2
        # A model is copied and sent about; what it is helped by is not a part of it.
        self.__dict__["helper"] = helper
        self.step = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.first and self.training:
            self.adjust()
        result: torch.Tensor = self.inner(values)
        return result

    @torch.compiler.disable
    def adjust(self) -> None:
        """See to the tasks of the forward pass."""
        self.helper.run("forward", self.step)
        self.step += 1


class Mlp(nn.Module):
    """Linear layers with activations, and a classifier of ten classes."""

    def __init__(self, job: Job, helper: Helper) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(nn.Linear(job.width, job.width), nn.GELU()) for _ in range(job.layers)
        ]
        self.layers = nn.ModuleList(Layer(job, helper, b, n) for n, b in enumerate(blocks))
        self.head = nn.Linear(job.width, 10)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = layer(values)
        result: torch.Tensor = self.head(values)
        return result


class Transformer(nn.Module):
    """A transformer that predicts each next token."""

    def __init__(self, job: Job, helper: Helper) -> None:
        super().__init__()
        self.embedding = nn.Embedding(job.vocabulary, job.width)
        blocks = [
            nn.TransformerEncoderLayer(
                job.width, 4, 4 * job.width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(job.layers)
        ]
        self.layers = nn.ModuleList(Layer(job, helper, b, n) for n, b in enumerate(blocks))
        self.head = nn.Linear(job.width, job.vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.embedding(tokens)
        for layer in self.layers:
            values = layer(values)
        result: torch.Tensor = self.head(values)
        return result


def build(job: Job, helper: Helper) -> nn.Module:
    """Return the model of a job, the same on all ranks."""
    torch.manual_seed(job.seed)
    return (Mlp if job.model == "mlp" else Transformer)(job, helper)


def objective(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch, of classes as of tokens."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return a loss of one's own: the surer, the less it counts."""
    chances = outputs.flatten(0, -2).log_softmax(-1)
    right = chances.gather(-1, targets.flatten().unsqueeze(-1)).squeeze(-1)
    return -((1 - right.exp()) ** 2 * right).mean() + 1e-4 * chances.square().mean()
