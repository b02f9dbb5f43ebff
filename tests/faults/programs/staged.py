"""A transformer in a pipeline: each rank has some of its layers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from parts import data, models, start
from parts.notes import Notes
from parts.settings import Job
from parts.tasks import Helper
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


class Stage(nn.Module):
    """The layers of one rank, with what is before the first and after the last."""

    def __init__(self, job: Job, helper: Helper) -> None:
        super().__init__()
        whole = models.build(job, helper)
        self.first, self.last = job.rank == 0, job.rank == job.world - 1
        if self.first:
            self.embedding = whole.embedding
        self.layers = nn.ModuleList([layer.inner for layer in whole.layers])
        if self.last:
            self.head = whole.head
        self.__dict__["helper"] = helper
        self.step = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.first:
            values = self.embedding(values)
        self.helper.run("forward", self.step)
        for layer in self.layers:
            values = layer(values)
        result: torch.Tensor = self.head(values) if self.last else values
        return result


def train(job: Job, notes: Notes, helper: Helper) -> None:
    """Train to the end."""
    stage = Stage(job, helper)
    pipeline = PipelineStage(stage, job.rank, job.world, torch.device("cpu"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[job.extras["schedule"]]
    schedule = kind(pipeline, job.microbatches, loss_fn=models.objective)
    optimizer = torch.optim.AdamW(stage.parameters(), 1e-4, foreach=False)
    # All stages read the same rows; the first uses the inputs, the last the targets.
    loader = data.loader(Job(**{**vars(job), "world": 1, "rank": 0}), helper)
    dist.barrier()
    notes.mark("start")
    notes.end(-1)
    for step, (inputs, targets) in enumerate(loader):
        notes.mark("fetch")
        stage.step = step
        if stage.first:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=[])
        notes.mark("backward")
        optimizer.step()
        optimizer.zero_grad()
        notes.mark("optimizer")
        helper.run("between", step)
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
