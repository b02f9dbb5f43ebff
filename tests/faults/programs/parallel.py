"""A loop of several ranks with DistributedDataParallel, or with an exchange of its own.

Extras: ``exchange`` (``flat``: all gradients at once; ``each``: one after the other), ``bucket_mb``
of DistributedDataParallel, ``aside_nice`` (of all threads but that of the loop).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from parts import data, models, start
from parts.around import Around
from parts.notes import Notes
from parts.settings import Job
from parts.tasks import Helper
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def exchange(model: nn.Module, how: str) -> None:
    """Average the gradients over the ranks."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if how == "each":
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for gradient in gradients:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()


def settle(job: Job) -> None:
    """Set the niceness of the threads of this process but its main one."""
    main = threading.get_native_id()
    for entry in Path("/proc/self/task").iterdir():
        if int(entry.name) != main:
            os.setpriority(os.PRIO_PROCESS, int(entry.name), job.extras["aside_nice"])


def wrapped(job: Job, model: nn.Module) -> nn.Module:
    """Return what the loop calls."""
    if "exchange" in job.extras:
        return model
    bucket = job.extras.get("bucket_mb", 25)
    return DistributedDataParallel(model, bucket_cap_mb=bucket)


def train(job: Job, notes: Notes, helper: Helper) -> None:
    """Train to the end."""
    own = models.build(job, helper)
    model = wrapped(job, own)
    around = Around(job, helper, notes, own)
    loader = data.loader(job, helper)
    dist.barrier()
    if "aside_nice" in job.extras:
        settle(job)
    notes.mark("start")
    notes.end(-1)
    for step, (inputs, targets) in enumerate(loader):
        notes.mark("fetch")
        with around.precision():
            loss = around.loss(model(inputs), targets, step)
        notes.mark("forward")
        around.backward(loss)
        if "exchange" in job.extras:
            with notes.spending("exchange"):
                exchange(own, job.extras["exchange"])
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
