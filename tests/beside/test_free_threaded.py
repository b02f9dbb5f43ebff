"""Jobs of Pythons without the global interpreter lock, of each that is here.

What looks at the runs is the Python of these tests: there is no polars for those.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from beside_others import Recorded, alone, hold, write_job
from built_pythons import TO_LOOK, TO_RECORD, Python, equipped, said
from interpreters import free_threaded, interpreters

from haiprof import Analyzer, _core

pytestmark = [pytest.mark.pythons, pytest.mark.usefixtures("shm")]

#: Four threads record as fast as they can, into a ring that a first step has opened: while a
#: thread opens it nothing of others is recorded, with the lock or without. Each is there until all
#: are done: who came later would be given the place of one that has ended, which a recorder that is
#: only starting has not read yet. Says at its end whether the lock is on: importing a module that
#: is not made for going without switches it on for all.
AT_ONCE = """
import os, sys, threading, time
from maybe import finish, interval, step
def work():
    together.wait()
    for turn in range(2000):
        with interval("work"):
            sum(range(turn % 50))
    together.wait()
step()
together = threading.Barrier(4)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
while not os.path.exists("END"):
    time.sleep(0.005)
    step()
finish(4 * 2000)
print("lock:", sys._is_gil_enabled())
sys.exit(7)
"""
#: Knows nothing of haiprof; where it was brought, four threads record, and the first makes steps.
ATTACHED = """
import os, sys, threading, time
def work(first):
    while not os.path.exists("END"):
        time.sleep(0.001)
        session = sys.modules.get("haiprof.capture.session")
        if getattr(session, "active", lambda: None)() is not None:
            import haiprof
            with haiprof.range("work"):
                sum(range(100))
            if first:
                haiprof.step()
threads = [threading.Thread(target=work, args=[False]) for _ in range(3)]
for thread in threads:
    thread.start()
print("ready", flush=True)
work(True)
for thread in threads:
    thread.join()
print("lock:", sys._is_gil_enabled())
sys.exit(7)
"""


def here() -> list[Any]:
    """Each that is here; a skip if there is none."""
    why = "no free-threaded Python here (python3.13t, ...): tests/interpreters.py"
    none = pytest.param(None, id="none", marks=pytest.mark.skip(reason=why))
    return [pytest.param(path, id=name) for name, path in free_threaded().items()] or [none]


@pytest.fixture(scope="module", params=here())
def python(request: pytest.FixtureRequest) -> Python:
    return equipped(request.param, TO_RECORD)


@dataclass(frozen=True)
class Attaching:
    """A Python with the lock that has all of haiprof.

    Attributes:
        program: of it.
        environment: in which it finds haiprof.
        module: our compiled module, built for it.
    """

    program: Path
    environment: dict[str, str]
    module: Path


@pytest.fixture(params=["of the tests", "of its version"])
def attaching(request: pytest.FixtureRequest, python: Python) -> Attaching:
    """What is compiled for a Python with the lock does not serve the same version without."""
    if request.param == "of the tests":
        return Attaching(Path(sys.executable), dict(os.environ), Path(_core.__file__))
    name = said(python.bare, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])")
    if name not in interpreters():
        pytest.skip(f"no {name} with the lock here: tests/interpreters.py")
    other = equipped(interpreters()[name], TO_RECORD + TO_LOOK)
    (module,) = (other.site / "haiprof").glob("_core.*.so")
    return Attaching(other.equipped, other.environment, module)


@contextmanager
def attachable(program: Path, folder: Path, environment: dict[str, str]) -> Iterator[int]:
    """Run a job; its pid. It must end as it does without us, and have said no more."""
    job = subprocess.Popen(
        [program, "-c", ATTACHED], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        yield job.pid
        (folder / "END").touch()
        assert job.communicate(timeout=60) == ("lock: False\n", "")
        assert job.returncode == 7
    finally:
        job.kill()
        job.wait()


def without_haiprof() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def attach(by: Attaching, pid: int, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ("attach", str(pid), "--time", "1", "--log-dir", str(folder / "logs"), "--name", "r")
    return subprocess.run(
        [by.program, "-m", "haiprof.cli.main", *words],
        env=by.environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def check_attached(run: Path) -> None:
    analyzer = Analyzer(run)
    assert analyzer.steps().height > 3
    spans = analyzer.spans(category="user")
    assert set(spans["name"].cast(str)) == {"work"}
    assert spans["thread"].n_unique() == 4
    assert analyzer.samples("proc.*").height > 0


def test_threads_that_record_at_once(python: Python, tmp_path: Path) -> None:
    # As where it is installed: no .pth is read of what is in PYTHONPATH.
    installed = f"import site\nsite.addsitedir({str(python.site)!r})\n"
    job = write_job(tmp_path, installed + AT_ONCE)
    command = ("env", f"PYTHONPATH={python.site}", str(python.equipped), str(job))
    without = alone(tmp_path, *command)
    assert (without.code, without.stdout) == (7, "lock: False\n")
    recorded = Recorded(tmp_path, *command)
    done = recorded.finish()
    assert (done.code, done.stdout) == (without.code, without.stdout)
    assert "GIL" not in done.stderr
    hold("free-threaded Python", recorded, work=recorded.turns())
    ranges = [span for span in recorded.spans() if span["category"] == "user"]
    assert list(Counter(span["thread"] for span in ranges).values()) == [2000] * 4


def test_attached_where_it_has_its_own(
    python: Python, attaching: Attaching, tmp_path: Path
) -> None:
    with attachable(python.equipped, tmp_path, python.environment) as pid:
        done = attach(attaching, pid, tmp_path)
    assert done.returncode == 0, done.stderr
    check_attached(tmp_path / "logs" / "r")


def test_attached_where_ours_was_built_for_it_too(
    python: Python, attaching: Attaching, tmp_path: Path
) -> None:
    """It needs nothing of its own: not even pyarrow."""
    site = shutil.copytree(python.site, tmp_path / "site")
    shutil.copy(attaching.module, site / "haiprof")
    both = {**attaching.environment, "PYTHONPATH": str(site)}
    with attachable(python.bare, tmp_path, without_haiprof()) as pid:
        done = attach(Attaching(attaching.program, both, attaching.module), pid, tmp_path)
    assert done.returncode == 0, done.stderr
    check_attached(tmp_path / "logs" / "r")


def test_watched_where_it_has_none(python: Python, attaching: Attaching, tmp_path: Path) -> None:
    with attachable(python.bare, tmp_path, without_haiprof()) as pid:
        done = attach(attaching, pid, tmp_path)
    assert done.returncode == 3
    (line,) = (line for line in done.stderr.splitlines() if "observed from outside only" in line)
    assert "haiprof cannot be imported there (No module named 'haiprof')" in line
    assert "install haiprof for its Python, or attach with the haiprof of that Python" in line
    assert Analyzer(tmp_path / "logs" / "r").samples("proc.*").height > 0


def test_what_was_built_for_its_version_with_the_lock_says_so(python: Python) -> None:
    site = python.site.parent / "site-of-none"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(python.site, site, ignore=shutil.ignore_patterns("_core.*.so"))
    said_there = subprocess.run(
        [python.bare, "-c", "import haiprof; haiprof.start()"],
        env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True,
    )  # fmt: skip
    version = said(python.bare, "-c", "import sys; print('%d%d' % sys.version_info[:2])")
    assert f"no compiled module of haiprof for cpython-{version}t in" in said_there.stderr
