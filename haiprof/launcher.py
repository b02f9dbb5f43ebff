"""What the launcher (torchrun, SLURM, Open MPI, hai-platform) says about this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

_RANK: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MARSV2_RANK")
_LOCAL_RANK: Final = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_WORLD_SIZE: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_ATTEMPT: Final = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_JOB: Final = ("HAIPROF_TASK_ID", "MARSV2_TASK_ID", "SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid")


class Placement(NamedTuple):
    """One process's place in its job. ``None`` where the launcher says nothing."""

    rank: int
    local_rank: int | None
    world_size: int | None
    attempt: int
    job: str | None
    #: A launcher gave the rank; otherwise this is a single process and rank 0.
    launched: bool


def placement(environment: Mapping[str, str] | None = None) -> Placement:
    """Read the placement from the environment, this process's own if none is given.

    Values that are no numbers count as absent.
    """
    told = os.environ if environment is None else environment

    def number(names: tuple[str, ...]) -> int | None:
        for name in names:
            text = told.get(name, "")
            # SLURM sets some of its own before any srun: those are the batch script's.
            of_script = name.startswith("SLURM_") and "SLURM_STEP_ID" not in told
            if text.isdecimal() and not of_script:
                return int(text)
        return None

    rank = number(_RANK)
    job = next((told[n] for n in _JOB if told.get(n)), None)
    return Placement(
        rank=rank or 0,
        local_rank=number(_LOCAL_RANK),
        world_size=number(_WORLD_SIZE),
        attempt=number(_ATTEMPT) or 0,
        job=job,
        launched=rank is not None,
    )
