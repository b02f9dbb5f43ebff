"""Ends what a test of this folder has begun and not ended, because it failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from beside_others import begun


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Afterwards no job goes on."""
    yield
    while begun:
        begun.pop().kill()
