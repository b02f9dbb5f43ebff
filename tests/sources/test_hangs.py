"""Reports of hangs in a run's folder: read in order, and never trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from haiprof.sources.hangs import read_hangs


def report(folder: Path, number: int = 1, seen_ns: Any = 5, **changes: Any) -> Path:
    culprit = {"rank": 1, "pid": 7, "line": "nap (/job/t.py:9)"}
    hang = {"kind": "rank_never_arrived", "problem": "Rank 1 never came", "advice": "look",
            "ranks": [1], "waiting": [0, 2], "lasts_s": 61.5, "culprits": [culprit]}  # fmt: skip
    file = folder / f"hang-{number}.json"
    file.write_text(json.dumps({"seen_ns": seen_ns, "hang": {**hang, **changes}}))
    return file


def test_hangs_are_read_in_their_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        report(tmp_path, number, seen_ns=number, lasts_s=number)
    (tmp_path / "hang.json").write_text("{")
    hangs, problems = read_hangs(tmp_path)
    assert [hang.lasts_s for hang in hangs] == [1, 2, 10]
    assert problems == []
    assert hangs[0].line == "nap (/job/t.py:9)"
    assert (hangs[0].ranks, hangs[0].waiting, hangs[0].seen_ns) == ((1,), (0, 2), 1)


def test_without_any_there_are_none(tmp_path: Path) -> None:
    assert read_hangs(tmp_path) == ([], [])
    assert read_hangs(tmp_path / "gone") == ([], [])


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": 5},
        {"ranks": "1"},
        {"ranks": [-1]},
        {"ranks": [True]},
        {"lasts_s": "long"},
        {"lasts_s": float("inf")},
        {"lasts_s": 10**400},
        {"lasts_s": 1e300},
        {"culprits": [5]},
        {"culprits": [{"line": 5}]},
        {"seen_ns": "now"},
        {"seen_ns": -1},
    ],
)
def test_what_is_no_report_is_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = report(tmp_path, **changes)
    hangs, (problem,) = read_hangs(tmp_path)
    assert hangs == []
    assert problem == f"{file}: is no report of a hang that this version can read"


@pytest.mark.parametrize("text", ["", "[]", "5", '{"hang": []}', "[" * 100_000])
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "hang-1.json").write_text(text)
    hangs, problems = read_hangs(tmp_path)
    assert (hangs, len(problems)) == ([], 1)


def test_a_link_to_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/hang-1.json").symlink_to(report(tmp_path))
    hangs, problems = read_hangs(tmp_path / "run")
    assert (hangs, len(problems)) == ([], 1)
