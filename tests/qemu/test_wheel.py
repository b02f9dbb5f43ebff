"""The wheel for AArch64, built here by zig, on an emulated machine: it is imported, and records.

Not part of the ordinary tests: ``make test-qemu`` runs it.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import zipfile
from pathlib import Path

import pytest
from arm_machine import boot, fetch_tree
from built_wheels import built_wheels
from first_report import needed
from fixtures import ROOT
from interpreters import interpreters

from haiprof import Analyzer

pytestmark = pytest.mark.qemu

BUILD = ROOT / "build" / "qemu" / "arm"
PYTHON = "/usr/bin/python3.11"
#: Where Debian's Python has what is installed beside its packages.
SITE = "usr/local/lib/python3.11/dist-packages"
LOOP = """
import haiprof, time
for _ in range(9):
    with haiprof.range("work"):
        time.sleep(0.02)
    haiprof.step()
"""


def installed(wheel: Path, folder: Path) -> dict[str, Path]:
    """The files of a wheel, and of what is not machine code of what it needs, by their places."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    files = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        is_program = name.parts[0].endswith(".data")
        files[f"usr/bin/{name.name}" if is_program else f"{SITE}/{name}"] = path
    for each in needed(("rich", "typer")):
        distribution = importlib.metadata.distribution(each)
        for file in distribution.files or ():
            if file.parts[0] != ".." and file.suffix != ".pyc":
                files[f"{SITE}/{file}"] = Path(str(distribution.locate_file(file)))
    return files


def test_it_is_imported_and_records(tmp_path: Path) -> None:
    tree = fetch_tree(BUILD)
    [(_, wheel)] = built_wheels([interpreters()["python3.11"]], "aarch64")
    haiprof = [PYTHON, "-m", "haiprof"]
    train = tmp_path / "train.py"
    train.write_text(LOOP)
    commands = [
        [PYTHON, "-W", "error", "-c", "import haiprof, haiprof._core; print(haiprof.__version__)"],
        ["haiprof-perfd", "--version"],
        [*haiprof, "doctor", "--require", "core"],
        [*haiprof, "run", "--log-dir", "/tmp/logs", "--run", "run", "--", PYTHON, "/train.py"],
        [*haiprof, "ls", "/tmp/logs"],
    ]
    task = {"tests": [], "programs": {}, "stacks": [], "commands": commands}
    task_file = tmp_path / "task.json"
    task_file.write_text(json.dumps({**task, "bring_out": "/tmp/logs/run"}))
    files = {
        "init": ROOT / "tests" / "qemu" / "arm" / "init.py",
        "task.json": task_file,
        "train.py": train,
        **installed(wheel, tmp_path / "wheel"),
    }
    lines = boot("cortex-a72", tree, files, tmp_path)
    rows = [line.split("\t") for line in lines]
    assert [row[1] for row in rows if row[0] == "ended"] == ["0"] * len(commands), lines
    assert any("recorder: a record reached its file" in line for line in lines)
    for _, name, text in (row for row in rows if row[0] == "file"):
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(text))
    run = Analyzer(tmp_path / "run")
    assert run.problems() == []
    assert run.steps()["step"].to_list() == list(range(8))  # each from one call to the next
    work = run.sql("SELECT duration FROM spans WHERE name = 'work'")["duration"]
    assert work.len() == 9
    assert work.min() >= 20_000_000
