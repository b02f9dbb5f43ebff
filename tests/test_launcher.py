"""What launchers say about a process, and what they only seem to say."""

from __future__ import annotations

import os

import pytest

from haiprof.launcher import placement


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "MARSV2_", "TORCHELASTIC_", "HAIPROF_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
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
    assert not placement().launched
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_PROCID", "3")
    place = placement()
    assert (place.rank, place.world_size, place.job, place.launched) == (3, 4, "77", True)


def test_values_that_are_no_numbers_count_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "-1")
    place = placement()
    assert (place.rank, place.launched, place.world_size) == (0, False, None)
