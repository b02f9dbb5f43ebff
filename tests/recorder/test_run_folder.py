"""The run's folder: its name and ``run.json``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from haiprof.common.launcher import Placement
from haiprof.options import Options
from haiprof.recorder.run_folder import earlier_attempt, made_up_name, open_run_folder, why_not

ALONE = Placement(rank=0, local_rank=None, world_size=None, attempt=0, job=None, launched=False)
LAUNCHED = ALONE._replace(rank=3, launched=True)


def test_ranks_of_one_job_make_up_one_name() -> None:
    assert made_up_name("train", LAUNCHED._replace(job="42")) == "train-42"
    assert made_up_name("train", LAUNCHED) == made_up_name("train", LAUNCHED._replace(rank=0))


def test_a_process_of_its_own_has_a_name_of_its_own() -> None:
    name = made_up_name("train", ALONE._replace(job="42"))
    assert name.startswith("train-20")
    assert name.endswith(f"-{os.getpid()}")


def test_a_name_is_one_harmless_part_of_a_path() -> None:
    name = made_up_name("../a b\n" + "x" * 300, LAUNCHED._replace(job="../.."))
    assert "/" not in name
    assert len(name) <= 120


def test_the_first_to_come_writes_the_file(tmp_path: Path) -> None:
    run = tmp_path / "logs" / "run"
    open_run_folder(run, ["first"], Options())
    open_run_folder(run, ["second"], Options())
    assert json.loads((run / "run.json").read_text())["command"] == ["first"]
    assert run.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in run.iterdir()] == ["run.json"]


def test_a_batch_job_that_is_started_again_goes_on_in_the_run_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = {"foreign": "[]", "deep": "[" * 100_000, "other": "null"}
    for name, text in damaged.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "of no bytes").mkdir()
    (tmp_path / "of no bytes" / "run.json").write_bytes(b"\xff\xfe")
    for job, name in (("42", "first"), ("42", "second"), ("43", "of another")):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        open_run_folder(tmp_path / name, ["srun", name], Options())
    (tmp_path / "of no time").mkdir()
    document = {"job": "42", "command": ["srun", "second"], "created_ns": float("inf")}
    (tmp_path / "of no time" / "run.json").write_text(json.dumps(document))
    again = ALONE._replace(job="42", attempt=1)
    assert earlier_attempt(tmp_path, ["srun", "second"], again) == "second"
    assert earlier_attempt(tmp_path, ["srun", "of another"], again) is None
    assert earlier_attempt(tmp_path, ["srun", "second"], again._replace(attempt=0)) is None
    assert earlier_attempt(tmp_path / "none", ["srun", "second"], again) is None


def test_a_command_that_is_not_utf8_is_kept(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff")
    open_run_folder(tmp_path / "run", [odd], Options())
    assert json.loads((tmp_path / "run" / "run.json").read_text())["command"] == [odd]


def test_a_folder_that_cannot_be_made_is_reported_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as raised:
        open_run_folder(tmp_path / "file" / "logs" / "run", ["x"], Options())
    line = why_not(raised.value)
    assert str(tmp_path / "file") in line
    assert "HAIPROF_LOG_DIR" in line
