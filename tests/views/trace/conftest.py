"""Recorded traces: each is read once, and all tests of it run before the next one is."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_data import lacking
from trace_numbers import Recorded
from traces import TRACES

FILES = sorted(TRACES.glob("*/*.pt.trace.json.gz"))
SKIP = pytest.mark.skip(reason=lacking(TRACES))
IDS = [f"{file.parent.name}-{file.name.split('.pt.')[0]}" for file in FILES]


@pytest.fixture(
    scope="session", params=FILES or [pytest.param(Path(), marks=SKIP)], ids=IDS or ["none"]
)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return Recorded(request.param)
