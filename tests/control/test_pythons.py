"""Attaching to programs of other Pythons, from the start of the command to what was recorded.

Each Python that is here gets the extension module built for it and an environment with what haiprof
needs; both are kept in build/pythons. The programs know nothing of torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures import ROOT
from interpreters import interpreters
from recording import recorders, wait_for

from haiprof import Analyzer

pytestmark = pytest.mark.pythons

BUILD = ROOT / "build" / "pythons"
NEEDED = (
    "numpy>=1.26",
    "plotly>=6.0",
    "polars>=1.32",
    "pyarrow>=17.0",
    "rich>=13.7",
    "typer>=0.15",
)
#: Steps until it is killed; of a haiprof that somebody brought it uses what a user would.
STEPS = """
import sys, time
print("ready", flush=True)
while True:
    time.sleep(0.002)
    begun = sys.modules.get("haiprof.capture.session")
    if begun is not None and getattr(begun, "active", lambda: None)() is not None:
        import haiprof
        with haiprof.range("work"):
            time.sleep(0.001)
"""


def others() -> list[Path]:
    """All but the one that runs the tests."""
    own = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return [path for name, path in interpreters().items() if name != own]


def said(*command: str | Path, **keywords: Any) -> str:
    """Run a command to its successful end; what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, **keywords)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    return done.stdout.strip()


@dataclass(frozen=True)
class Python:
    """A Python, bare, and an environment of it with all that haiprof needs.

    Attributes:
        bare: has nothing.
        equipped: has haiprof's dependencies, and haiprof where ``site`` is in PYTHONPATH.
        site: our package, built for it.
    """

    bare: Path
    equipped: Path
    site: Path

    @property
    def environment(self) -> dict[str, str]:
        """In which it finds haiprof."""
        return {**os.environ, "PYTHONPATH": str(self.site)}


@pytest.fixture(scope="module", params=others(), ids=lambda path: path.name)
def python(request: pytest.FixtureRequest) -> Python:
    bare: Path = request.param
    version = said(bare, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    environment = BUILD / f"environment-{version}"
    if not (environment / "installed").exists():
        shutil.rmtree(environment, ignore_errors=True)
        pip = (environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check")
        for command in ((bare, "-m", "venv", environment), (*pip, *NEEDED)):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no environment for {bare}: {(done.stderr or done.stdout)[-300:]}")
        (environment / "installed").touch()
    equipped = environment / "bin" / "python"
    return Python(bare, equipped, built(equipped, BUILD / f"site-{version}"))


def built(python: Path, site: Path) -> Path:
    """Build the extension module, unless one is newer than its sources.

    All but the bindings is the same for all Pythons and built once.
    """
    suffix = said(python, "-c", "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")
    module = BUILD / f"_core{suffix}"
    sources = [ROOT / "CMakeLists.txt", *(p for p in (ROOT / "src").rglob("*") if p.is_file())]
    changed = max(path.stat().st_mtime for path in sources)
    if not module.exists() or module.stat().st_mtime < changed:
        tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        said(
            "cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-U", "*PYTHON*", "-U", "*Python*",
            f"-DPython_EXECUTABLE={python}",
            f"-Dpybind11_DIR={said(sys.executable, '-m', 'pybind11', '--cmakedir')}",
            env=tools,
        )  # fmt: skip
        said("cmake", "--build", BUILD, "--target", "_core", env=tools)
    shutil.rmtree(site, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "haiprof", site / "haiprof", ignore=ignored)
    shutil.copy(module, site / "haiprof")
    return site


@contextlib.contextmanager
def stepping(python: Path, environment: dict[str, str] | None = None) -> Iterator[int]:
    """Run the program, without haiprof unless an environment is given; its pid.

    It must still be there in the end, and have said nothing.
    """
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        [python, "-c", STEPS],
        env=environment or bare,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
            assert process.poll() is None
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def attach(
    python: Path, environment: dict[str, str], pid: int, logs: Path
) -> subprocess.CompletedProcess[str]:
    """Run ``haiprof attach`` with that Python."""
    words = ("attach", str(pid), "--time", "2.5", "--name", "r", "--log-dir", str(logs))
    return subprocess.run(
        [python, "-m", "haiprof.cli.main", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def check_recorded(run: Path) -> None:
    spans = Analyzer(run).spans(category="user")
    assert set(spans["name"].cast(str)) == {"work"}
    assert spans.height > 50
    samples = Analyzer(run).samples()
    kinds = {metric.partition(".")[0] for metric in samples["metric"].cast(str)}
    assert {"proc", "cpu", "mem"} <= kinds


def test_with_the_haiprof_of_that_python(python: Python, shm: Path, tmp_path: Path) -> None:
    """The job's own Python does not have it."""
    with stepping(python.bare) as pid:
        before = threads(pid)
        done = attach(python.equipped, python.environment, pid, tmp_path / "logs")
        assert done.returncode == 0, done.stderr
        check_recorded(tmp_path / "logs" / "r")
        wait_for(lambda: threads(pid) == before)
        wait_for(lambda: not recorders(shm))


def test_with_ours_where_that_python_has_its_own(python: Python, shm: Path, tmp_path: Path) -> None:
    with stepping(python.equipped, python.environment) as pid:
        done = attach(Path(sys.executable), dict(os.environ), pid, tmp_path / "logs")
        assert done.returncode == 0, done.stderr
        check_recorded(tmp_path / "logs" / "r")


def test_with_ours_where_that_python_has_none(python: Python, shm: Path, tmp_path: Path) -> None:
    """What it does is seen from outside, and one line says what is missing."""
    with stepping(python.bare) as pid:
        done = attach(Path(sys.executable), dict(os.environ), pid, tmp_path / "logs")
        assert done.returncode == 3
        (line,) = (line for line in done.stderr.splitlines() if "outside" in line)
        assert "haiprof cannot be imported there (No module named 'haiprof')" in line
        assert "install haiprof for its Python, or attach with the haiprof of that Python" in line
        assert "Traceback" not in done.stderr
    samples = Analyzer(tmp_path / "logs" / "r").samples("proc.*")
    assert samples.height > 0
