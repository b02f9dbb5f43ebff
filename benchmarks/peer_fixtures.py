"""Fixtures of tests and benchmarks that need another tool: they skip where it cannot be had."""

from __future__ import annotations

import shutil
from pathlib import Path

import peers
import pytest

__all__ = ["hta", "memray", "plugin"]


@pytest.fixture(scope="session")
def plugin() -> Path:
    """The Python in which torch-tb-profiler is installed."""
    return _python_of(peers.PLUGIN)


@pytest.fixture(scope="session")
def hta() -> Path:
    """The Python in which HolisticTraceAnalysis is installed."""
    return _python_of(peers.HTA)


@pytest.fixture(scope="session")
def memray() -> Path:
    """The Python in which memray is installed; there is a debugger, which it attaches with."""
    if not any(map(shutil.which, ("gdb", "lldb"))):
        pytest.skip("memray attaches with gdb or lldb: neither is on PATH")
    return _python_of(peers.MEMRAY)


def _python_of(peer: peers.Peer) -> Path:
    try:
        return peers.make_environment(peer)
    except peers.Unavailable as unavailable:
        pytest.skip(str(unavailable))
