"""A job of Lightning's, of one process."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from parts import data, models, start
from parts.notes import Notes
from parts.settings import Job
from parts.tasks import Helper


class Module(lightning.LightningModule):
    """The model with its loss and optimizer; notes the parts of each step."""

    def __init__(self, job: Job, notes: Notes, helper: Helper) -> None:
        super().__init__()
        self.inner = models.build(job, helper)
        self.notes, self.helper = notes, helper

    def on_train_start(self) -> None:
        self.notes.mark("start")
        self.notes.end(-1)

    def on_train_batch_start(self, batch: Any, number: int) -> None:
        self.notes.mark("fetch")

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        inputs, targets = batch
        return models.objective(self.inner(inputs), targets)

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.notes.mark("forward")

    def on_after_backward(self) -> None:
        self.notes.mark("backward")

    def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
        self.helper.run("between", number)
        self.notes.mark("between")
        self.notes.end(number)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.parameters(), 1e-4, foreach=False)
        optimizer.register_step_post_hook(lambda *_: self.notes.mark("optimizer"))
        return optimizer


def train(job: Job, notes: Notes, helper: Helper) -> None:
    """Train to the end."""
    callbacks = [EMAWeightAveraging()] if "average" in job.extras else []
    trainer = lightning.Trainer(
        callbacks=callbacks,
        accelerator="cpu", max_steps=job.steps, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(job, notes, helper), data.loader(job, helper))


def main() -> None:
    """Do as the settings say."""
    job, notes, helper = start.begin()
    train(job, notes, helper)


if __name__ == "__main__":
    main()
