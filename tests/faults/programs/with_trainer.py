"""A job of Hugging Face's Trainer, of one process."""

from __future__ import annotations

from typing import Any

import torch
from parts import data, models, start
from parts.notes import Notes
from parts.settings import Job
from parts.tasks import Helper
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(nn.Module):
    """A model that computes its loss itself, as the Trainer wants it."""

    def __init__(self, job: Job, helper: Helper) -> None:
        super().__init__()
        self.inner = models.build(job, helper)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": models.objective(self.inner(inputs), labels)}


class Steps(TrainerCallback):
    """Notes the parts of each step, and does the tasks between them."""

    def __init__(self, notes: Notes, helper: Helper) -> None:
        self.notes, self.helper = notes, helper

    def on_train_begin(self, *given: Any, **named: Any) -> None:
        self.notes.mark("start")
        self.notes.end(-1)

    def on_step_begin(self, *given: Any, **named: Any) -> None:
        self.notes.mark("fetch")

    def on_pre_optimizer_step(self, *given: Any, **named: Any) -> None:
        self.notes.mark("backward")

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.notes.mark("optimizer")
        step = state.global_step - 1
        self.helper.run("between", step)
        self.notes.mark("between")
        self.notes.end(step)


class Own(Trainer):
    """A Trainer that reads the loader of all programs."""

    job: Job
    helper: Helper

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader = data.loader(self.job, self.helper)
        inner = loader.collate_fn

        def named(rows: list[data.Row]) -> dict[str, torch.Tensor]:
            inputs, labels = inner(rows)
            return {"inputs": inputs, "labels": labels}

        loader.collate_fn = named
        return loader


def train(job: Job, notes: Notes, helper: Helper) -> None:
    """Train to the end."""
    said = int(job.extras.get("say", {}).get("every", 0))
    arguments = TrainingArguments(
        output_dir=job.folder, max_steps=job.steps, per_device_train_batch_size=job.batch,
        save_strategy="no", logging_strategy="steps" if said else "no", logging_steps=said or 500,
        report_to=[], use_cpu=True, disable_tqdm=True, dataloader_num_workers=job.workers,
        learning_rate=1e-4, seed=job.seed,
    )  # fmt: skip
    trainer = Own(
        Model(job, helper), arguments, train_dataset=data.Rows(job, helper),
        callbacks=[Steps(notes, helper)],
    )  # fmt: skip
    trainer.job, trainer.helper = job, helper
    trainer.train()


def main() -> None:
    """Do as the settings say."""
    job, notes, helper = start.begin()
    train(job, notes, helper)


if __name__ == "__main__":
    main()
