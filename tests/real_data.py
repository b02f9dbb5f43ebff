"""Recorded traces and machines with known answers, which are no part of the repository.

Tests that need them are left out without them, and the end of the run says so in one line.
"""

from __future__ import annotations

import ast
import functools
import os
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent

_VARIABLE = "HAIPROF_TEST_DATA"
DATA = Path(
    os.environ.get(_VARIABLE) or Path(__file__).resolve().parent.parent.parent / "shared" / "data"
)
_LACKING = "real data: no "


def lacking(what: Path) -> str:
    """Return why a test that needs this of the data is left out."""
    return f"{_LACKING}{what}"


def need(what: Path) -> Path:
    """Return it; the test that asks is left out where it is not there."""
    if not what.exists():
        pytest.skip(lacking(what))
    return what


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that leaves out tests to which it makes no difference."""
    parser.addoption(
        "--of-data", action="store_true", help="only test files that look for real data"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a test file that does not look for the data, if that is asked for."""
    if not config.getoption("of_data") or not collection_path.name.startswith("test_"):
        return None
    above = [folder / "conftest.py" for folder in collection_path.parents if folder != _HERE]
    files = [collection_path, *(file for file in above if file.is_file())]
    return None if any(map(_looks, files)) else True


@functools.cache
def _looks(file: Path) -> bool:
    """Say whether a file of tests imports this one, itself or by what it imports of them."""
    named = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named.add(node.module)
    helpers = [_HERE / f"{name}.py" for name in named - {file.stem}]
    return "real_data" in named or any(_looks(helper) for helper in helpers if helper.is_file())


def pytest_configure(config: pytest.Config) -> None:
    """Take the variable out of the environment of whoever runs tests.

    To a job it would be an option that nobody knows. The workers of xdist inherit it from the
    process that starts them, which runs no test.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        os.environ.pop(_VARIABLE, None)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was left out once, instead of each test."""
    stats = terminalreporter.stats
    skipped = stats.get("skipped", [])
    left_out = [report for report in skipped if _LACKING in str(report.longrepr)]
    if not left_out:
        return
    stats["skipped"] = [report for report in skipped if report not in left_out]
    stats["without data"] = left_out
    terminalreporter.section("real data")
    terminalreporter.line(
        f"{len(left_out)} tests of real data were left out: {DATA} does not have it. "
        f"{_VARIABLE} names another folder."
    )
