"""What launchers say about a process, and what they only seem to say."""

from __future__ import annotations

import os

import pytest

from haiprof.common.launcher import placement


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(
            ("SLURM_", "OMPI_", "PMI_", "PMIX_", "MARSV2_", "TORCHELASTIC_", "HAIPROF_")
        ):
            monkeypatch.delenv(name)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_it_is_rank_0_and_not_launched() -> None:
    place = placement()
    assert (place.rank, place.launched, place.world_size) == (0, False, None)


def test_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RESTART_COUNT": "2",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    place = placement()
    assert (place.rank, place.local_rank, place.world_size, place.attempt) == (5, 1, 8, 2)
    assert place.launched


def test_srun_launches_and_a_batch_script_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert not placement().launched
    assert placement().attempt == 1
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_PROCID", "3")
    place = placement()
    assert (place.rank, place.world_size, place.job, place.launched) == (3, 4, "77", True)


def test_values_that_are_no_numbers_count_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "-1")
    place = placement()
    assert (place.rank, place.launched, place.world_size) == (0, False, None)


OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_MCA_ess_base_jobid": "4711",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
}
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "2", "WORLD_SIZE": "4"}
NODE = {"RANK": "1", "MARSV2_RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "rank", "local_rank", "world_size"),
    [
        (OPEN_MPI, 5, 1, 8),
        (SRUN | OPEN_MPI, 5, 1, 8),
        (NODE | OPEN_MPI, 5, 1, 8),
        (NODE | SRUN, 1, 0, 2),
        (NODE | SRUN | OPEN_MPI | TORCHRUN, 3, 2, 4),
        (NODE, 1, None, 2),
        ({"MARSV2_RANK": "1", "WORLD_SIZE": "2"}, 1, None, 2),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, 2, None, 4),
    ],
)
def test_of_launchers_within_each_other_the_innermost_counts(
    environment: dict[str, str], rank: int, local_rank: int | None, world_size: int
) -> None:
    place = placement(environment)
    assert (place.rank, place.local_rank, place.world_size) == (rank, local_rank, world_size)
    assert place.launched


def test_the_job_is_the_schedulers_else_the_launchers() -> None:
    assert placement({**SRUN, **OPEN_MPI, "HAIPROF_TASK_ID": "9"}).job == "9"
    assert placement({**SRUN, **OPEN_MPI}).job == "77"
    assert placement(OPEN_MPI).job == "4711"
    assert placement({"PMIX_NAMESPACE": "prterun-1@1"}).job == "prterun-1@1"


@pytest.mark.parametrize(
    ("nodes", "run_id", "job"), [("2", "exp1", "exp1"), ("2", "none", None), ("1", "100", None)]
)
def test_torchruns_rendezvous_names_the_job_where_nodes_share_nothing_else(
    nodes: str, run_id: str, job: str | None
) -> None:
    environment = {**TORCHRUN, "GROUP_WORLD_SIZE": nodes, "TORCHELASTIC_RUN_ID": run_id}
    assert placement(environment).job == job
