"""Stacks of a real Python on an emulated AArch64 machine: as the process itself says them.

Not part of the ordinary tests: ``make test-qemu`` runs it.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from arm_machine import boot, build_programs, fetch_tree
from fixtures import ROOT
from stack_jobs import JOB

pytestmark = pytest.mark.qemu

BUILD = ROOT / "build" / "qemu" / "arm"
ARM = ROOT / "tests" / "qemu" / "arm"


def test_every_frame_and_line_is_what_the_process_says(tmp_path: Path) -> None:
    tree = fetch_tree(BUILD)
    programs = build_programs(tree, BUILD / "programs")
    (tmp_path / "task.json").write_text(json.dumps({"tests": [], "programs": {}, "stacks": [JOB]}))
    files = {
        "init": ARM / "init.py",
        "task.json": tmp_path / "task.json",
        "job/haiprof/_core.py": ARM / "layout_of_python.py",
    }
    lines = boot("cortex-a72", tree, {**files, **programs}, tmp_path)
    rows = [line.split("\t") for line in lines]
    assert ["reader", "0"] in rows, rows[-5:]
    said = dict(ast.literal_eval(row[1]) for row in rows if row[0] == "said")
    assert len(said) == 5
    assert max(len(frames) for frames in said.values()) > 350
    read: list[dict[int, list[tuple[str, int, str]]]] = [{}]
    for row in (row[1:] for row in rows if row[0] == "read"):
        if row == ["done"]:
            read.append({})
            continue
        thread, function, file, line = row
        name = function.rpartition(".")[2]
        read[-1].setdefault(int(thread), []).append((file, int(line), name))
    assert len(read) == 4  # known threads and functions, too
    for found in read[:3]:
        assert {thread: found[thread] for thread in said} == said
