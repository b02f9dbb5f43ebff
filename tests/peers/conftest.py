"""Tests that run other tools: not among the ordinary ones, as those have to be installed first."""

from __future__ import annotations

from pathlib import Path

import pytest
from peer_fixtures import (
    comet,
    deepspeed,
    frameworks,
    hta,
    megatron,
    megatron_lm,
    plugin,
    ray,
    torchtitan,
    trackers,
)

__all__ = [
    "comet",
    "deepspeed",
    "frameworks",
    "hta",
    "megatron",
    "megatron_lm",
    "plugin",
    "ray",
    "torchtitan",
    "trackers",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.peers)
