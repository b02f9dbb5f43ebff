"""What all benchmarks share, most of it with the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures import away_from_the_checkout, build_native, native_build, shm
from peer_fixtures import hta, memray, plugin
from real_data import pytest_configure
from reporting import pytest_benchmark_generate_json, pytest_terminal_summary, report

__all__ = [
    "away_from_the_checkout",
    "hta",
    "memray",
    "native_build",
    "native_programs",
    "plugin",
    "pytest_benchmark_generate_json",
    "pytest_configure",
    "pytest_terminal_summary",
    "report",
    "shm",
]


@pytest.fixture(scope="session")
def native_programs() -> Path:
    """The folder of the native benchmark programs, built."""
    return build_native("benchmark_programs") / "benchmarks" / "native"
