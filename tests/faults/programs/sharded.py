"""A loop of several ranks with a model sharded by ``fully_shard``."""

from __future__ import annotations

import torch.distributed as dist
from parts import data, models, start
from parts.around import Around
from parts.notes import Notes
from parts.settings import Job
from parts.tasks import Helper
from torch.distributed.fsdp import fully_shard


def train(job: Job, notes: Notes, helper: Helper) -> None:
    """Train to the end."""
    model = models.build(job, helper)
    mesh = dist.device_mesh.init_device_mesh("cpu", (job.world,))
    for layer in model.layers:
        fully_shard(layer.inner, mesh=mesh)
    fully_shard(model, mesh=mesh)
    around = Around(job, helper, notes, model)
    loader = data.loader(job, helper)
    dist.barrier()
    notes.mark("start")
    notes.end(-1)
    for step, (inputs, targets) in enumerate(loader):
        notes.mark("fetch")
        loss = around.loss(model(inputs), targets, step)
        notes.mark("forward")
        around.backward(loss)
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
