"""Attaching to programs of other Pythons, from the start of the command to what was recorded.

Each Python that is here gets the extension module built for it and an environment with what haiprof
needs. The programs know nothing of torch.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from built_pythons import TO_LOOK, TO_RECORD, Python, equipped
from interpreters import interpreters
from recording import recorders, wait_for

from haiprof import Analyzer

pytestmark = pytest.mark.pythons

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


@pytest.fixture(scope="module", params=others(), ids=lambda path: path.name)
def python(request: pytest.FixtureRequest) -> Python:
    return equipped(request.param, TO_RECORD + TO_LOOK)


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
    (rank,) = (p for p in Analyzer(run).run.processes if p.stacks is not None)
    assert rank.stacks is not None
    if rank.stacks.problem:
        assert "another Python" in rank.stacks.problem
        return
    stacks = Analyzer(run).stacks()
    assert set(stacks["function"]) >= {"<module>"}
    # Where the program sleeps, or does what it does there.
    assert set(stacks.filter(function="<module>")["line"]) <= set(range(5, 13))


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
        (line,) = (
            line for line in done.stderr.splitlines() if "observed from outside only" in line
        )
        assert "haiprof cannot be imported there (No module named 'haiprof')" in line
        assert "install haiprof for its Python, or attach with the haiprof of that Python" in line
        assert "Traceback" not in done.stderr
    samples = Analyzer(tmp_path / "logs" / "r").samples("proc.*")
    assert samples.height > 0
