"""Recorded traces and machines with known answers, which are no part of the repository.

Tests that need them are left out without them, and the end of the run says so in one line.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
