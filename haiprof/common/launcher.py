"""Reads what the launcher (torchrun, SLURM, Open MPI, hai-platform) says about this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

#: Where launchers that start the processes of a job one by one say rank, local rank and world size.
#: The innermost comes first: Open MPI starts its daemons with srun, torchrun runs under either.
_LAUNCHERS: Final = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
#: Ranks of a node, not of its processes: any of the above takes precedence.
_OF_NODES: Final = (("RANK", "LOCAL_RANK", "WORLD_SIZE"), ("MARSV2_RANK", "", "WORLD_SIZE"))
_ATTEMPT: Final = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_LOCAL_SIZE: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_JOB: Final = (
    "HAIPROF_TASK_ID",
    "MARSV2_TASK_ID",
    "SLURM_JOB_ID",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
)


class Placement(NamedTuple):
    """One process's place in its job. ``None`` where the launcher says nothing."""

    rank: int
    local_rank: int | None
    world_size: int | None
    attempt: int
    job: str | None
    #: A launcher gave the rank; otherwise this is a single process and rank 0.
    launched: bool
    #: How many of the job's processes are on this node.
    local_world_size: int | None = None


def placement(environment: Mapping[str, str] | None = None) -> Placement:
    """Read the placement from the environment, this process's own if none is given.

    Values that are not numbers count as absent.
    """
    environ = os.environ if environment is None else environment

    def number(name: str) -> int | None:
        text = environ.get(name, "")
        # SLURM also sets these outside of srun: then they are the batch script's.
        of_script = name in _LAUNCHERS[-1] and "SLURM_STEP_ID" not in environ
        return int(text) if text.isdecimal() and not of_script else None

    def first(names: tuple[str, ...]) -> int | None:
        return next((n for name in names if (n := number(name)) is not None), None)

    of_processes = (
        names
        for names in _LAUNCHERS
        if number(names[0]) is not None and (names[0] != "RANK" or number(names[1]) is not None)
    )
    of_nodes = (names for names in _OF_NODES if number(names[0]) is not None)
    names = next(of_processes, None) or next(of_nodes, None)
    rank, local_rank, world_size = map(number, names or _LAUNCHERS[0])
    return Placement(
        rank=rank or 0,
        local_rank=local_rank,
        world_size=world_size,
        attempt=first(_ATTEMPT) or 0,
        job=next((environ[n] for n in _JOB if environ.get(n)), None) or _rendezvous(environ),
        launched=rank is not None,
        local_world_size=first(_LOCAL_SIZE),
    )


def _rendezvous(environ: Mapping[str, str]) -> str | None:
    """Return the id that torchrun's nodes share. The ranks of one node share their parent.

    People reuse one id again and again (``--rdzv-id=100``), so it is only used where needed.
    """
    several = environ.get("GROUP_WORLD_SIZE", "1") != "1"
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    return run_id if several and run_id not in ("", "none") else None
