"""What a shell offers after TAB: commands, options, runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commands import haiprof
from runs import T0, write_run

pytestmark = pytest.mark.usefixtures("shm")


def offered(words: str, cwd: Path) -> list[str]:
    """Return what bash is offered for the last of these words."""
    asked = {
        "_HAIPROF_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "HAIPROF_ENABLED": "1",
    }
    done = haiprof(env={**os.environ, **asked}, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_options_and_runs_are_offered_and_nothing_is_recorded(
    tmp_path: Path, shm: Path
) -> None:
    for number, name in enumerate(("train-1", "train-2", "other")):
        write_run(tmp_path / "haiprof-logs" / name, created_ns=T0 + number)
    assert offered("haiprof re", tmp_path) == ["report", "recover"]
    assert offered("haiprof report --op", tmp_path) == ["--open"]
    assert offered("haiprof run --log", tmp_path) == ["--log-dir"]
    assert offered("haiprof trace --trace-w", tmp_path) == ["--trace-warmup", "--trace-with"]
    assert offered("haiprof report tr", tmp_path) == ["train-2", "train-1"]
    assert offered("haiprof diagnose haiprof-logs/o", tmp_path) == ["haiprof-logs/other"]
    assert not list(shm.iterdir())


def test_without_a_log_directory_no_run_is_offered(tmp_path: Path) -> None:
    assert offered("haiprof report tr", tmp_path) == []


def test_a_shell_gets_its_script() -> None:
    # Otherwise it answers for the shell that has started the tests.
    own = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = haiprof("--show-completion", "bash", env={**os.environ, **own})
    assert done.returncode == 0
    assert "complete -o default -F _haiprof_completion haiprof" in done.stdout
