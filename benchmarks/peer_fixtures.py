"""Fixtures of tests and benchmarks that need another tool: they skip where it cannot be had."""

from __future__ import annotations

from pathlib import Path

import peers
import pytest

__all__ = ["hta", "plugin"]


@pytest.fixture(scope="session")
def plugin() -> Path:
    """The Python in which torch-tb-profiler is installed."""
    return _python_of(peers.PLUGIN)


@pytest.fixture(scope="session")
def hta() -> Path:
    """The Python in which HolisticTraceAnalysis is installed."""
    return _python_of(peers.HTA)


def _python_of(peer: peers.Peer) -> Path:
    try:
        return peers.make_environment(peer)
    except peers.Unavailable as unavailable:
        pytest.skip(str(unavailable))
