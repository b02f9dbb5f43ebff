"""Where a package is not installed, what records goes on, and the rest says what to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import HAIPROF
from fixtures import ROOT

from haiprof import Analyzer
from haiprof.common.extras import lacking

#: As if these were not installed, in every Python that is started with it.
HIDING = """
import sys

class Hidden:
    def find_spec(self, name, *others):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
OF_REPORT = {"isal", "numpy", "plotly", "polars"}
JOB = """
import sys, haiprof
haiprof.start(log_dir=sys.argv[1])
for _ in range(3):
    haiprof.step()
    for _ in range(1500):
        with haiprof.range("load"):
            pass
haiprof.stop()
"""


@pytest.fixture
def without(tmp_path: Path, shm: Path) -> dict[str, str]:
    """Return the environment of a Python that has none of them, and pyarrow neither."""
    site = tmp_path / "hiding"
    site.mkdir()
    text = HIDING.format(names=OF_REPORT | {"pyarrow"})
    (site / "sitecustomize.py").write_text(text)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def run(*command: str | Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = list(map(str, command))
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr
    return done


def test_a_job_is_recorded_whole(tmp_path: Path, without: dict[str, str]) -> None:
    job = run(sys.executable, "-c", JOB, tmp_path / "logs", environment=without)
    assert (job.returncode, job.stdout, job.stderr) == (0, "", "")
    assert Analyzer(tmp_path / "logs").spans(name="load").height == 4_500


def test_a_command_ends_as_it_does_and_its_summary_says_what_it_lacks(
    tmp_path: Path, without: dict[str, str]
) -> None:
    words = ("run", "--log-dir", tmp_path / "logs", "--", sys.executable, "-c", "exit(7)")
    ran = run(*HAIPROF, *words, environment=without)
    assert ran.returncode == 7
    assert ran.stderr.splitlines()[-1].endswith(
        "no summary: it needs polars: pip install 'haiprof[report]'"
    )


@pytest.mark.parametrize(
    "words", ["report X", "diagnose X", "top --once", "view X", "runs X", "import X", "compare X X"]
)
def test_a_command_that_reads_what_was_recorded_says_so(
    tmp_path: Path, without: dict[str, str], words: str
) -> None:
    done = run(*HAIPROF, *words.replace("X", str(tmp_path)).split(), environment=without)
    name = words.split()[0]
    assert done.returncode == 1
    assert re.fullmatch(
        rf"haiprof: haiprof {name} needs (\w+): pip install 'haiprof\[report\]'\n", done.stderr
    )


@pytest.mark.parametrize("words", ["--version", "doctor --require core", "ps", "stacks 0", "ls X"])
def test_what_is_used_on_a_node_needs_none(
    tmp_path: Path, without: dict[str, str], words: str
) -> None:
    done = run(*HAIPROF, *words.replace("X", str(tmp_path)).split(), environment=without)
    assert "needs" not in done.stdout + done.stderr
    assert "No module" not in done.stdout + done.stderr


def test_the_analyzer_says_so(without: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from haiprof import Analyzer"],
        env=without,
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines()[-1] == (
        "ImportError: haiprof.Analyzer needs polars: pip install 'haiprof[report]'"
    )


def test_other_errors_are_not_explained() -> None:
    assert lacking("it", ModuleNotFoundError("no", name="torch")) == ""
    assert lacking("it", ImportError("broken", name="polars")) == ""
    error = ModuleNotFoundError("no", name="pyarrow.lib")
    assert lacking("it", error) == "it needs pyarrow: pip install pyarrow"


def test_every_package_of_the_extra_is_explained() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = text.partition("\nreport = [")[2].partition("\n]")[0]
    names = re.findall(r'^    "(\w+)>', listed, re.MULTILINE)
    assert set(names) == OF_REPORT
    assert all(lacking("it", ModuleNotFoundError("no", name=name)) for name in names)
