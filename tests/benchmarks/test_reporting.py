"""The table at the end of a run of benchmarks, whatever becomes of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from fixtures import ROOT

HEAD = """
import os
import pytest
from figures import Figure, Measured, Unit, at_most

def figure(what, seconds):
    return Figure(what, Unit.SECONDS, Measured(seconds), target=at_most(1))
"""
MET = """
def test_met(benchmark, report):
    benchmark.pedantic(lambda: None)
    report(figure("good", 0.5))
"""
MISSED = """
def test_missed(benchmark, report):
    benchmark.pedantic(lambda: None)
    report(figure("bad", 1.5), figure("fine", 1), figure("worse", 3))
"""


def benchmarks(folder: Path, *tests: str) -> tuple[int, list[str]]:
    """Run benchmarks as ``make bench`` does; return the exit status and what is said at the end."""
    (folder / "test_some.py").write_text(HEAD + "".join(map(textwrap.dedent, tests)))
    # Benchmarks measure nothing in a worker of xdist, as which this test may run; and what is
    # interrupted here comes last, also where pytest-randomly is installed.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "reporting", "-p", "no:cacheprovider", "-ra",
         "-p", "no:randomly", "--benchmark-quiet", "--benchmark-json", "bench.json"],
        capture_output=True, text=True, cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT / "benchmarks")},
    )  # fmt: skip
    _, _, end = done.stdout.partition(" figures ====")
    return done.returncode, end.splitlines()[1:]


def results(folder: Path) -> dict[str, Any]:
    """Return the extra_info of each benchmark in the results."""
    document = json.loads((folder / "bench.json").read_text())
    return {each["name"]: each["extra_info"] for each in document["benchmarks"]}


def test_the_table_comes_last_and_beside_the_results(tmp_path: Path) -> None:
    status, end = benchmarks(tmp_path, MET)
    assert status == 0
    row = next(line for line in end if line.startswith("good"))
    assert row.split() == ["good", "500", "ms", "-", "-", "at", "most", "1", "s", "met"]
    assert end[-2] == "met: 1, missed: 0, without a target: 0"
    assert "1 passed" in end[-1]
    page = (tmp_path / "bench.md").read_text("utf-8")
    assert "| good | 500 ms | - | - | at most 1 s | met |" in page
    (kept,) = results(tmp_path)["test_met"]["figures"]
    assert (kept["what"], kept["met"]) == ("good", True)


def test_a_benchmark_that_misses_a_target_fails_with_all_its_rows(tmp_path: Path) -> None:
    status, end = benchmarks(tmp_path, MISSED, MET)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert [line.split()[0] for line in end[2:6]] == ["bad", "fine", "worse", "good"]
    assert end[2].endswith("missed by 50 %")
    assert end[4].endswith("missed by 200 %")
    assert "met: 2, missed: 2, without a target: 0" in end
    (failed,) = (line for line in end if line.startswith("failed"))
    assert failed == "failed: test_some.py::test_missed: targets missed: bad, worse"
    assert [each["met"] for each in results(tmp_path)["test_missed"]["figures"]] == [
        False, True, False,
    ]  # fmt: skip
    assert f"- {failed}" in (tmp_path / "bench.md").read_text("utf-8")


def test_what_was_not_measured_is_named(tmp_path: Path) -> None:
    status, end = benchmarks(
        tmp_path,
        """
        def test_wrong(benchmark, report):
            benchmark.pedantic(lambda: None)
            assert 1 == 2, "the work was wrong"
            report(figure("never", 0.5))

        def test_skipped(benchmark, report):
            pytest.skip("no such peer")

        @pytest.fixture
        def broken():
            raise RuntimeError("no such file")

        def test_error(benchmark, report, broken):
            pass
        """,
    )
    assert status == pytest.ExitCode.TESTS_FAILED
    assert end[:-1] == [
        "met: 0, missed: 0, without a target: 0",
        "failed: test_some.py::test_wrong: AssertionError: the work was wrong",
        "error: test_some.py::test_error: RuntimeError: no such file",
        "skipped: test_some.py::test_skipped: no such peer",
    ]


def test_an_interrupted_run_prints_what_there_is(tmp_path: Path) -> None:
    """Even from a folder that is not the one of the results, as all benchmarks run in one."""
    (tmp_path / "elsewhere").mkdir()
    status, end = benchmarks(
        tmp_path,
        MET,
        """
        def interrupt():
            raise KeyboardInterrupt

        def test_interrupted(benchmark, report, monkeypatch):
            monkeypatch.chdir("elsewhere")
            benchmark.pedantic(interrupt)
        """,
    )
    assert status == pytest.ExitCode.INTERRUPTED
    assert any(line.startswith("good") and line.endswith("met") for line in end)
    assert "Interrupted: benchmarks that had not ended are missing." in end
    assert list(results(tmp_path)) == ["test_met"]
    assert "| good |" in (tmp_path / "bench.md").read_text("utf-8")


def test_a_run_without_benchmarks_leaves_the_last_table(tmp_path: Path) -> None:
    (tmp_path / "bench.md").write_text("the last table")
    status, end = benchmarks(tmp_path, "def test_other(): pass")
    assert (status, end) == (0, [])
    assert (tmp_path / "bench.md").read_text() == "the last table"
