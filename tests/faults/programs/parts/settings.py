"""What a program is asked to do, and which of its ranks it is."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Task:
    """Something that a program does beside training.

    Attributes:
        at: where: ``start``, ``item``, ``collate``, ``forward``, ``between``, ``loss``.
        do: what, a name in :data:`parts.tasks.KINDS`.
        ms: how much of it: of CPU time where it computes, of wall time where it waits.
        since: the first step that it is done in.
        until: the first step that it is not done in any more.
        every: in every how many steps.
        ranks: by which ranks (none named: by all).
        more: what else this kind of task wants to know.
    """

    at: str
    do: str
    ms: float = 0.0
    since: int = 0
    until: int = 1 << 30
    every: int = 1
    ranks: tuple[int, ...] = ()
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def due(self, step: int, rank: int) -> bool:
        """Whether it is done in this step of this rank."""
        inside = self.since <= step < self.until and (step - self.since) % self.every == 0
        return inside and (not self.ranks or rank in self.ranks)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job: its model, data and loop; the defaults are those of a plain one.

    ``extras`` are features of a loop, by name: see :mod:`parts.around`.
    """

    notes: str
    folder: str
    seed: int = 0
    steps: int = 100
    epochs: int = 1
    model: str = "mlp"
    width: int = 1024
    layers: int = 3
    vocabulary: int = 512
    length: int = 64
    batch: int = 96
    rows: int = 0
    workers: int = 0
    threads: int = 1
    microbatches: int = 8
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    tasks: tuple[Task, ...] = ()
    rank: int = 0
    world: int = 1

    def at(self, place: str) -> list[Task]:
        """Return the tasks of a place that this rank has."""
        mine = (task for task in self.tasks if task.at == place)
        return [task for task in mine if not task.ranks or self.rank in task.ranks]

    def scratch(self, name: str) -> Path:
        """Return the path of a file that the program may write."""
        return Path(self.folder) / f"{name}-{self.rank}"


def read() -> Job:
    """Return what the environment asks for, and take it out of the environment."""
    given = json.loads(os.environ.pop("JOB"))
    given["tasks"] = tuple(
        Task(**{**task, "ranks": tuple(task.get("ranks", ()))}) for task in given.get("tasks", ())
    )
    place = {
        "rank": int(os.environ.get("RANK", "0")),
        "world": int(os.environ.get("WORLD_SIZE", "1")),
    }
    return Job(**given, **place)
