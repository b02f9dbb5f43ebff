"""The data of programs: rows that are made once, handed out by a DataLoader."""

from __future__ import annotations

import random
from typing import Any

import torch
from parts.settings import Job
from parts.tasks import Helper
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

Row = tuple[torch.Tensor, torch.Tensor]
#: Rows differ, but few of them have to be in memory.
TABLE = 512


class Rows(Dataset[Row]):
    """Rows in the order of their steps, each of the length that its step has."""

    def __init__(self, job: Job, helper: Helper) -> None:
        self.job = job
        self.helper = helper
        maker = torch.Generator().manual_seed(job.seed)
        if job.model == "mlp":
            self.inputs = torch.randn(TABLE, job.width, generator=maker)
            self.targets = torch.randint(10, (TABLE,), generator=maker)
        else:
            sizes = (TABLE, job.length + 1)
            tokens = torch.randint(job.vocabulary, sizes, generator=maker)
            self.inputs, self.targets = tokens[:, :-1], tokens[:, 1:]

    def __len__(self) -> int:
        return self.job.rows or self.job.steps * self.job.batch * self.job.world

    def step_of(self, index: int) -> int:
        """Return which step of this rank the row belongs to."""
        return index // self.job.world // self.job.batch

    def length(self, step: int) -> int:
        """Return how many tokens the rows of a step have."""
        drawn = self.job.extras.get("lengths")
        if not drawn:
            return self.job.length
        low, high = drawn["of"]
        if "growing" in drawn:
            return min(high, low + step // int(drawn["growing"]))
        if "seldom" in drawn:
            return high if step % int(drawn["seldom"]) == int(drawn["seldom"]) // 2 else low
        who = 0 if drawn.get("alike") else self.job.rank
        return random.Random(f"{self.job.seed} {step} {who}").choice([low, high])

    def prepare(self, index: int) -> None:
        """Do what the first row of a step needs."""
        if index // self.job.world % self.job.batch == 0:
            self.helper.run("item", self.step_of(index))

    def __getitem__(self, index: int) -> Row:
        self.prepare(index)
        row = index % TABLE
        if self.job.model == "mlp":
            return self.inputs[row], self.targets[row]
        length = self.length(self.step_of(index))
        return self.inputs[row, :length], self.targets[row, :length]


class Batches:
    """Puts rows together; counts the batches of its own process."""

    def __init__(self, job: Job, helper: Helper) -> None:
        self.job = job
        self.helper = helper
        self.made = 0

    def __call__(self, rows: list[Row]) -> Any:
        self.helper.run("collate", self.made)
        self.made += 1
        return default_collate(rows)


def loader(job: Job, helper: Helper) -> DataLoader[Row]:
    """Return the loader of a rank; its workers note nothing."""
    rows = Rows(job, helper)
    several = job.world > 1
    sampler = DistributedSampler(rows, job.world, job.rank, shuffle=False) if several else None
    return DataLoader(
        rows, job.batch, sampler=sampler, num_workers=job.workers,
        collate_fn=Batches(job, helper), drop_last=not job.rows,
    )  # fmt: skip
