"""The injector for AArch64, on emulated machines: into a real Python, whatever that is at.

Not part of the ordinary tests: ``make test-qemu`` runs it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from arm_machine import boot, build_programs, fetch_tree
from fixtures import ROOT
from injected import FED, HEAD, LOOP, PROGRAMS

pytestmark = pytest.mark.qemu

BUILD = ROOT / "build" / "qemu" / "arm"
#: There is no other program in the machine to start.
NAMES = [name for name in PROGRAMS if name != "child"]


@pytest.fixture(scope="module")
def tree() -> Path:
    return fetch_tree(BUILD)


@pytest.fixture(scope="module")
def programs(tree: Path) -> dict[str, Path]:
    return build_programs(tree, BUILD / "programs")


def text_of(name: str) -> str:
    feed = "threading.Thread(target=feed, daemon=True).start()\n" if name in FED else ""
    return HEAD + feed + LOOP.format(body=PROGRAMS[name])


@pytest.mark.parametrize("cpu", ["cortex-a72", "max,pauth-impdef=on"])
def test_code_runs_once_whatever_the_job_is_at(
    cpu: str, tree: Path, programs: dict[str, Path], tmp_path: Path
) -> None:
    sve = cpu.startswith("max")
    task = {
        "tests": sorted(n for n in programs if n.endswith("_test") and (sve or "_sve_" not in n)),
        "programs": {name: text_of(name) for name in NAMES},
        "stacks": [],
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    files = {"init": ROOT / "tests/qemu/arm/init.py", "task.json": tmp_path / "task.json"}
    rows = [line.split("\t") for line in boot(cpu, tree, {**files, **programs}, tmp_path)]
    said = {kind: [row[1:] for row in rows if row[0] == kind] for kind in {row[0] for row in rows}}
    assert "done" in said, rows[-5:]
    assert ("sve" in said["features"][0]) == sve
    assert [(name, code) for name, code, _ in said["test"]] == [(n, "0") for n in task["tests"]]
    assert [row[:3] for row in said["program"]] == [[n, "True 0 1 2 3 4", ""] for n in NAMES]
    assert all(int(ns) > 0 for row in said["program"] for ns in row[3:])
