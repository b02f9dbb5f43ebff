"""A model with experts on each rank: tokens are sent to the rank of their expert, and back.

Extras: ``share``, of the tokens that go to rank 0; without it, all ranks get as many.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from parts import data, models, start
from parts.around import Around
from parts.notes import Notes
from parts.settings import Job
from parts.tasks import Helper
from torch import nn
from torch.distributed.nn.functional import all_to_all_single


class Experts(nn.Module):
    """This rank's expert, with the exchange before and after it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.expert = nn.Sequential(
            nn.Linear(job.width, 8 * job.width), nn.GELU(), nn.Linear(8 * job.width, job.width)
        )

    def counts(self, tokens: int) -> list[int]:
        """Return how many of a rank's tokens go to each rank."""
        share = self.job.extras.get("share", 1 / self.job.world)
        first = round(tokens * share)
        others = self.job.world - 1
        rest = [(tokens - first) // others] * others
        rest[-1] += tokens - first - sum(rest)
        return [first, *rest]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        tokens = values.flatten(0, 1)
        sent = self.counts(len(tokens))
        received = [sent[self.job.rank]] * self.job.world
        here = all_to_all_single(
            tokens.new_empty(sum(received), self.job.width), tokens, received, sent
        )
        done = self.expert(here)
        back = all_to_all_single(torch.empty_like(tokens), done.contiguous(), sent, received)
        return values + back.view_as(values)


def train(job: Job, notes: Notes, helper: Helper) -> None:
    """Train to the end."""
    model = models.build(job, helper)
    for layer in model.layers:
        layer.inner = nn.Sequential(layer.inner, Experts(job))
    around = Around(job, helper, notes, model)
    shared = [p for name, p in model.named_parameters() if "expert" not in name]
    loader = data.loader(job, helper)
    dist.barrier()
    notes.mark("start")
    notes.end(-1)
    for step, (inputs, targets) in enumerate(loader):
        notes.mark("fetch")
        loss = around.loss(model(inputs), targets, step)
        notes.mark("forward")
        around.backward(loss)
        flat = torch.cat([p.grad.flatten() for p in shared if p.grad is not None])
        dist.all_reduce(flat)
        at = 0
        for parameter in shared:
            if parameter.grad is not None:
                size = parameter.grad.numel()
                parameter.grad.copy_(flat[at : at + size].view_as(parameter) / job.world)
                at += size
        notes.mark("backward")
        around.update(step)
        notes.mark("optimizer")
        around.between(step, (inputs, targets), loss)
        notes.mark("between")
        notes.end(step)


def main() -> None:
    """Do as the settings say."""
    job, notes, helper = start.begin()
    dist.init_process_group("gloo")
    train(job, notes, helper)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
