"""A Python without haiprof has it from a tree, keeps what it has of its own, and always starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trees import PYTHON, TREE, VERSION, a_wheel, install

ASK = "import haiprof, sys; print(haiprof.__file__, hasattr(sys, '_haiprof_armed'))"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with haiprof for the Python that the tests' environment was made with."""
    if not PYTHON.exists():
        pytest.skip(f"there is no {PYTHON}")
    folder = tmp_path_factory.mktemp("tree")
    install(folder, a_wheel(tmp_path_factory.mktemp("wheel")), PYTHON)
    return folder


def run(program: str, tree: Path, *paths: Path, **variables: str) -> tuple[str, str]:
    """Run a program in a Python with this tree; return what it printed, and stderr."""
    done = subprocess.run(
        [PYTHON, "-c", program],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, [tree / "start", *paths])),
            **variables,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_a_python_without_haiprof_has_it_and_is_armed_where_that_is_asked_for(tree: Path) -> None:
    expected = str(tree / "site" / VERSION / "haiprof/__init__.py")
    assert run(ASK, tree) == (f"{expected} False", "")
    assert run(ASK, tree, HAIPROF_ENABLED="0") == (f"{expected} False", "")
    assert run(ASK, tree, HAIPROF_ENABLED="1") == (f"{expected} True", "")


def test_what_the_job_has_of_its_own_comes_first(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "haiprof").mkdir()
    (tmp_path / "haiprof/__init__.py").touch()
    found, _ = run("import haiprof; print(haiprof.__file__)", tree, tmp_path)
    assert found == str(tmp_path / "haiprof/__init__.py")
    last, _ = run("import sys; print(sys.path[-1])", tree)
    assert last == str(tree / "site" / VERSION)


def test_another_sitecustomize_runs_as_if_it_were_the_first(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.of_the_job = __name__\n")
    program = "import sys, sitecustomize; print(sys.of_the_job, sitecustomize.__file__)"
    said, error = run(program, tree, tmp_path)
    assert said == f"sitecustomize {tmp_path / 'sitecustomize.py'}"
    assert error == ""


def test_without_packages_for_this_python_the_job_goes_on_and_one_line_says_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "start").mkdir()
    shutil.copy(TREE / "sitecustomize.py", tmp_path / "start")
    child = f"import subprocess; print(subprocess.call([{str(PYTHON)!r}, '-c', 'print(1)']))"
    said, error = run(child, tmp_path, HAIPROF_ENABLED="1")
    assert said == "1\n0"
    (line,) = error.splitlines()
    assert f"there is no {tmp_path / 'site' / VERSION}" in line
    assert "The job continues unprofiled" in line
    assert run(child, tmp_path) == ("1\n0", "")


def test_a_tree_that_is_broken_does_not_keep_python_from_starting(tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    program = (TREE / "sitecustomize.py").read_text().replace("site.addsitedir(folder)", "1 / 0")
    (tmp_path / "start/sitecustomize.py").write_text(program)
    (tmp_path / "site" / VERSION).mkdir(parents=True)
    said, error = run("print('trains')", tmp_path, HAIPROF_ENABLED="1")
    assert said == "trains"
    assert error.startswith("haiprof: not recording: ZeroDivisionError")
    assert len(error.splitlines()) == 1


def test_it_has_the_helper_and_the_command(tree: Path, tmp_path: Path) -> None:
    done = subprocess.run([tree / "bin/haiprof-perfd", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("haiprof-perfd ")
    # A folder named haiprof in the working one is no installation.
    (tmp_path / "haiprof").mkdir()
    (tmp_path / "haiprof/__init__.py").write_text("raise SystemExit(9)\n")
    link = tmp_path / "link"
    link.symlink_to(tree / "bin/haiprof")
    # The Python of this environment, which has what the command needs.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for program in (tree / "bin/haiprof", link):
        done = subprocess.run(
            [program, "ps"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


def test_it_says_how_it_is_used() -> None:
    done = subprocess.run([TREE / "install.sh", "x"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "usage: install.sh FOLDER REQUIREMENT PYTHON...\n"
