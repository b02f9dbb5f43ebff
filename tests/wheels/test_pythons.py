"""Wheels as they are published: each Python here installs its own, without a compiler."""

from __future__ import annotations

import importlib.metadata
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import first_report
import pytest
from built_wheels import built_wheels, sdist
from interpreters import free_threaded, interpreters

from haiprof import Analyzer

pytestmark = pytest.mark.pythons

#: Without torch, which is not to be had for each.
LOOP = """
import haiprof, numpy
for _ in range(9):
    with haiprof.range("work"):
        numpy.ones(10_000).sum()
    haiprof.step()
"""
PAGE = "haiprof/show/page/page.html"


class Installed(NamedTuple):
    """A wheel, and an environment that has it with what it depends on, and nothing else."""

    wheel: Path
    python: Path

    def run(self, folder: Path, *words: str | Path, code: int = 0) -> str:
        """Run a command of the environment in a folder; what it printed."""
        path = f"{self.python.parent}:/usr/bin:/bin"
        done = subprocess.run(
            list(map(str, words)),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            env={"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"},
        )
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def wheels() -> dict[str, Path]:
    """By the name of their Python, those without the lock, too."""
    pythons = {**interpreters(), **free_threaded()}
    both = built_wheels(list(pythons.values()))
    return {name: wheel for name, (_, wheel) in zip(pythons, both, strict=True)}


@pytest.fixture(scope="module", params=interpreters())
def installed(
    request: pytest.FixtureRequest,
    wheels: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Installed:
    folder = tmp_path_factory.mktemp("installed") / "environment"
    python = first_report.environment(folder, interpreters()[request.param])
    wheel = wheels[request.param]
    first_report.install(python, f"{wheel}[report]")
    return Installed(wheel, python)


def test_what_is_published_is_complete(wheels: dict[str, Path]) -> None:
    assert wheels
    with tarfile.open(sdist()) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert PAGE in names
    assert not any(name.startswith((".ci", "page/node_modules")) for name in names)
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as zipped:
            assert PAGE in zipped.namelist()


def test_it_is_imported_without_a_warning(installed: Installed, tmp_path: Path) -> None:
    code = "import haiprof, sys; print('torch' in sys.modules, 'pyarrow' in sys.modules)"
    said = installed.run(tmp_path, installed.python, "-W", "error", "-c", code)
    assert said == "False False\n"
    said = installed.run(tmp_path, "haiprof", "--version")
    assert said.startswith(f"haiprof {importlib.metadata.version('haiprof')}\n")
    said = installed.run(tmp_path, installed.python, "-m", "pip", "check")
    assert "No broken requirements" in said


def test_doctor_is_content(installed: Installed, tmp_path: Path) -> None:
    said = installed.run(tmp_path, "haiprof", "doctor", "--require", "core")
    assert "recorder: a record reached its file" in said
    assert "recorder: a record reached its file" in installed.run(tmp_path, "haiprof", "doctor")


def test_a_job_is_recorded_and_reported(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    words = ("haiprof", "run", "--log-dir", "logs", "--report", "--", installed.python)
    installed.run(tmp_path, *words, "train.py")
    [report] = tmp_path.glob("logs/*/*.html")
    assert report.stat().st_size > 100_000
    run = Analyzer(report.parent)
    assert run.problems() == []
    assert run.steps()["step"].to_list() == list(range(8))  # each from one call to the next
    assert run.sql("SELECT count(*) FROM spans WHERE name = 'work'").item() == 9
