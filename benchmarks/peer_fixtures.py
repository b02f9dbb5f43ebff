"""Fixtures of tests and benchmarks that need another tool: they skip where it cannot be had."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import peers
import pytest

__all__ = [
    "deepspeed",
    "frameworks",
    "hta",
    "megatron",
    "megatron_lm",
    "memray",
    "plugin",
    "ray",
    "torchtitan",
]


@pytest.fixture(scope="session")
def plugin() -> Path:
    """The Python in which torch-tb-profiler is installed."""
    return _make_or_skip(peers.make_environment, peers.PLUGIN)


@pytest.fixture(scope="session")
def hta() -> Path:
    """The Python in which HolisticTraceAnalysis is installed."""
    return _make_or_skip(peers.make_environment, peers.HTA)


@pytest.fixture(scope="session")
def megatron() -> Path:
    """The folder in which Megatron Core is installed, for this Python."""
    return _make_or_skip(peers.make_packages, peers.MEGATRON)


@pytest.fixture(scope="session")
def megatron_lm() -> Path:
    """The folder in which Megatron Core is installed with the training loop of Megatron-LM."""
    return _make_or_skip(peers.make_packages, peers.MEGATRON_LM)


@pytest.fixture(scope="session")
def deepspeed() -> Path:
    """The folder in which DeepSpeed is installed, for this Python."""
    return _make_or_skip(peers.make_packages, peers.DEEPSPEED)


@pytest.fixture(scope="session")
def memray() -> Path:
    """The Python in which memray is installed; there is a debugger, which it attaches with."""
    if not any(map(shutil.which, ("gdb", "lldb"))):
        pytest.skip("memray attaches with gdb or lldb: neither is on PATH")
    return _make_or_skip(peers.make_environment, peers.MEMRAY)


def _make_or_skip(make: Callable[[peers.Peer], Path], peer: peers.Peer) -> Path:
    try:
        return make(peer)
    except peers.Unavailable as unavailable:
        pytest.skip(str(unavailable))


@pytest.fixture(scope="session")
def trackers() -> Path:
    """The folder in which TensorBoard, wandb and MLflow are installed, for this Python."""
    return _make_or_skip(peers.make_packages, peers.TRACKERS)


@pytest.fixture(scope="session")
def comet() -> Path:
    """The folder in which Comet is installed, for this Python."""
    return _make_or_skip(peers.make_packages, peers.COMET)


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The folder in which transformers and Lightning are installed, for this Python."""
    return _make_or_skip(peers.make_packages, peers.FRAMEWORKS)


@pytest.fixture(scope="session")
def ray() -> Path:
    """The folder in which Ray Train is installed, for this Python."""
    return _make_or_skip(peers.make_packages, peers.RAY)


@pytest.fixture(scope="session")
def torchtitan() -> Path:
    """The folder in which torchtitan is installed, for this Python."""
    return _make_or_skip(peers.make_packages, peers.TORCHTITAN)
