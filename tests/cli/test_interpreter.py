"""``haiprof run train.py``: by which Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from commands import haiprof

from haiprof.cli.interpreter import for_script

pytestmark = pytest.mark.usefixtures("shm")


def python_on_path(folder: Path, options: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a Python first on PATH; ``-S`` hides from it what is installed."""
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" {options} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return python


def test_the_python_of_path_runs_the_script_if_haiprof_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_on_path(tmp_path / "bin", "-X dev", monkeypatch)
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.flags.dev_mode)")
    done = haiprof("run", script, cwd=tmp_path)
    assert done.stdout == "True\n"
    first, *_ = done.stderr.splitlines()
    assert first == f"haiprof: {script} is run by {python}, the first Python on PATH"


def test_a_python_without_haiprof_does_not_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_on_path(tmp_path / "bin", "-S -E", monkeypatch)
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.flags.no_site)")
    done = haiprof("run", script, cwd=tmp_path)
    assert done.stdout == "0\n"
    first, *_ = done.stderr.splitlines()
    assert first.startswith(f"haiprof: {script} is run by {sys.executable}: {python}, the first")
    assert f"{python} -m pip install haiprof" in first


def test_of_many_ranks_the_first_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_on_path(tmp_path / "bin", "-X dev", monkeypatch)
    script = tmp_path / "train.py"
    script.write_text("")
    ranked = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    assert "is run by" not in haiprof("run", script, cwd=tmp_path, env=ranked).stderr


def test_haiprofs_own_python_needs_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.path.dirname(sys.executable)  # noqa: PTH120
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
    assert for_script("train.py") == (sys.executable, "")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert for_script("train.py") == (sys.executable, "")


def test_a_python_that_cannot_be_started_has_no_haiprof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_on_path(tmp_path / "bin", "", monkeypatch).write_text("no program")
    assert for_script("train.py").path == sys.executable
