"""A plain loop of one process."""

from __future__ import annotations

from typing import Any

import torch
from parts import data, models, start
from parts.around import Around
from parts.notes import Notes
from parts.settings import Job
from parts.tasks import Helper


def compiled(model: torch.nn.Module, job: Job) -> Any:
    """Return the model compiled as the job wants it."""
    how = job.extras["compiled"]
    torch._dynamo.config.recompile_limit = 1_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    return torch.compile(model, backend=how["backend"], dynamic=how.get("dynamic"))


def compile_ns() -> int:
    """Return how long torch.compile has worked so far."""
    spent = torch._dynamo.utils.calculate_time_spent()
    return int(spent.get("entire_frame_compile", 0.0) * 1e9)


def train(job: Job, notes: Notes, helper: Helper) -> None:
    """Train to the end."""
    model = models.build(job, helper)
    call = compiled(model, job) if "compiled" in job.extras else model
    around = Around(job, helper, notes, model)
    loader = data.loader(job, helper)
    notes.mark("start")
    notes.end(-1)
    step, so_far = 0, 0
    for _ in range(job.epochs):
        for inputs, targets in loader:
            notes.mark("fetch")
            with around.precision():
                loss = around.loss(call(inputs), targets, step)
            notes.mark("forward")
            around.backward(loss)
            notes.mark("backward")
            around.update(step)
            notes.mark("optimizer")
            around.between(step, (inputs, targets), loss)
            if call is not model:
                notes.add("compiled", -so_far + (so_far := compile_ns()))
            notes.mark("between")
            notes.end(step)
            step += 1


def main() -> None:
    """Do as the settings say."""
    job, notes, helper = start.begin()
    train(job, notes, helper)


if __name__ == "__main__":
    main()
