"""What loops have around their steps: clipping, averages, schedules, evaluation, saving.

Features in ``Job.extras``: ``bfloat16``, ``clip``, ``average``, ``schedule``, ``accumulate``,
``several`` (optimizers), ``scaler``, ``own_loss``, ``evaluate`` (every so many steps, so many
batches), ``save`` and ``say`` (every so many steps), ``lengths``, ``compiled``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from parts import models
from parts.notes import Notes
from parts.settings import Job
from parts.tasks import Helper
from torch import nn


class Around:
    """Belongs to one model and its optimizers."""

    def __init__(self, job: Job, helper: Helper, notes: Notes, model: nn.Module) -> None:
        self.job, self.helper, self.notes, self.model = job, helper, notes, model
        self.extras = job.extras
        parameters = list(model.parameters())
        parts = [parameters[0::2], parameters[1::2]] if "several" in self.extras else [parameters]
        self.optimizers = [torch.optim.AdamW(part, 1e-4, foreach=False) for part in parts]
        self.schedules: list[torch.optim.lr_scheduler.LRScheduler] = []
        if "schedule" in self.extras:
            self.schedules = [
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.steps)
                for optimizer in self.optimizers
            ]
        self.average = (
            torch.optim.swa_utils.AveragedModel(model) if "average" in self.extras else None
        )
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=8.0) if "scaler" in self.extras else None
        )
        self.accumulate = int(self.extras.get("accumulate", 1))
        self.sample: Any = None

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of the forward pass."""
        return torch.autocast("cpu", torch.bfloat16, enabled="bfloat16" in self.extras)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor, step: int) -> torch.Tensor:
        """Return the loss of a batch."""
        call = models.weighted if "own_loss" in self.extras else models.objective
        loss = call(outputs, targets)
        if self.helper.due("loss", step):
            self.notes.flag("left_out")
            loss = loss * float("inf")
        self.helper.run("before_backward", step)
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients."""
        loss = loss / self.accumulate
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def update(self, step: int) -> None:
        """Update the weights, if it is time to."""
        if (step + 1) % self.accumulate:
            return
        if "clip" in self.extras:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            if self.scaler:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
            optimizer.zero_grad()
        if self.scaler:
            self.scaler.update()
        for schedule in self.schedules:
            schedule.step()
        if self.average:
            self.average.update_parameters(self.model)

    def between(self, step: int, batch: Any, loss: torch.Tensor) -> None:
        """Do what is between two steps."""
        if self.sample is None:
            self.sample = batch
        self.helper.run("between", step)
        if "evaluate" in self.extras and (step + 1) % self.extras["evaluate"]["every"] == 0:
            with self.notes.spending("evaluated"):
                self.evaluate(int(self.extras["evaluate"]["batches"]))
        if "save" in self.extras and (step + 1) % self.extras["save"]["every"] == 0:
            with self.notes.spending("saved"):
                torch.save(self.model.state_dict(), self.job.scratch("state"))
        if "say" in self.extras and (step + 1) % self.extras["say"]["every"] == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    def evaluate(self, batches: int) -> float:
        """Return the loss on the first batch."""
        self.model.eval()
        total = 0.0
        with torch.no_grad():
            for _ in range(batches):
                inputs, targets = self.sample
                total += models.objective(self.model(inputs), targets).item()
        self.model.train()
        return total / batches
