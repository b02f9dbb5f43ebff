"""The plugin of pytest that collects the figures of benchmarks and ends with their table.

With ``--benchmark-json build/bench.json`` the table is also written to ``build/bench.md``.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import figures
import pytest
from figures import Figure

__all__ = [
    "pytest_benchmark_generate_json",
    "pytest_terminal_summary",
    "report",
]

_FIGURES = pytest.StashKey[list[Figure]]()


class Report(Protocol):
    """What the fixture ``report`` is."""

    def __call__(self, *figures: Figure) -> None:
        """Record the figures, then fail the benchmark if one misses its target."""


@pytest.fixture
def report(benchmark: Any, request: pytest.FixtureRequest) -> Report:
    """Record figures in the results and in the table; one that misses its target fails the test."""

    def record(*found: Figure) -> None:
        __tracebackhide__ = True
        recorded = benchmark.extra_info.setdefault("figures", [])
        recorded += [figure.to_json() for figure in found]
        request.config.stash.setdefault(_FIGURES, []).extend(found)
        missed = [figure for figure in found if figure.met is False]
        if missed:
            names = ", ".join(dict.fromkeys(figure.what for figure in missed))
            lines = (figure.line() for figure in missed)
            pytest.fail("\n".join((f"targets missed: {names}", *lines)), pytrace=False)

    return record


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_generate_json(benchmarks: list[Any]) -> None:
    """Leave out a benchmark that was interrupted: it has no time, which ends pytest-benchmark."""
    benchmarks[:] = [each for each in benchmarks if each]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> Generator[None, None, None]:
    """Print the table after everything else, and write it as Markdown beside the results."""
    try:
        yield
    finally:
        found = config.stash.get(_FIGURES, [])
        notes = list(_notes(terminalreporter, exitstatus))
        if found or notes:
            _print(terminalreporter, found, notes)
            if config.option.benchmark_json:
                page = Path(config.option.benchmark_json).with_suffix(".md")
                page.write_text(figures.markdown(found, notes), "utf-8")


def _print(terminal: pytest.TerminalReporter, found: list[Figure], notes: list[str]) -> None:
    on_terminal = bool(terminal.isatty)
    width = shutil.get_terminal_size().columns if on_terminal else None
    terminal.section("figures")
    if found:
        terminal.line(figures.printed(found, width, terminal.hasmarkup))
        terminal.line("")
    for line in (figures.total(found), *notes):
        terminal.line(line)


def _notes(terminal: pytest.TerminalReporter, exitstatus: int) -> Iterator[str]:
    """Name the benchmarks of which the table does not have all figures."""
    if exitstatus == pytest.ExitCode.INTERRUPTED:
        yield "Interrupted: benchmarks that had not ended are missing."
    for outcome in ("failed", "error", "skipped"):
        for each in terminal.stats.get(outcome, []):
            yield f"{outcome}: {each.nodeid}: {_reason(each.longrepr)}"


def _reason(longrepr: Any) -> str:
    """Return the first line of why a test failed or was skipped."""
    if isinstance(longrepr, tuple):  # skipped: file, line, reason
        longrepr = longrepr[2]
    crash = getattr(longrepr, "reprcrash", None)
    lines = str(longrepr if crash is None else crash.message).strip().splitlines()
    reason = lines[0] if lines else "no reason"
    return reason.removeprefix("Failed: ").removeprefix("Skipped: ")
