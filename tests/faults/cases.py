"""A case: one program with its settings, what is wrong with it, and how that is measured."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

#: The kinds of findings that ``haiprof diagnose`` knows.
KINDS = (
    "slow_loader", "slow_storage", "loader_worker_died", "uneven_lengths", "slow_batch",
    "garbage_collection", "host_code", "gil", "cpu_neighbour", "cpu_quota", "too_many_threads",
    "cpu_affinity", "memory_pressure", "out_of_memory", "disk_full", "slow_start",
    "pipeline_stage", "pipeline_bubble", "straggler", "recompilation", "exposed_communication",
    "small_collectives", "uneven_exchange", "blocking_checkpoint", "logging", "memory_leak",
    "regression", "skipped_steps", "slow_link", "packet_loss", "starved_communication",
    "exception", "crash", "preempted", "stopped", "rank_never_arrived", "collective_mismatch",
    "crossed_collectives", "unmatched_send", "stalled_transfer", "tensor_work", "page_faults",
    "uneven_input", "framework", "machine_errors",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A run to be made.

    Attributes:
        label: what one reads of it.
        kind: what is wrong; None: nothing.
        seed: what its parameters were drawn from.
        style: the file of :mod:`faults.programs` without its suffix.
        job: the settings of the program.
        world: how many ranks, started by torchrun if there are several.
        measure: how the lost time is found, a name in :data:`faults.truth.MEASURES`.
        also: kinds that name the same cause with as much right.
        ranks: who causes it, where not all do alike.
        places: functions of the programs that are at it.
        conditions: what the machine is like meanwhile: see :mod:`faults.conditions`.
    """

    label: str
    kind: str | None
    seed: int
    style: str
    job: dict[str, Any]
    world: int = 1
    measure: str = ""
    also: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    places: tuple[str, ...] = ()
    conditions: tuple[dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder, which says nothing."""
        return hashlib.sha256(f"{self.label} {self.seed}".encode()).hexdigest()[:10]

    @property
    def since(self) -> int:
        """The first step that is affected."""
        return min((int(task.get("since", 0)) for task in self.job.get("tasks", ())), default=0)
